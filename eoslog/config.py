"""Configuration: Kafka's keys and defaults as frozen dataclasses.

What differs from Kafka's defaults: `isolation.level=read_committed`, `retention.ms=-1`,
`offsets.retention.minutes=-1` (nothing is deleted unasked), `flush.ms=10`.

Source: Kafka ProducerConfig, ConsumerConfig, TopicConfig, KafkaConfig; KIP-98, KIP-679.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from eoslog import config_librdkafka
from eoslog.config_parsing import (
    INT_MAX,
    LONG_MAX,
    Settings,
    any_text,
    boolean,
    choice,
    integer,
    number,
    optional,
    path,
    setting,
    text,
)
from eoslog.errors import ConfigError, InvalidTransactionTimeout
from eoslog.serializers import Deserializer, Serializer, deserializer, serializer

__all__ = ["ConsumerConfig", "LogConfig", "ProducerConfig", "TopicConfig"]

ACKS_ALL = -1
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By id in a batch's attributes."""
CODEC_LEVELS = {"gzip": (-1, 9), "lz4": (1, 17), "zstd": (-131_072, 22)}
"""Smallest and largest level; gzip has no 0, snappy none at all."""
TRANSACTION_MAX_TIMEOUT_MS = 900_000


def check_codec_level(key: str, codec: str, level: int) -> None:
    """Raises ConfigError, naming `key`, for a level that the codec does not have."""
    lowest, highest = CODEC_LEVELS.get(codec, (level, level))
    if not lowest <= level <= highest or (codec == "gzip" and level == 0):
        levels = "-1 or 1..9" if codec == "gzip" else f"{lowest}..{highest}"
        raise ConfigError(f"{key}: expected {levels} for {codec}, got {level}")


_NETWORK = frozenset(
    """
    bootstrap.servers metadata.broker.list bootstrap.controllers client.dns.lookup client.rack
    send.buffer.bytes receive.buffer.bytes connections.max.idle.ms metadata.max.age.ms
    metadata.max.idle.ms metadata.recovery.strategy metadata.recovery.rebootstrap.trigger.ms
    enable.metrics.push auto.include.jmx.reporter allow.auto.create.topics
    retry.backoff.max.ms api.version.request api.versions.request log.connection.close
    partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
    statistics.interval.ms debug group.protocol group.remote.assignor
    """.split()
)
_NETWORK_PREFIXES = (
    "ssl.", "sasl.", "security.", "socket.", "reconnect.", "metric.", "metrics.", "broker.",
    "topic.metadata.", "config.providers",
)  # fmt: skip


def _acks(key: str, value: Any) -> int:
    if value in ("all", "ALL"):
        return ACKS_ALL
    if not isinstance(value, bool) and str(value) in ("-1", "0", "1"):
        return int(value)
    raise ConfigError(f"{key}: expected 0, 1 or all, got {value!r}")


_PARTITIONERS: dict[str, str | None] = {
    "default": None,
    "builtin": None,
    "murmur2": None,
    "murmur2_random": None,
    "sticky": "sticky",
    "uniformsticky": "sticky",
    "round_robin": "round_robin",
    "roundrobin": "round_robin",
    "random": "random",
}


