"""Keys of producers, with Kafka's names and defaults.

Source: Kafka ProducerConfig; KIP-98, KIP-679.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from eoslog._util.arguments import shown
from eoslog.config import broker_keys as config_broker
from eoslog.config import librdkafka as config_librdkafka
from eoslog.config import network_keys as config_network
from eoslog.config.codec_levels import CODEC_LEVELS, CODECS, check_codec_level
from eoslog.config.parsing import (
    INT_MAX,
    LONG_MAX,
    SERIALIZERS,
    Parser,
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
from eoslog.model import NAMED_TRANSACTIONS
from eoslog.serializers import Serializer, serializer

ACKS_ALL = -1
TRANSACTION_MAX_TIMEOUT_MS = 900_000
"""The default of a log, which limits its producers."""


def _acks(key: str, value: Any) -> int:
    if value in ("all", "ALL"):
        return ACKS_ALL
    if not isinstance(value, bool) and str(value) in ("-1", "0", "1"):
        return int(value)
    raise ConfigError(f"{key}: expected 0, 1 or all, got {shown(value)}")


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
            f"got {shown(value)}"
        )
    return _PARTITIONERS[name]


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(Settings):
    """Settings of a producer; `acks` is 0, 1 or -1, a serializer callable or None."""

    KIND: ClassVar[str] = "producer"
    IGNORED: ClassVar[frozenset[str]] = config_network.IGNORED | config_librdkafka.PRODUCER
    REPLACED: ClassVar[config_librdkafka.Replaced] = {
        **config_librdkafka.PRODUCER_REPLACED,
        "transaction.two.phase.commit.enable": config_broker.REPLACED[
            "transaction.two.phase.commit.enable"
        ],
    }
    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = config_network.IGNORED_PREFIXES
    DEPRECATED: ClassVar[dict[str, str]] = {"transaction.id": "transactional.id"}
    SHORT: ClassVar[frozenset[str]] = frozenset({"key", "value"})
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
        "key": "key.serializer",
        "value": "value.serializer",
    }

    log_dir: str | None = setting(
        None,
        optional(path),
        "The directory of the log. Required for `Producer(...)`; `log.producer()` sets it.",
        kafka="eoslog only",
    )
    log_create: bool = setting(
        True,
        boolean,
        "Whether to create a log in `log.dir` if there is none.",
        kafka="eoslog only",
    )
    client_id: str = setting(
        "",
        any_text,
        "A name for the producer. It appears in the name of the sender thread.",
    )
    acks: int = setting(
        ACKS_ALL,
        Parser("0, 1 or all", _acks),
        "What a write waits for. 0: nothing. 1: the operating system has the record, so it "
        "survives a crash of the process. all: the record is on the disk, so it survives "
        "power loss. With `durability=os`, all means the same as 1.",
        kafka="`all` waits for the disk instead of replicas",
    )
    enable_idempotence: bool = setting(
        True,
        boolean,
        "Whether retries store each record once and in order. Needs `acks=all`, `retries` "
        "above 0 and at most 5 batches in flight. If not set, conflicting `acks` or `retries` "
        "turn it off.",
    )
    retries: int = setting(
        INT_MAX,
        integer(),
        "How many times a batch is appended again after a retriable error, within "
        "`delivery.timeout.ms`.",
    )
    max_in_flight_requests_per_connection: int = setting(
        5,
        integer(1),
        "Must be at most 5 with idempotence. The batches of a partition are appended one "
        "after another.",
        kafka="checked, without another effect",
    )
    delivery_timeout_ms: int = setting(
        120_000,
        integer(),
        "The longest time from `produce` to the report of success or failure. Must be at "
        "least `linger.ms` + `request.timeout.ms`.",
        unit="ms",
    )
    request_timeout_ms: int = setting(
        30_000,
        integer(),
        "The longest time that one append waits for the partition's lock.",
        unit="ms",
        kafka="the wait for a lock, not for a response",
    )
    linger_ms: float = setting(
        5,
        number(0, INT_MAX),
        "How long a record waits in the buffer for others before its batch is written.",
        unit="ms",
    )
    batch_size: int = setting(
        16_384,
        integer(),
        "The size at which a batch is full. A larger record gets a batch of its own.",
        unit="bytes",
    )
    buffer_memory: int = setting(
        33_554_432,
        integer(0, LONG_MAX),
        "How many bytes of records can wait in the buffer. If it is full, `produce` waits.",
        unit="bytes",
    )
    max_block_ms: int = setting(
        60_000,
        integer(0, LONG_MAX),
        "How long `produce` waits for room in the buffer, and `init_transactions` for the "
        "coordinator.",
        unit="ms",
    )
    max_request_size: int = setting(
        1_048_576,
        integer(),
        "The largest record that the producer accepts, at most 256 MiB with a "
        "`compression.type`. The topic's `max.message.bytes` applies to its batches too.",
        unit="bytes",
    )
    retry_backoff_ms: int = setting(
        100,
        integer(0, LONG_MAX),
        "The pause before the first retry. It doubles with each retry, up to 1 s.",
        unit="ms",
    )
    compression_type: str = setting(
        "none",
        choice(*CODECS, uncompressed="none"),
        "The codec of the batches. `snappy`, `lz4` and `zstd` need the extra `codecs`.",
    )
    compression_level: int | None = setting(
        None,
        optional(integer(-131_072, 22)),
        "The level for `compression.type`. Overrides the three keys below. None means the "
        "codec's default.",
        kafka="eoslog and librdkafka only",
    )
    compression_gzip_level: int = setting(
        -1,
        integer(*CODEC_LEVELS["gzip"]),
        "The level for gzip: -1 (the default of zlib) or 1 to 9.",
    )
    compression_lz4_level: int = setting(
        9,
        integer(*CODEC_LEVELS["lz4"]),
        "The level for lz4.",
    )
    compression_zstd_level: int = setting(
        3,
        integer(*CODEC_LEVELS["zstd"]),
        "The level for zstd.",
    )
    transactional_id: str | None = setting(
        None,
        optional(text),
        "The name that identifies this producer across restarts. Setting it enables transactions.",
    )
    name: str | None = setting(
        None,
        optional(text),
        "The name that owns the publishing ids of this producer. A named producer stores a record "
        "with a publishing id only if the id is above the last one of the name in the partition. "
        "It has a transactional id of its own.",
        kafka="eoslog only",
    )
    strict_ids: bool = setting(
        False,
        boolean,
        "Whether a publishing id that is not above the last one raises `PublishingIdRegression`. "
        "Otherwise the record is reported as a duplicate. Needs `name`.",
        kafka="eoslog only",
    )
    transaction_timeout_ms: int = setting(
        60_000,
        Parser(f"an integer in 1..{INT_MAX}", integer(-INT_MAX - 1).parse),
        "How long a transaction can stay open before it is aborted. At most "
        "`transaction.max.timeout.ms` of the log.",
        unit="ms",
    )
    partitioner_class: str | Callable[..., int] | None = setting(
        None,
        Parser("a callable, or murmur2, sticky, round_robin or random", _partitioner),
        "How a record without a partition gets one. None: records with a key by murmur2, as "
        "in Java; records without a key stay on one partition until a batch is full. A "
        "callable gets topic, key, value and the number of partitions.",
        kafka="Java classes are accepted by name; others raise ConfigError",
    )
    partitioner_ignore_keys: bool = setting(
        False,
        boolean,
        "Whether the default partitioner treats records with a key like records without one.",
    )
    key_serializer: Serializer | None = setting(
        None,
        Parser(SERIALIZERS, serializer),
        "Turns keys into bytes. None: bytes stay bytes, and `str` becomes UTF-8.",
        kafka="callables and short names instead of Java classes",
    )
    value_serializer: Serializer | None = setting(
        None,
        Parser(SERIALIZERS, serializer),
        "Turns values into bytes. None: bytes stay bytes, and `str` becomes UTF-8.",
        kafka="callables and short names instead of Java classes",
    )
    strict_duplicates: bool = setting(
        False,
        boolean,
        "Whether a batch that is stored already is reported as `DuplicateSequence` instead of "
        "success.",
        kafka="eoslog only",
    )
    eoslog_test_lose_acks: float = setting(
        0,
        number(0, 1),
        "For tests: the probability that an acknowledgement is lost. Needs an armed failpoint.",
        kafka="eoslog only",
    )

    @classmethod
    def resolve(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        """Kafka's rules between acks, retries, in-flight, idempotence and transactions."""

        def value(name: str) -> Any:
            return values.get(name, cls.default(name))

        timeout = value("transaction_timeout_ms")
        if timeout < 1:
            raise InvalidTransactionTimeout(
                "transaction.timeout.ms: expected 1 to transaction.max.timeout.ms of the log, got "
                f"{timeout}"
            )
        if (name := value("name")) is not None:
            if value("transactional_id") is not None:
                raise ConfigError(
                    f"name={name!r} sets the transactional id {NAMED_TRANSACTIONS + name!r}, but "
                    f"transactional.id={values['transactional_id']!r}; leave transactional.id out"
                )
            values["transactional_id"] = NAMED_TRANSACTIONS + name
        elif value("strict_ids"):
            raise ConfigError("strict.ids=True needs a producer name; set name")
        elif str(value("transactional_id") or "").startswith(NAMED_TRANSACTIONS):
            raise ConfigError(
                f"transactional.id={values['transactional_id']!r}: {NAMED_TRANSACTIONS!r} begins "
                "the ids of producers with a name; set name instead, or choose another id"
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
            # No request crosses a network, so its default must not forbid short deadlines.
            left = value("delivery_timeout_ms") - value("linger_ms")
            values["request_timeout_ms"] = int(left)

    @property
    def codec_level(self) -> int | None:
        """The level for `compression_type`, None for the codec's own default."""
        if self.compression_level is not None:
            return self.compression_level
        key = f"compression.{self.compression_type}.level"
        return getattr(self, key.replace(".", "_")) if key in self.given else None
