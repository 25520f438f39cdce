"""Keys of librdkafka (confluent-kafka) that Kafka's own client does not have."""

from __future__ import annotations

_ANY = """
    builtin.features message.copy.max.bytes receive.message.max.bytes enabled.events
    enable.random.seed internal.termination.signal api.version.request.timeout.ms
    api.version.fallback.ms https.ca.location https.ca.pem enable.ssl.certificate.verification
    enable.sasl.oauthbearer.unsecure.jwt plugin.library.paths
""".split()
# Queues and threads inside a client that uses a network.
PRODUCER = frozenset(
    """
    queue.buffering.max.messages queue.buffering.max.kbytes queue.buffering.backpressure.threshold
    batch.num.messages sticky.partitioning.linger.ms log.level log.queue log.thread.name
    enable.partition.eof
    enable.gapless.guarantee produce.offset.report
    """.split()
) | frozenset(_ANY)
CONSUMER = frozenset(
    """
    queued.min.messages queued.max.messages.kbytes fetch.error.backoff.ms
    fetch.queue.backoff.ms group.protocol.type consume.callback.max.messages
    coordinator.query.interval.ms log.level log.queue log.thread.name
    message.max.bytes max.in.flight.requests.per.connection max.in.flight
    offset.store.path offset.store.sync.interval.ms
    """.split()
) | frozenset(_ANY)

_ERRORS = "calls raise their errors, and the logger `eoslog` has those of background threads"
_LOGGER = "configure logging.getLogger('eoslog')"
_NETWORK = "there is no network"
_STATS = "call Log.stats() or Consumer.current_lag()"
_COMMITS = "commit() returns when the offsets are durable, and raises an error if it fails"
_DELIVERY = "pass on_delivery to produce, or use the Delivery that send returns"
_FIFO = "records of a partition are appended in the order of their produce calls"
_NONE: tuple[object, ...] = (None,)
_FALSE: tuple[object, ...] = (None, False, "false", "0")
_EMPTY: tuple[object, ...] = (None, "")
_TRUE: tuple[object, ...] = (None, True, "true", "1")

Replaced = dict[str, tuple[tuple[object, ...], str]]
"""Key to the values that ask for nothing, and what stands in for the others: they change a loop."""

_BOTH: Replaced = {
    "error.cb": (_NONE, _ERRORS),
    "throttle.cb": (_NONE, "there is no broker that throttles requests"),
    "stats.cb": (_NONE, _STATS),
    "log.cb": (_NONE, _LOGGER),
    "logger": (_NONE, _LOGGER),
    "oauth.cb": (_NONE, "there is no network, so there is no login"),
    "oauthbearer.token.refresh.cb": (_NONE, "there is no network, so there is no login"),
    "background.event.cb": (_NONE, _ERRORS),
    "connect.cb": (_NONE, _NETWORK),
    "closesocket.cb": (_NONE, _NETWORK),
    "resolve.cb": (_NONE, _NETWORK),
    "open.cb": (_NONE, "eoslog opens its files itself, with close-on-exec"),
    "interceptors": (_NONE, "call your code before produce and after poll"),
    "opaque": (_NONE, "bind what a callback needs with functools.partial"),
    "default.topic.conf": ((None, {}), "pass its keys in the configuration itself"),
    "topic.blacklist": (_EMPTY, "subscribe with a pattern that leaves these topics out"),
}
PRODUCER_REPLACED: Replaced = {
    **_BOTH,
    "on.delivery": (_NONE, _DELIVERY),
    "dr.cb": (_NONE, _DELIVERY),
    "dr.msg.cb": (_NONE, _DELIVERY),
    "partitioner.cb": (_NONE, "set partitioner.class to a callable"),
    "msg.order.cmp": (_NONE, _FIFO),
    "queuing.strategy": ((None, "fifo"), _FIFO),
    "delivery.report.only.error": (
        _FALSE, "on_delivery is called for each record; check its first argument"
    ),
}  # fmt: skip
CONSUMER_REPLACED: Replaced = {
    **_BOTH,
    "on.commit": (_NONE, _COMMITS),
    "consume.cb": (_NONE, "iterate over the consumer, or call poll"),
    "rebalance.cb": (_NONE, "pass on_assign and on_revoke to subscribe"),
    "offset.commit.cb": (_NONE, _COMMITS),
    "offset.store.method": ((None, "broker"), "offsets are stored in the group"),
    "enable.partition.eof": (
        _FALSE, "Log.read stops at the end, and Consumer.current_lag returns the distance to it"
    ),
    "enable.auto.offset.store": (
        _TRUE, "set enable.auto.commit=False, and call commit(record) instead of store_offsets"
    ),
}  # fmt: skip