def _partitioner(key: str, value: Any) -> Any:
    if value is None or callable(value):
        return value
    name = text(key, value).rsplit(".", 1)[-1].removesuffix("Partitioner").lower()
    if name not in _PARTITIONERS:
        raise ConfigError(
            f"{key}: expected a callable or one of murmur2, sticky, round_robin, random, "
            f"got {value!r}"
        )
    return _PARTITIONERS[name]


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(Settings):
    """What a producer takes. `acks` is 0, 1 or -1 (all); serializers are callables or None."""

    KIND: ClassVar[str] = "producer"
    IGNORED: ClassVar[frozenset[str]] = _NETWORK | config_librdkafka.PRODUCER
    REPLACED: ClassVar[config_librdkafka.Replaced] = config_librdkafka.PRODUCER_REPLACED
    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = _NETWORK_PREFIXES
    DEPRECATED: ClassVar[dict[str, str]] = {"transaction.id": "transactional.id"}
    ALIASES: ClassVar[dict[str, str]] = {
        "max.inflight": "max.in.flight.requests.per.connection",
        "max.in.flight": "max.in.flight.requests.per.connection",
        "max.inflight.requests.per.connection": "max.in.flight.requests.per.connection",
        "max.inflight.requests": "max.in.flight.requests.per.connection",
        "compression.codec": "compression.type",
        "request.required.acks": "acks",
        "message.timeout.ms": "delivery.timeout.ms",
        "queue.buffering.max.ms": "linger.ms",
        "message.send.max.retries": "retries",
        "message.max.bytes": "max.request.size",
        "partitioner": "partitioner.class",
        "path": "log.dir",
        "create": "log.create",
    }

    log_dir: str | None = setting(None, optional(path))
    log_create: bool = setting(True, boolean)  # make the directory a log where there is none
    client_id: str = setting("", any_text)
    acks: int = setting(ACKS_ALL, _acks)
    enable_idempotence: bool = setting(True, boolean)
    retries: int = setting(INT_MAX, integer())
    max_in_flight_requests_per_connection: int = setting(5, integer(1))
    delivery_timeout_ms: int = setting(120_000, integer())
    request_timeout_ms: int = setting(30_000, integer())
    linger_ms: float = setting(5, number(0, INT_MAX))
    batch_size: int = setting(16_384, integer())
    buffer_memory: int = setting(33_554_432, integer(0, LONG_MAX))
    max_block_ms: int = setting(60_000, integer(0, LONG_MAX))
    max_request_size: int = setting(1_048_576, integer())
    retry_backoff_ms: int = setting(100, integer(0, LONG_MAX))
    compression_type: str = setting("none", choice(*CODECS, uncompressed="none"))
    compression_level: int | None = setting(None, optional(integer(-131_072, 22)))
    compression_gzip_level: int = setting(-1, integer(*CODEC_LEVELS["gzip"]))
    compression_lz4_level: int = setting(9, integer(*CODEC_LEVELS["lz4"]))
    compression_zstd_level: int = setting(3, integer(*CODEC_LEVELS["zstd"]))
    transactional_id: str | None = setting(None, optional(text))
    transaction_timeout_ms: int = setting(60_000, integer(-INT_MAX - 1))
    partitioner_class: str | Callable[..., int] | None = setting(None, _partitioner)
    partitioner_ignore_keys: bool = setting(False, boolean)
    key_serializer: Serializer | None = setting(None, serializer)
    value_serializer: Serializer | None = setting(None, serializer)
    strict_duplicates: bool = setting(False, boolean)
    eoslog_test_lose_acks: float = setting(0, number(0, 1))  # probability; for tests and the demo

    @classmethod
    def resolve(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        """Kafka's rules between acks, retries, in-flight, idempotence and transactions."""

        def value(name: str) -> Any:
            return values.get(name, cls.default(name))

        timeout = value("transaction_timeout_ms")
        if not 1 <= timeout <= TRANSACTION_MAX_TIMEOUT_MS:
            raise InvalidTransactionTimeout(
                f"transaction.timeout.ms: expected 1..{TRANSACTION_MAX_TIMEOUT_MS} "
                f"(transaction.max.timeout.ms), got {timeout}"
            )
        transactional = value("transactional_id") is not None
        if transactional and not value("enable_idempotence"):
            raise ConfigError(
                f"transactional.id={values['transactional_id']!r} needs idempotence, "
                "but enable.idempotence=False"
            )
        wanted = transactional or (values.get("enable_idempotence") is True)
        reason = "transactional.id" if transactional else "enable.idempotence=True"
        conflict = cls._idempotence_conflict(value, reason if wanted else "idempotence")
        in_flight = value("max_in_flight_requests_per_connection")
        if value("enable_idempotence") and conflict is not None:
            # Kafka turns idempotence off quietly when only acks or retries speak against it.
            if wanted or (in_flight > 5 and value("acks") == ACKS_ALL and value("retries") > 0):
                raise ConfigError(conflict)
            values["enable_idempotence"] = False
        cls._fit_delivery_timeout(values, given, value)
        codec, level = value("compression_type"), value("compression_level")
        key = "compression.level"
        if level is None and codec in CODEC_LEVELS:
            key = f"compression.{codec}.level"
            level = value(key.replace(".", "_"))
        if level is not None:
            check_codec_level(key, codec, level)
        return values

    @staticmethod
    def _idempotence_conflict(value: Callable[[str], Any], reason: str) -> str | None:
        if value("acks") != ACKS_ALL:
            return f"{reason} needs acks=all, but acks={value('acks')}"
        if value("retries") == 0:
            return f"{reason} needs retries > 0, but retries=0"
        in_flight = value("max_in_flight_requests_per_connection")
        if in_flight > 5:
            return (
                f"{reason} needs max.in.flight.requests.per.connection <= 5 "
                f"(a partition remembers five batches), but it is {in_flight}"
            )
        return None

    @staticmethod
    def _fit_delivery_timeout(
        values: dict[str, Any], given: frozenset[str], value: Callable[[str], Any]
    ) -> None:
        least = int(min(value("linger_ms") + value("request_timeout_ms"), INT_MAX))
        if value("delivery_timeout_ms") >= least:
            return
        if "delivery.timeout.ms" not in given:
            values["delivery_timeout_ms"] = least
        elif "request.timeout.ms" in given or value("delivery_timeout_ms") < value("linger_ms"):
            raise ConfigError(
                f"delivery.timeout.ms={value('delivery_timeout_ms')} is less than linger.ms + "
                f"request.timeout.ms = {least}"
            )
        else:
            # No request crosses a network here, so its default must not forbid short deadlines.
            left = value("delivery_timeout_ms") - value("linger_ms")
            values["request_timeout_ms"] = int(left)

    @property
    def codec_level(self) -> int | None:
        """The level for `compression_type`, None for the codec's own default."""
        if self.compression_level is not None:
            return self.compression_level
        key = f"compression.{self.compression_type}.level"
        return getattr(self, key.replace(".", "_")) if key in self.given else None


_ASSIGNORS = {
    "range": "range",
    "roundrobin": "roundrobin",
    "round-robin": "roundrobin",
    "sticky": "sticky",
    "cooperativesticky": "cooperative-sticky",
    "cooperative-sticky": "cooperative-sticky",
    "uniform": "cooperative-sticky",
}


def _assignors(key: str, value: Any) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    try:
        names = [text(key, item).strip() for item in items]
    except TypeError:
        names = []
    found = [
        _ASSIGNORS.get(name.rsplit(".", 1)[-1].removesuffix("Assignor").lower()) for name in names
    ]
    if not found or None in found:
        raise ConfigError(
            f"{key}: expected range, roundrobin, sticky, cooperative-sticky or a list of them, "
            f"got {value!r}"
        )
    return tuple(name for name in found if name is not None)


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(Settings):
    """What a consumer takes. `processing_guarantee` has one spelling of exactly-once left."""

    KIND: ClassVar[str] = "consumer"
    # No request is sent that could wait, time out or be sent again: a fetch takes what is there,
    # and `poll` says how long it waits. Patterns never match internal topics.
    REPLACED: ClassVar[config_librdkafka.Replaced] = config_librdkafka.CONSUMER_REPLACED
    IGNORED: ClassVar[frozenset[str]] = (
        _NETWORK
        | config_librdkafka.CONSUMER
        | frozenset(
            """
        fetch.min.bytes fetch.max.wait.ms request.timeout.ms retry.backoff.ms
        exclude.internal.topics
        """.split()
        )
    )
    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = _NETWORK_PREFIXES
    ALIASES: ClassVar[dict[str, str]] = {
        "auto.commit": "enable.auto.commit",
        "auto.commit.enable": "enable.auto.commit",
        "path": "log.dir",
        "create": "log.create",
        "fetch.wait.max.ms": "fetch.max.wait.ms",
        "max.partition.fetch.size": "max.partition.fetch.bytes",
        "fetch.message.max.bytes": "max.partition.fetch.bytes",
    }

    log_dir: str | None = setting(None, optional(path))
    log_create: bool = setting(True, boolean)  # make the directory a log where there is none
    client_id: str = setting("", any_text)
    group_id: str | None = setting(None, optional(text))
    group_instance_id: str | None = setting(None, optional(text))
    isolation_level: str = setting("read_committed", choice("read_committed", "read_uncommitted"))
    auto_offset_reset: str = setting(
        "latest",
        choice("earliest", "latest", "none", smallest="earliest", beginning="earliest",
               largest="latest", end="latest", error="none"),
    )  # fmt: skip
    enable_auto_commit: bool = setting(True, boolean)
    auto_commit_interval_ms: int = setting(5_000, integer())
    auto_commit_when: str = setting("after", choice("after", "before"))
    processing_guarantee: str | None = setting(
        None,
        optional(
            choice("at_most_once", "at_least_once", "exactly_once",
                   exactly_once_v2="exactly_once", exactly_once_beta="exactly_once",
                   exact_once="exactly_once")
        ),
    )  # fmt: skip
    check_crcs: bool = setting(True, boolean)
    fetch_max_bytes: int = setting(52_428_800, integer())
    max_partition_fetch_bytes: int = setting(1_048_576, integer())
    max_poll_records: int = setting(500, integer(1))
    max_poll_interval_ms: int = setting(300_000, integer(1))
    session_timeout_ms: int = setting(45_000, integer(1))
    heartbeat_interval_ms: int = setting(3_000, integer(1))
    partition_assignment_strategy: tuple[str, ...] = setting(
        ("range", "cooperative-sticky"), _assignors
    )
    default_api_timeout_ms: int = setting(60_000, integer())
    key_deserializer: Deserializer | None = setting(None, deserializer)
    value_deserializer: Deserializer | None = setting(None, deserializer)

    @classmethod
    def resolve(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        """The rules between group, auto-commit, guarantee and timeouts."""
        asked = values.get("enable_auto_commit")
        guarantee = values.get("processing_guarantee")
        if values.get("group_id") is None:
            if asked:
                raise ConfigError("enable.auto.commit=True needs a group.id")
            values["enable_auto_commit"] = False
        elif guarantee == "exactly_once":
            if asked:
                raise ConfigError(
                    "processing.guarantee=exactly_once commits offsets in the transaction, "
                    "but enable.auto.commit=True"
                )
            values["enable_auto_commit"] = False
        elif guarantee == "at_most_once":
            if asked is False:
                raise ConfigError(
                    "processing.guarantee=at_most_once commits before it hands records out, "
                    "but enable.auto.commit=False"
                )
            values["auto_commit_when"] = "before"
        cls._fit_heartbeat(values, given)
        return values

    @classmethod
    def _fit_heartbeat(cls, values: dict[str, Any], given: frozenset[str]) -> None:
        session = values.get("session_timeout_ms", cls.default("session_timeout_ms"))
        heartbeat = values.get("heartbeat_interval_ms", cls.default("heartbeat_interval_ms"))
        if heartbeat < session:
            return
        if "heartbeat.interval.ms" in given:
            raise ConfigError(
                f"heartbeat.interval.ms={heartbeat} must be less than session.timeout.ms={session}"
            )
        values["heartbeat_interval_ms"] = max(1, session // 3)

    @property
    def exactly_once(self) -> bool:
        """Whether the consumer must be bound to a transactional producer."""
        return self.processing_guarantee == "exactly_once"


def _cleanup_policy(key: str, value: Any) -> str:
    words = {word.strip() for word in value.split(",")} if isinstance(value, str) else set()
    if not words or not words <= {"delete", "compact"}:
        raise ConfigError(f"{key}: expected delete, compact or compact,delete, got {value!r}")
    return ",".join(sorted(words))


_TIMESTAMP_TYPES = {"createtime": "CreateTime", "logappendtime": "LogAppendTime"}


def _timestamp_type(key: str, value: Any) -> str:
    found = _TIMESTAMP_TYPES.get(value.lower()) if isinstance(value, str) else None
    if found is None:
        raise ConfigError(f"{key}: expected CreateTime or LogAppendTime, got {value!r}")
    return found


@dataclass(frozen=True, kw_only=True)
class TopicConfig(Settings):
    """What a topic takes; -1 for no limit."""

    KIND: ClassVar[str] = "topic"
    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = ("remote.", "local.retention.", "errors.")
    # file.delete.delay.ms: readers map what they read, so a file may go at once. preallocate: a
    # segment ends where what is published ends, by which recovery knows it.
    IGNORED: ClassVar[frozenset[str]] = frozenset(
        """
        file.delete.delay.ms preallocate
        min.insync.replicas unclean.leader.election.enable message.format.version
        message.downconversion.enable leader.replication.throttled.replicas
        follower.replication.throttled.replicas
        """.split()
    )

    cleanup_policy: str = setting("delete", _cleanup_policy)
    compression_type: str = setting("producer", choice("producer", "uncompressed", *CODECS))
    delete_retention_ms: int = setting(86_400_000, integer(0, LONG_MAX))
    flush_messages: int = setting(LONG_MAX, integer(1, LONG_MAX))
    flush_ms: int = setting(10, integer(0, LONG_MAX))
    index_interval_bytes: int = setting(4_096, integer())
    max_compaction_lag_ms: int = setting(LONG_MAX, integer(1, LONG_MAX))
    max_message_bytes: int = setting(1_048_588, integer())
    message_timestamp_after_max_ms: int = setting(LONG_MAX, integer(0, LONG_MAX))
    message_timestamp_before_max_ms: int = setting(LONG_MAX, integer(0, LONG_MAX))
    message_timestamp_type: str = setting("CreateTime", _timestamp_type)
    min_cleanable_dirty_ratio: float = setting(0.5, number(0, 1))
    min_compaction_lag_ms: int = setting(0, integer(0, LONG_MAX))
    retention_bytes: int = setting(-1, integer(-1, LONG_MAX))
    retention_ms: int = setting(-1, integer(-1, LONG_MAX))
    segment_bytes: int = setting(1_073_741_824, integer(14))
    segment_index_bytes: int = setting(10_485_760, integer(4))
    segment_jitter_ms: int = setting(0, integer(0, LONG_MAX))
    segment_ms: int = setting(604_800_000, integer(1, LONG_MAX))

    @classmethod
    def resolve(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        """The compaction lags must leave room between them."""
        low = values.get("min_compaction_lag_ms", 0)
        high = values.get("max_compaction_lag_ms", LONG_MAX)
        if low > high:
            raise ConfigError(
                f"min.compaction.lag.ms={low} is greater than max.compaction.lag.ms={high}"
            )
        return values


@dataclass(frozen=True, kw_only=True)
class LogConfig(Settings):
    """What belongs to a directory: timers of its coordinators, sizes of its internal topics."""

    KIND: ClassVar[str] = "log"

    durability: str = setting("strict", choice("strict", "os"))
    transaction_state_log_num_partitions: int = setting(50, integer(1, 1000))
    offsets_topic_num_partitions: int = setting(50, integer(1, 1000))
    # Not a broker's 100 MiB: whoever opens one of their partitions folds what is not compacted yet.
    transaction_state_log_segment_bytes: int = setting(262_144, integer(14))
    offsets_topic_segment_bytes: int = setting(262_144, integer(14))
    transaction_max_timeout_ms: int = setting(TRANSACTION_MAX_TIMEOUT_MS, integer(1))
    transactional_id_expiration_ms: int = setting(604_800_000, integer(1))
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(10_000, integer(1))
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(3_600_000, integer(1))
    producer_id_expiration_ms: int = setting(86_400_000, integer(1))
    producer_id_expiration_check_interval_ms: int = setting(600_000, integer(1))
    offsets_retention_minutes: int = setting(-1, integer(-1))
    offset_metadata_max_bytes: int = setting(4_096, integer())
    group_min_session_timeout_ms: int = setting(1, integer(1))
    group_max_session_timeout_ms: int = setting(1_800_000, integer(1))
    group_max_size: int = setting(INT_MAX, integer(1))
    log_retention_check_interval_ms: int = setting(300_000, integer(1))
    log_cleaner_backoff_ms: int = setting(15_000, integer(1))
    log_flush_offset_checkpoint_interval_ms: int = setting(60_000, integer(1))
