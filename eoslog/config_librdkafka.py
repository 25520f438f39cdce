"""What configurations for librdkafka (confluent-kafka) hold beside what Kafka's client knows."""

from __future__ import annotations

# Queues and threads inside a client that has a network behind it.
PRODUCER = frozenset(
    """
    queue.buffering.max.messages queue.buffering.max.kbytes queue.buffering.backpressure.threshold
    batch.num.messages sticky.partitioning.linger.ms log.level log.queue log.thread.name
    enable.partition.eof
    """.split()
)
CONSUMER = frozenset(
    """
    queued.min.messages queued.max.messages.kbytes fetch.error.backoff.ms
    fetch.queue.backoff.ms group.protocol.type consume.callback.max.messages
    coordinator.query.interval.ms log.level log.queue log.thread.name
    """.split()
)

_ERRORS = "errors are raised by the call that meets them, and logged by the logger `eoslog`"
_LOGGER = "logging.getLogger('eoslog') is the one that is used"
_STATS = "ask Log.stats(), or Consumer.current_lag()"
_NONE: tuple[object, ...] = (None,)
_FALSE: tuple[object, ...] = (None, False, "false", "0")
_TRUE: tuple[object, ...] = (None, True, "true", "1")

Replaced = dict[str, tuple[tuple[object, ...], str]]
"""Key to the values that ask for nothing, and what stands in for the others: they change a loop."""

_BOTH: Replaced = {
    "error.cb": (_NONE, _ERRORS),
    "throttle.cb": (_NONE, "nothing is throttled: there is no broker"),
    "stats.cb": (_NONE, _STATS),
    "log.cb": (_NONE, _LOGGER),
    "logger": (_NONE, _LOGGER),
    "oauth.cb": (_NONE, "there is no network, and nothing to log in to"),
}
PRODUCER_REPLACED: Replaced = {
    **_BOTH,
    "on.delivery": (_NONE, "give on_delivery to each produce, or take what send returns"),
    "dr.cb": (_NONE, "give on_delivery to each produce, or take what send returns"),
    "dr.msg.cb": (_NONE, "give on_delivery to each produce, or take what send returns"),
    "delivery.report.only.error": (
        _FALSE, "on_delivery is called for each record: look at its first argument"
    ),
}  # fmt: skip
CONSUMER_REPLACED: Replaced = {
    **_BOTH,
    "on.commit": (_NONE, "commit() returns when the offsets are durable, and raises what failed"),
    "enable.partition.eof": (
        _FALSE, "poll tells of no end: Log.read ends at it, Consumer.current_lag says how far it is"
    ),
    "enable.auto.offset.store": (
        _TRUE, "there is no store_offsets: set enable.auto.commit=False, and call commit(record)"
    ),
}  # fmt: skip
