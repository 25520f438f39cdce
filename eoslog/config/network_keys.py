"""Keys of Kafka's clients for a network: accepted, without effect."""

from __future__ import annotations

IGNORED = frozenset(
    """
    bootstrap.servers metadata.broker.list bootstrap.controllers client.dns.lookup client.rack
    send.buffer.bytes receive.buffer.bytes connections.max.idle.ms metadata.max.age.ms
    metadata.max.idle.ms metadata.recovery.strategy metadata.recovery.rebootstrap.trigger.ms
    enable.metrics.push auto.include.jmx.reporter allow.auto.create.topics
    retry.backoff.max.ms api.version.request api.versions.request log.connection.close
    partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
    interceptor.classes
    statistics.interval.ms debug group.protocol group.remote.assignor
    """.split()
)
IGNORED_PREFIXES = (
    "ssl.", "sasl.", "security.", "socket.", "reconnect.", "metric.", "metrics.", "broker.",
    "topic.metadata.", "config.providers",
)  # fmt: skip
