"""Keys of brokers and of Kafka's admin client that a directory does not have.

A broker's defaults of topics apply to the topics that a handle creates. Keys about networks,
security, metrics, replicas, quotas and threads have no effect.

Source: Kafka 4 AbstractKafkaConfig, AdminClientConfig, ServerTopicConfigSynonyms.
"""

from __future__ import annotations

IGNORED = frozenset(
    """
    add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms
    advertised.listeners alter.config.policy.class.name
    alter.log.dirs.replication.quota.window.num
    alter.log.dirs.replication.quota.window.size.seconds authorizer.class.name
    auto.create.topics.enable auto.leader.rebalance.enable background.threads
    bootstrap.controllers bootstrap.servers broker.heartbeat.interval.ms broker.id broker.rack
    broker.session.timeout.ms client.dns.lookup client.id client.quota.callback.class
    connection.failed.authentication.delay.ms connections.max.idle.ms connections.max.reauth.ms
    controlled.shutdown.enable cordoned.log.dirs create.topic.policy.class.name
    default.api.timeout.ms default.replication.factor
    delete.records.purgatory.purge.interval.requests early.start.listeners enable.metrics.push
    fetch.max.bytes fetch.purgatory.purge.interval.requests
    follower.fetch.last.tiered.offset.enable group.consumer.assignment.interval.ms
    group.consumer.assignors group.consumer.heartbeat.interval.ms
    group.consumer.max.assignment.interval.ms group.consumer.max.heartbeat.interval.ms
    group.consumer.max.session.timeout.ms group.consumer.max.size group.consumer.migration.policy
    group.consumer.min.assignment.interval.ms group.consumer.min.heartbeat.interval.ms
    group.consumer.min.session.timeout.ms group.consumer.regex.refresh.interval.ms
    group.consumer.session.timeout.ms group.coordinator.append.linger.ms
    group.coordinator.background.threads group.coordinator.cached.buffer.max.bytes
    group.coordinator.rebalance.protocols group.coordinator.threads
    group.initial.rebalance.delay.ms initial.broker.registration.timeout.ms
    inter.broker.listener.name leader.imbalance.check.interval.seconds
    listener.security.protocol.map listeners log.cleaner.dedupe.buffer.size
    log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size
    log.cleaner.io.max.bytes.per.second log.cleaner.threads log.dir log.dir.failure.timeout.ms
    log.dirs log.flush.scheduler.interval.ms log.flush.start.offset.checkpoint.interval.ms
    log.initial.task.delay.ms log.segment.delete.delay.ms
    max.connection.creation.rate max.connections max.connections.per.ip
    max.connections.per.ip.overrides max.incremental.fetch.session.cache.slots
    max.request.partition.size.limit min.insync.replicas node.id num.io.threads
    num.network.threads num.recovery.threads.per.data.dir num.replica.alter.log.dirs.threads
    num.replica.fetchers offsets.commit.timeout.ms offsets.load.buffer.size
    offsets.retention.check.interval.ms offsets.topic.compression.codec
    offsets.topic.replication.factor principal.builder.class process.roles
    producer.purgatory.purge.interval.requests queued.max.request.bytes queued.max.requests
    quota.window.num quota.window.size.seconds receive.buffer.bytes request.timeout.ms retries
    retry.backoff.max.ms retry.backoff.ms send.buffer.bytes server.max.startup.time.ms
    telemetry.max.bytes transaction.partition.verification.enable
    transaction.state.log.load.buffer.size transaction.state.log.min.isr
    transaction.state.log.replication.factor unclean.leader.election.enable
    unclean.leader.election.interval.ms
    """.split()
)
IGNORED_PREFIXES = (
    "ssl.", "sasl.", "security.", "socket.", "metric.", "metrics.", "kafka.metrics.",
    "controller.", "config.providers", "group.share.", "group.streams.", "share.", "remote.",
    "replica.", "replication.", "delegation.token.", "metadata.", "internal.", "unstable.",
    "reconnect.", "log.local.",
)  # fmt: skip

_TRUE: tuple[object, ...] = (None, True, "true")
_FALSE: tuple[object, ...] = (None, False, "false")
REPLACED: dict[str, tuple[tuple[object, ...], str]] = {
    "num.partitions": ((None, 1, "1"), "pass the number of partitions to create_topic"),
    "delete.topic.enable": (_TRUE, "a process that can write to the directory can delete topics"),
    "log.cleaner.enable": (_TRUE, "change cleanup.policy of the topics that must not be compacted"),
    "transaction.two.phase.commit.enable": (
        _FALSE, "call prepare_transaction, which needs no setting; other transactions time out"
    ),
}  # fmt: skip

_HOUR, _MINUTE = 3_600_000, 60_000
TOPIC_DEFAULTS: dict[str, tuple[tuple[str, int], ...]] = {
    "cleanup.policy": (("log.cleanup.policy", 1),),
    "compression.type": (("compression.type", 1),),
    "compression.gzip.level": (("compression.gzip.level", 1),),
    "compression.lz4.level": (("compression.lz4.level", 1),),
    "compression.zstd.level": (("compression.zstd.level", 1),),
    "delete.retention.ms": (("log.cleaner.delete.retention.ms", 1),),
    "flush.messages": (("log.flush.interval.messages", 1),),
    "flush.ms": (("log.flush.interval.ms", 1),),
    "index.interval.bytes": (("log.index.interval.bytes", 1),),
    "max.compaction.lag.ms": (("log.cleaner.max.compaction.lag.ms", 1),),
    "max.message.bytes": (("message.max.bytes", 1),),
    "message.timestamp.after.max.ms": (("log.message.timestamp.after.max.ms", 1),),
    "message.timestamp.before.max.ms": (("log.message.timestamp.before.max.ms", 1),),
    "message.timestamp.type": (("log.message.timestamp.type", 1),),
    "min.cleanable.dirty.ratio": (("log.cleaner.min.cleanable.ratio", 1),),
    "min.compaction.lag.ms": (("log.cleaner.min.compaction.lag.ms", 1),),
    "preallocate": (("log.preallocate", 1),),
    "retention.bytes": (("log.retention.bytes", 1),),
    "retention.ms": (
        ("log.retention.ms", 1), ("log.retention.minutes", _MINUTE), ("log.retention.hours", _HOUR),
    ),
    "segment.bytes": (("log.segment.bytes", 1),),
    "segment.index.bytes": (("log.index.size.max.bytes", 1),),
    "segment.jitter.ms": (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR)),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", _HOUR)),
}  # fmt: skip
"""A topic's key, and the broker's keys that give its default, with the unit: the first one wins."""
