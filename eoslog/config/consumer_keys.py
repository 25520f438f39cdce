"""Keys of consumers, with Kafka's names; `isolation.level` has another default.

Source: Kafka ConsumerConfig; KIP-98.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from eoslog._util.arguments import shown
from eoslog.config import librdkafka as config_librdkafka
from eoslog.config import network_keys as config_network
from eoslog.config.parsing import (
    SERIALIZERS,
    Parser,
    Settings,
    any_text,
    boolean,
    choice,
    integer,
    optional,
    path,
    setting,
    text,
)
from eoslog.errors import ConfigError
from eoslog.model import EARLIEST, LATEST, NO_RESET
from eoslog.serializers import Deserializer, deserializer

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
            f"got {shown(value)}"
        )
    return tuple(name for name in found if name is not None)


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(Settings):
    """Settings of a consumer; `processing_guarantee` has one name of exactly-once."""

    KIND: ClassVar[str] = "consumer"
    # No request is sent that could wait, time out or be sent again: a fetch takes what is there,
    # and `poll` says how long it waits. Patterns never match internal topics.
    REPLACED: ClassVar[config_librdkafka.Replaced] = config_librdkafka.CONSUMER_REPLACED
    IGNORED: ClassVar[frozenset[str]] = (
        config_network.IGNORED
        | config_librdkafka.CONSUMER
        | frozenset(
            """
        fetch.min.bytes fetch.max.wait.ms request.timeout.ms retry.backoff.ms
        exclude.internal.topics share.acknowledgement.mode share.acquire.mode
        internal.throw.on.fetch.stable.offset.unsupported
        """.split()
        )
    )
    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = config_network.IGNORED_PREFIXES
    SHORT: ClassVar[frozenset[str]] = frozenset({"key", "value"})
    ALIASES: ClassVar[dict[str, str]] = {
        "auto.commit": "enable.auto.commit",
        "auto.commit.enable": "enable.auto.commit",
        "path": "log.dir",
        "create": "log.create",
        "key": "key.deserializer",
        "value": "value.deserializer",
        "fetch.wait.max.ms": "fetch.max.wait.ms",
        "max.partition.fetch.size": "max.partition.fetch.bytes",
        "fetch.message.max.bytes": "max.partition.fetch.bytes",
    }

    log_dir: str | None = setting(
        None,
        optional(path),
        "The directory of the log. Required for `Consumer(...)`; `log.consumer()` sets it.",
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
        "A name for the consumer. `describe_group` shows it.",
    )
    group_id: str | None = setting(
        None,
        optional(text),
        "The consumer group. Required for `subscribe` with shared partitions and for commits.",
    )
    group_instance_id: str | None = setting(
        None,
        optional(text),
        "A name that makes the member static: if it restarts within `session.timeout.ms`, it "
        "gets its partitions back without a rebalance.",
    )
    isolation_level: str = setting(
        "read_committed",
        choice("read_committed", "read_uncommitted"),
        "`read_committed` returns only committed transactions. `read_uncommitted` returns "
        "open and aborted ones too.",
        kafka="Kafka's default is read_uncommitted",
    )
    auto_offset_reset: str = setting(
        LATEST,
        choice(
            EARLIEST,
            LATEST,
            NO_RESET,
            smallest=EARLIEST,
            beginning=EARLIEST,
            largest=LATEST,
            end=LATEST,
            error=NO_RESET,
        ),
        "Where to start if the group has no offset, or if the offset does not exist any more. "
        "none raises `NoOffset` or `OffsetOutOfRange`.",
    )
    enable_auto_commit: bool = setting(
        True,
        boolean,
        "Whether `poll`, `close` and the loss of a partition commit offsets. False if "
        "`processing.guarantee` is exactly_once.",
        kafka="False without a `group.id`",
    )
    auto_commit_interval_ms: int = setting(
        5_000,
        integer(),
        "The time between two automatic commits.",
        unit="ms",
    )
    auto_commit_when: str = setting(
        "after",
        choice("after", "before"),
        "Whether an automatic commit happens `after` the records were processed (at least "
        "once) or `before` they are returned (at most once).",
        kafka="eoslog only",
    )
    processing_guarantee: str | None = setting(
        None,
        optional(
            choice(
                "at_most_once",
                "at_least_once",
                "exactly_once",
                exactly_once_v2="exactly_once",
                exactly_once_beta="exactly_once",
                exact_once="exactly_once",
            )
        ),
        "Sets the commit keys together. at_most_once: commit before returning records. "
        "exactly_once: offsets are committed in a producer's transaction only.",
        kafka="eoslog only, with the values of Kafka Streams",
    )
    check_crcs: bool = setting(
        True,
        boolean,
        "Whether the checksum of every batch is verified when it is read.",
    )
    fetch_max_bytes: int = setting(
        52_428_800,
        integer(),
        "The largest amount of data that one fetch reads. One batch is always read completely.",
        unit="bytes",
    )
    max_partition_fetch_bytes: int = setting(
        1_048_576,
        integer(),
        "The largest amount of data that one fetch reads from a partition. One batch is "
        "always read completely.",
        unit="bytes",
    )
    max_poll_records: int = setting(
        500,
        integer(1),
        "The most records that one `consume` returns. Without this key, a given `num_messages` "
        "alone limits it.",
    )
    max_poll_interval_ms: int = setting(
        300_000,
        integer(1),
        "The longest time between two polls. A member that takes longer leaves the group.",
        unit="ms",
    )
    session_timeout_ms: int = setting(
        45_000,
        integer(1),
        "A member whose process is alive but sends no heartbeat for this time is removed from "
        "the group. A process that dies is removed immediately.",
        unit="ms",
    )
    heartbeat_interval_ms: int = setting(
        3_000,
        integer(1),
        "The time between heartbeats. Must be less than `session.timeout.ms`. If it is not "
        "set and too large, a third of `session.timeout.ms` is used.",
        unit="ms",
    )
    partition_assignment_strategy: tuple[str, ...] = setting(
        ("range", "cooperative-sticky"),
        Parser("range, roundrobin, sticky, cooperative-sticky, or a list of them", _assignors),
        "How partitions are assigned. The group uses the first strategy that all members have.",
    )
    default_api_timeout_ms: int = setting(
        60_000,
        integer(),
        "The longest time that `committed` and `position` wait if no timeout is given.",
        unit="ms",
    )
    key_deserializer: Deserializer | None = setting(
        None,
        Parser(SERIALIZERS, deserializer),
        "Turns the bytes of keys into objects. None: keys stay bytes.",
        kafka="callables and short names instead of Java classes",
    )
    value_deserializer: Deserializer | None = setting(
        None,
        Parser(SERIALIZERS, deserializer),
        "Turns the bytes of values into objects. None: values stay bytes.",
        kafka="callables and short names instead of Java classes",
    )

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
                    "processing.guarantee=at_most_once commits before it returns records, "
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
