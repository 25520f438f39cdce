"""Keys of a log directory: coordinator timers, sizes of its internal topics.

Source: Kafka KafkaConfig, TransactionLogConfig, GroupCoordinatorConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from eoslog.config import broker_keys as config_broker
from eoslog.config import librdkafka as config_librdkafka
from eoslog.config.parsing import INT_MAX, LONG_MAX, Settings, choice, integer, setting
from eoslog.config.producer_keys import TRANSACTION_MAX_TIMEOUT_MS
from eoslog.config.topic_keys import TopicConfig


def _whole(key: str, value: Any, unit: int) -> int:
    """Hours or minutes in ms; any below 0 is -1, no limit."""
    found = int(integer(-1)(key, value))
    return found * unit if found >= 0 else -1


@dataclass(frozen=True, kw_only=True)
class LogConfig(Settings):
    """Settings of a directory: coordinator timers, sizes of its internal topics."""

    KIND: ClassVar[str] = "log"
    IGNORED: ClassVar[frozenset[str]] = config_broker.IGNORED
    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = config_broker.IGNORED_PREFIXES
    REPLACED: ClassVar[config_librdkafka.Replaced] = config_broker.REPLACED
    KEYWORDS: ClassVar[tuple[str, ...]] = ("create", "read_only", "durability", "mode")

    durability: str = setting(
        "strict",
        choice("strict", "os"),
        "strict: acknowledged writes are on the disk. os: they are in the page cache and can "
        "be lost with the machine. Set when the log is created, and stored.",
        kafka="eoslog only",
    )
    transaction_state_log_num_partitions: int = setting(
        50,
        integer(1, 1000),
        "The number of partitions of `__transaction_state`. Set when the log is created.",
    )
    offsets_topic_num_partitions: int = setting(
        50,
        integer(1, 1000),
        "The number of partitions of `__consumer_offsets`. Set when the log is created.",
    )
    # Not a broker's 100 MiB: a process that opens a partition folds all uncompacted records, about
    # 3,000 of small transactions in 1 MiB. Not less: decisions carry up to tens of KiB, and each
    # new segment costs five flushes.
    transaction_state_log_segment_bytes: int = setting(
        1_048_576,
        integer(14),
        "The segment size of `__transaction_state`. Small segments make opening fast.",
        unit="bytes",
        kafka="Kafka's default is 100 MiB",
    )
    offsets_topic_segment_bytes: int = setting(
        262_144,
        integer(14),
        "The segment size of `__consumer_offsets`. Small segments make opening fast.",
        unit="bytes",
        kafka="Kafka's default is 100 MiB",
    )
    transaction_max_timeout_ms: int = setting(
        TRANSACTION_MAX_TIMEOUT_MS,
        integer(1),
        "The largest `transaction.timeout.ms` that a producer can set.",
        unit="ms",
    )
    outcome_retention_ms: int = setting(
        604_800_000,
        integer(-1),
        "How long the outcome of a prepared transaction is kept after its decision. -1: forever.",
        unit="ms",
        kafka="eoslog only",
    )
    prepared_inline_max_ms: int = setting(
        300_000,
        integer(-1),
        "How long an inline prepared transaction can block readers. Then its records are moved "
        "aside until its decision. -1: forever.",
        unit="ms",
        kafka="eoslog only",
    )
    pending_max_count: int = setting(
        10_000_000,
        integer(1),
        "The number of undecided prepared transactions from which on a staged one is rejected.",
        kafka="eoslog only",
    )
    pending_max_bytes: int = setting(
        1 << 40,
        integer(1, 1 << 62),
        "The largest total size of the staged records of prepared transactions that are not "
        "decided.",
        unit="bytes",
        kafka="eoslog only",
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000,
        integer(1),
        "A transactional id that was not used for this time is removed.",
        unit="ms",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        10_000,
        integer(1),
        "The time between two searches for transactions that timed out.",
        unit="ms",
        kafka="if not set, deadlines are also checked every second",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000,
        integer(1),
        "The time between two searches for expired transactional ids.",
        unit="ms",
    )
    producer_id_expiration_ms: int = setting(
        86_400_000,
        integer(1),
        "A producer that wrote nothing for this time is expired: a partition no longer "
        "detects its duplicates.",
        unit="ms",
    )
    producer_id_expiration_check_interval_ms: int = setting(
        600_000,
        integer(1),
        "The time between two searches for expired producers.",
        unit="ms",
    )
    publishing_id_expiration_ms: int = setting(
        -1,
        integer(-1, LONG_MAX),
        "The last publishing id of a producer name in a partition is forgotten after this time "
        "without a new id. Later repeats are then stored again. -1: never.",
        unit="ms",
        kafka="eoslog only",
    )
    offsets_retention_minutes: int = setting(
        -1,
        integer(-1),
        "How long the offsets of an empty group are kept. -1: forever.",
        unit="min",
        kafka="Kafka's default is 7 days",
    )
    offset_metadata_max_bytes: int = setting(
        4_096,
        integer(),
        "The longest metadata text of a committed offset.",
        unit="characters",
        kafka="applies to the process that commits",
    )
    group_min_session_timeout_ms: int = setting(
        1,
        integer(1),
        "The smallest `session.timeout.ms` that a member can have.",
        unit="ms",
        kafka="Kafka's default is 6000; applies to the process that joins",
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000,
        integer(1),
        "The largest `session.timeout.ms` that a member can have.",
        unit="ms",
        kafka="applies to the process that joins",
    )
    group_max_size: int = setting(
        INT_MAX,
        integer(1),
        "The most members that a group can have.",
        kafka="applies to the process that joins",
    )
    log_retention_check_interval_ms: int = setting(
        300_000,
        integer(1),
        "The time between two searches for segments that can be deleted.",
        unit="ms",
    )
    log_cleaner_backoff_ms: int = setting(
        15_000,
        integer(1),
        "The time between two searches for partitions to compact.",
        unit="ms",
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000,
        integer(1),
        "The time between two writes of the recovery points. Recovery after a crash starts at "
        "them.",
        unit="ms",
    )
    topic_defaults: Mapping[str, Any] = field(default_factory=dict)
    """A topic's keys, by what was given under a broker's names (`config_broker`)."""

    @classmethod
    def of(cls, config: Mapping[str, Any] | None = None, /, **keywords: Any) -> Self:
        """As `Settings.of`; a broker's defaults of topics are checked as a topic's keys."""
        if config is not None and not isinstance(config, Mapping):
            return super().of(config)
        given = {**(config or {}), **keywords}
        spelt = {cls._name(key): key for key in given}
        found = {}
        for key, names in config_broker.TOPIC_DEFAULTS.items():
            for name, unit in reversed(names):
                value = given.pop(spelt.get(name, ""), None)
                if value is not None:
                    parse = TopicConfig.parsers()[key]
                    found[key] = parse(name, value) if unit == 1 else _whole(name, value, unit)
        made = super().of(given)
        if not found:
            return made
        return replace(made, topic_defaults=found, given=made.given | {"topic.defaults"})

    def for_topic(self, config: Any) -> Any:
        """Return a new topic's configuration, with these defaults for missing values."""
        if not self.topic_defaults or not isinstance(config, Mapping | None):
            return config
        return {**self.topic_defaults, **(config or {})}
