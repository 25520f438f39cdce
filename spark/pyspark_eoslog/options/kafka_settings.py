"""Settings of Kafka's clients that a job gives as `kafka.NAME`.

Some have no meaning for a directory and are ignored. Others would change what is read or written
and are refused.

Names are those of Kafka 4's consumer, producer and admin client configurations.
"""

from __future__ import annotations

import functools
import logging

logger = logging.getLogger(__name__)

_PREFIX = "kafka."
# Settings of the connection to brokers: none of them changes a row.
_HARMLESS = frozenset(
    """
    acks allow.auto.create.topics auto.commit.interval.ms batch.size bootstrap.controllers
    bootstrap.servers buffer.memory check.crcs client.dns.lookup client.id client.rack
    compression.gzip.level compression.lz4.level compression.type compression.zstd.level
    connections.max.idle.ms default.api.timeout.ms delivery.timeout.ms enable.idempotence
    enable.metrics.push exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes
    group.id group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms linger.ms
    max.block.ms max.in.flight.requests.per.connection max.partition.fetch.bytes
    max.poll.interval.ms max.poll.records max.request.size metadata.max.age.ms metadata.max.idle.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters
    metrics.num.samples metrics.recording.level metrics.sample.window.ms
    partition.assignment.strategy partitioner.adaptive.partitioning.enable
    partitioner.availability.timeout.ms receive.buffer.bytes reconnect.backoff.max.ms
    reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
    security.protocol security.providers send.buffer.bytes session.timeout.ms
    socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
    transaction.timeout.ms transactional.id
    """.split()
)
_HARMLESS_PREFIXES = ("sasl.", "ssl.", "security.")
# Spark's Kafka source and sink refuse most of these too.
_REFUSED = {
    "auto.offset.reset": "set the option startingOffsets",
    "enable.auto.commit": "progress is in Spark's checkpoint; commitGroup shows it to tools",
    "interceptor.classes": "there is no Kafka client that calls them",
    "key.deserializer": "keys are bytes; set keyFormat to string for text",
    "value.deserializer": "values are bytes; set valueFormat to string for text",
    "key.serializer": "serialize the column key in the DataFrame",
    "value.serializer": "serialize the column value in the DataFrame",
    "partitioner.class": "add a column 'partition'",
    "partitioner.ignore.keys": "add a column 'partition'",
}
# Settings that every job for Kafka has: a warning about them would help no user.
_SILENT = frozenset({"bootstrap.servers", "group.id"})


def is_ignored(option: str) -> bool:
    """Return whether a lower-case option is a client setting that changes no row."""
    name = option.removeprefix(_PREFIX)
    return option.startswith(_PREFIX) and (name in _HARMLESS or name.startswith(_HARMLESS_PREFIXES))


def rejection(option: str) -> str | None:
    """Return why a client setting is rejected, and what replaces it."""
    return _REFUSED.get(option.removeprefix(_PREFIX)) if option.startswith(_PREFIX) else None


def warn_ignored(options: frozenset[str]) -> None:
    """Warn about ignored settings from which a user may expect an effect."""
    told = {name for name in options if is_ignored(name)}
    _warn(frozenset(name for name in told if name.removeprefix(_PREFIX) not in _SILENT))


@functools.lru_cache(maxsize=256)  # Spark has the options of one DataFrame parsed many times
def _warn(names: frozenset[str]) -> None:
    if names:
        logger.warning("options of a network client, ignored: %s", ", ".join(sorted(names)))
