"""Keys of topics, with Kafka's names; nothing is deleted by default.

Source: Kafka TopicConfig.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypedDict

from eoslog._util.arguments import shown
from eoslog.config.codec_levels import CODEC_LEVELS, CODECS, check_codec_level
from eoslog.config.parsing import (
    LONG_MAX,
    Parser,
    Settings,
    boolean,
    choice,
    integer,
    number,
    setting,
)
from eoslog.errors import ConfigError


def _level(codec: str) -> Parser:
    """A level that a codec has."""
    parse = integer(*CODEC_LEVELS[codec])

    def level(key: str, value: Any) -> int:
        found = int(parse(key, value))
        check_codec_level(key, codec, found)
        return found

    return Parser(parse.expects, level)


def _cleanup_policy(key: str, value: Any) -> str:
    words = {word.strip() for word in value.split(",")} if isinstance(value, str) else set()
    if not words or not words <= {"delete", "compact"}:
        raise ConfigError(f"{key}: expected delete, compact or compact,delete, got {shown(value)}")
    return ",".join(sorted(words))


_TIMESTAMP_TYPES = {"createtime": "CreateTime", "logappendtime": "LogAppendTime"}


def _timestamp_type(key: str, value: Any) -> str:
    found = _TIMESTAMP_TYPES.get(value.lower()) if isinstance(value, str) else None
    if found is None:
        raise ConfigError(f"{key}: expected CreateTime or LogAppendTime, got {shown(value)}")
    return found


@dataclass(frozen=True, kw_only=True)
class TopicConfig(Settings):
    """What a topic takes; -1 for no limit."""

    KIND: ClassVar[str] = "topic"
    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = ("remote.", "local.retention.", "errors.")
    # file.delete.delay.ms: readers map the bytes they read, so a file may be removed immediately.
    IGNORED: ClassVar[frozenset[str]] = frozenset(
        """
        file.delete.delay.ms
        min.insync.replicas unclean.leader.election.enable message.format.version
        message.downconversion.enable leader.replication.throttled.replicas
        follower.replication.throttled.replicas internal.segment.bytes
        """.split()
    )

    cleanup_policy: str = setting(
        "delete",
        Parser("delete, compact, or compact,delete", _cleanup_policy),
        "`delete` removes old segments by `retention.ms` and `retention.bytes`. `compact` "
        "keeps the last record of every key. Both can be combined.",
    )
    compression_type: str = setting(
        "producer",
        choice("producer", "uncompressed", *CODECS),
        "The codec in which batches are stored. producer keeps the codec of the producer.",
    )
    compression_gzip_level: int = setting(
        -1,
        _level("gzip"),
        "The level if `compression.type` is gzip: -1 (the default of zlib) or 1 to 9.",
    )
    compression_lz4_level: int = setting(
        9,
        _level("lz4"),
        "The level if `compression.type` is lz4.",
    )
    compression_zstd_level: int = setting(
        3,
        _level("zstd"),
        "The level if `compression.type` is zstd.",
    )
    delete_retention_ms: int = setting(
        86_400_000,
        integer(0, LONG_MAX),
        "How long compaction keeps tombstones and transaction markers after it has seen them "
        "first.",
        unit="ms",
    )
    flush_messages: int = setting(
        LONG_MAX,
        integer(1, LONG_MAX),
        "How many records can wait for the background flush. More are flushed immediately.",
        unit="records",
    )
    flush_ms: int = setting(
        10,
        integer(0, LONG_MAX),
        "How long a record that no producer flushes (`acks` 0 or 1) waits for the background "
        "flush. Without effect if `durability=os`.",
        unit="ms",
        kafka="Kafka leaves it to the operating system",
    )
    index_interval_bytes: int = setting(
        4_096,
        integer(),
        "The amount of data between two entries of an index.",
        unit="bytes",
    )
    max_compaction_lag_ms: int = setting(
        LONG_MAX,
        integer(1, LONG_MAX),
        "A record is compacted at the latest after this time.",
        unit="ms",
    )
    max_message_bytes: int = setting(
        1_048_588,
        integer(),
        "The largest batch that the topic accepts, after compression.",
        unit="bytes",
    )
    message_timestamp_after_max_ms: int = setting(
        LONG_MAX,
        integer(0, LONG_MAX),
        "How far a record's timestamp can be ahead of the clock. A later one raises "
        "`KafkaError` with `INVALID_TIMESTAMP`.",
        unit="ms",
        kafka="Kafka's default is 1 hour",
    )
    message_timestamp_before_max_ms: int = setting(
        LONG_MAX,
        integer(0, LONG_MAX),
        "How far a record's timestamp can be behind the clock. An earlier one raises "
        "`KafkaError` with `INVALID_TIMESTAMP`.",
        unit="ms",
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        Parser("CreateTime or LogAppendTime", _timestamp_type),
        "CreateTime keeps the producer's timestamp. LogAppendTime stores the time of the append.",
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        number(0, 1),
        "Compaction starts if this part of the log has not been compacted yet.",
    )
    min_compaction_lag_ms: int = setting(
        0,
        integer(0, LONG_MAX),
        "A record is not compacted before this time has passed.",
        unit="ms",
    )
    preallocate: bool = setting(
        False,
        boolean,
        "Zeros follow the last record of a segment that is written to, so that a flush does not "
        "store a new file size. Without effect if `durability=os`.",
        kafka="Kafka allocates a whole segment",
    )
    retention_bytes: int = setting(
        -1,
        integer(-1, LONG_MAX),
        "The oldest segments are deleted while the others have at least this size. -1: no limit.",
        unit="bytes",
    )
    retention_ms: int = setting(
        -1,
        integer(-1, LONG_MAX),
        "Segments whose newest record is older than this are deleted. -1: no limit.",
        unit="ms",
        kafka="Kafka's default is 7 days",
    )
    segment_bytes: int = setting(
        1_073_741_824,
        integer(14),
        "The size at which a new segment starts.",
        unit="bytes",
        kafka="Kafka 4 needs at least 1 MiB",
    )
    segment_index_bytes: int = setting(
        10_485_760,
        integer(4),
        "The largest size of an index. A full index starts a new segment.",
        unit="bytes",
    )
    segment_jitter_ms: int = setting(
        0,
        integer(0, LONG_MAX),
        "At most this much, chosen at random, is subtracted from `segment.ms`.",
        unit="ms",
        kafka="chosen each time a partition is opened",
    )
    segment_ms: int = setting(
        604_800_000,
        integer(1, LONG_MAX),
        "A new segment starts if the first record of the current one is older than this.",
        unit="ms",
    )

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


TopicOptions = TypedDict(
    "TopicOptions",
    {
        "cleanup.policy": Literal["delete", "compact", "compact,delete", "delete,compact"],
        "compression.type": Literal[
            "producer", "uncompressed", "none", "gzip", "snappy", "lz4", "zstd"
        ],
        "compression.gzip.level": int,
        "compression.lz4.level": int,
        "compression.zstd.level": int,
        "delete.retention.ms": int,
        "flush.messages": int,
        "flush.ms": int,
        "index.interval.bytes": int,
        "max.compaction.lag.ms": int,
        "max.message.bytes": int,
        "message.timestamp.after.max.ms": int,
        "message.timestamp.before.max.ms": int,
        "message.timestamp.type": Literal["CreateTime", "LogAppendTime"],
        "min.cleanable.dirty.ratio": float,
        "min.compaction.lag.ms": int,
        "preallocate": bool,
        "retention.bytes": int,
        "retention.ms": int,
        "segment.bytes": int,
        "segment.index.bytes": int,
        "segment.jitter.ms": int,
        "segment.ms": int,
    },
    total=False,
)
"""The configuration of a topic, for `Log.create_topic` and `Log.alter_topic`: dotted keys."""

TopicChanges = TypedDict(
    "TopicChanges",
    {
        "cleanup.policy": Literal["delete", "compact", "compact,delete", "delete,compact"] | None,
        "compression.type": Literal[
            "producer", "uncompressed", "none", "gzip", "snappy", "lz4", "zstd"
        ]
        | None,
        "compression.gzip.level": int | None,
        "compression.lz4.level": int | None,
        "compression.zstd.level": int | None,
        "delete.retention.ms": int | None,
        "flush.messages": int | None,
        "flush.ms": int | None,
        "index.interval.bytes": int | None,
        "max.compaction.lag.ms": int | None,
        "max.message.bytes": int | None,
        "message.timestamp.after.max.ms": int | None,
        "message.timestamp.before.max.ms": int | None,
        "message.timestamp.type": Literal["CreateTime", "LogAppendTime"] | None,
        "min.cleanable.dirty.ratio": float | None,
        "min.compaction.lag.ms": int | None,
        "preallocate": bool | None,
        "retention.bytes": int | None,
        "retention.ms": int | None,
        "segment.bytes": int | None,
        "segment.index.bytes": int | None,
        "segment.jitter.ms": int | None,
        "segment.ms": int | None,
    },
    total=False,
)
"""Changes of the configuration of a topic, for `Log.alter_topic`: None resets a key."""
