"""A Kafka cluster as the other end of an export or import, through confluent-kafka.

Source: KIP-98, KIP-447 (positions in the transaction); confluent-kafka-python.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from eoslog.errors import (
    ConfigError,
    EoslogError,
    IllegalState,
    KafkaError,
    NonEmptyGroup,
    error_for,
)
from eoslog.model import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    import confluent_kafka

T = TypeVar("T")
Progress = Callable[["Moved"], None]
GroupOffsets = Mapping[TopicPartition, OffsetAndMetadata]

TIMEOUT_S = 60.0
WAIT_S = 0.2
_BATCH = 10_000
_RETRY_S = 0.1
_BATCH_BYTES = 1_000_000
_RECORD_BYTES = 1_000_000_000
"""The most that librdkafka can be told: 1,000,000, its default, is less than topics take."""
_NO_ID = "A" * 22
COPIED = (
    "cleanup.policy", "compression.type", "delete.retention.ms", "max.compaction.lag.ms",
    "max.message.bytes", "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "retention.bytes",
    "retention.ms",
)  # fmt: skip
"""Topic settings that a new topic on the other side gets; what shapes files stays behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOptions:
    """What an export and an import can be told.

    Attributes:
        job: the transactional id and the group that hold its position at the target; None: the
            direction's own name.
        records: the most records of a transaction.
        follow: go on for ever; else stop at the ends as they were at the beginning.
        groups: whose committed offsets go along, "all" for every group that has some.
        config: more of librdkafka's configuration.
        progress: called after each transaction.
    """

    job: str | None = None
    records: int = 10_000
    follow: bool = False
    groups: Sequence[str] | Literal["all"] = ()
    config: Mapping[str, Any] | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ConfigError: groups go along when the end is reached, and there is none.
        """
        if self.groups and self.follow:
            raise ConfigError("groups go along with a run that ends: leave out follow")


@dataclass(frozen=True, slots=True)
class Moved:
    """What a run of an export or import has done so far.

    Attributes:
        job: its name: the transactional id and the group that hold its position at the target.
        records: how many this run sent.
        positions: the next offset to send, by partition of the source.
        groups: the offsets that went along, as the target counts, by group.
    """

    job: str
    records: int
    positions: Mapping[TopicPartition, int]
    groups: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)


def require_confluent_kafka() -> Any:
    """The confluent_kafka module.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise ConfigError(
            "a Kafka cluster needs the package 'confluent-kafka': install eoslog[kafka]"
        ) from error
    return confluent_kafka


@contextmanager
def kafka_errors(what: str) -> Iterator[None]:
    """Turn the client's exceptions into eoslog's, of the same code."""
    kafka = require_confluent_kafka()
    try:
        yield
    except kafka.KafkaException as error:
        found = error.args[0]
        # The client's own errors are negative and have no twin here.
        raise error_for(max(found.code(), -1), f"{what}: {found.str()}") from error


def retried(call: Callable[[], T]) -> T:
    """Call until it is done, while the client says that trying again is the answer.

    Raises:
        KafkaException: another error, or no success within TIMEOUT_S.
    """
    kafka = require_confluent_kafka()
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return call()
        except kafka.KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_S)


class KafkaCluster:
    """A cluster, by its bootstrap servers.

    Args:
        bootstrap: host:port[,host:port...].
        config: more of librdkafka's configuration, for every client (security, for one).
    """

    def __init__(self, bootstrap: str, config: Mapping[str, Any] | None = None) -> None:
        """Connect nothing yet."""
        self.kafka = require_confluent_kafka()
        self._config = {"log_level": 2, **(config or {}), "bootstrap.servers": bootstrap}
        self._admin = self.kafka.admin.AdminClient(self._config)

    def producer(self, transactional_id: str, topics: Iterable[str]) -> confluent_kafka.Producer:
        """A transactional producer that keeps the order and what it is given.

        What fits into a record and a batch of the topics gets in: the client's own bounds know
        nothing of theirs.
        """
        key = "max.message.bytes"
        sizes = []
        # A broker that has not heard of a topic yet, or who may not ask: the topics then refuse.
        with suppress(EoslogError):
            sizes = [int(found[key]) for found in self.configs(topics).values() if key in found]
        made: confluent_kafka.Producer = self.kafka.Producer(
            {"linger.ms": 20, "enable.idempotence": True, "message.max.bytes": _RECORD_BYTES,
             "batch.size": min([_BATCH_BYTES, *sizes]), **self._config,
             "transactional.id": transactional_id}
        )  # fmt: skip
        return made

    def consumer(self, group_id: str) -> confluent_kafka.Consumer:
        """A consumer of committed records, to be assigned by hand; it never commits."""
        made: confluent_kafka.Consumer = self.kafka.Consumer(
            {**self._config, "group.id": group_id, "enable.auto.commit": False,
             "isolation.level": "read_committed", "auto.offset.reset": "error",
             "enable.partition.eof": True}
        )  # fmt: skip
        return made

    def topics(self) -> dict[str, int]:
        """Partition counts of the topics that are not internal."""
        with kafka_errors("listing topics"):
            found = self._admin.list_topics(timeout=TIMEOUT_S).topics
        return {name: len(t.partitions) for name, t in found.items() if not name.startswith("__")}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids of topics, as Kafka prints them; those of a cluster before 2.8 have none."""
        with kafka_errors("describing topics"):
            asked = self._admin.describe_topics(self.kafka.TopicCollection(list(topics)))
            found = {name: str(answer.result(TIMEOUT_S).topic_id) for name, answer in asked.items()}
        return {name: text for name, text in found.items() if text != _NO_ID}

    def ensure_topics(
        self, wanted: Mapping[str, int], configs: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Make the topics that are missing, and check the others.

        Raises:
            ConfigError: a topic has another number of partitions, or replaces timestamps.
        """
        there = self.topics()
        for name, count in wanted.items():
            if there.get(name, count) != count:
                raise ConfigError(
                    f"topic {name!r} has {there[name]} partitions in the cluster and {count} here"
                )
        stamped = [
            name
            for name, config in self.configs([n for n in wanted if n in there]).items()
            if config.get("message.timestamp.type") == "LogAppendTime"
        ]
        if stamped:
            raise ConfigError(
                f"topic {stamped[0]!r} of the cluster has message.timestamp.type=LogAppendTime: "
                "the records' timestamps would be lost"
            )
        new = [
            self.kafka.admin.NewTopic(name, count, -1, config=dict(configs.get(name, {})))
            for name, count in wanted.items()
            if name not in there
        ]
        if not new:
            return
        with kafka_errors("creating topics"):
            for future in self._admin.create_topics(new).values():
                future.result(TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        while any(self.topics().get(name) != count for name, count in wanted.items()):
            if time.monotonic() > deadline:
                raise ConfigError(f"the cluster does not show its new topics: {sorted(wanted)}")
            time.sleep(_RETRY_S)

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings of topics that are not defaults of Kafka."""
        kinds, sources = self.kafka.admin.ResourceType, self.kafka.admin.ConfigSource
        asked = [self.kafka.admin.ConfigResource(kinds.TOPIC, name) for name in topics]
        if not asked:
            return {}
        default = sources.DEFAULT_CONFIG.value
        with kafka_errors("describing topics"):
            return {
                resource.name: {
                    key: entry.value
                    for key, entry in future.result(TIMEOUT_S).items()
                    if entry.source != default and entry.value is not None
                }
                for resource, future in self._admin.describe_configs(asked).items()
            }

    def ends(
        self,
        partitions: Collection[TopicPartition],
        *,
        beginning: bool = False,
        committed: bool = True,
    ) -> dict[TopicPartition, int]:
        """The last stable offset of each partition, its high watermark, or its beginning."""
        admin, kafka = self.kafka.admin, self.kafka
        if not partitions:
            return {}
        spec = admin.OffsetSpec.earliest() if beginning else admin.OffsetSpec.latest()
        asked = {kafka.TopicPartition(tp.topic, tp.partition): spec for tp in partitions}
        levels = kafka.IsolationLevel
        level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                with kafka_errors("listing offsets"):
                    answers = self._admin.list_offsets(asked, isolation_level=level).items()
                    return {
                        TopicPartition(tp.topic, tp.partition): future.result(TIMEOUT_S).offset
                        for tp, future in answers
                    }
            except KafkaError as error:  # a topic just made may have no leader yet
                if not error.retriable or time.monotonic() > deadline:
                    raise
            time.sleep(_RETRY_S)

    def committed(
        self, consumer: confluent_kafka.Consumer, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of the consumer's group, where there is one; stable ones only."""
        asked = [self.kafka.TopicPartition(tp.topic, tp.partition) for tp in partitions]
        with kafka_errors("reading the position"):
            found = retried(lambda: consumer.committed(asked, TIMEOUT_S))
        for tp in found:
            if tp.error is not None:
                raise error_for(max(tp.error.code(), -1), f"the position of {tp.topic}: {tp.error}")
        return _offsets(found)

    # --- groups and their records (moved_groups.Side) -------------------------------------------

    def start(self, tp: TopicPartition) -> int:
        """A partition's first offset."""
        return self.ends([tp], beginning=True)[tp]

    def end(self, tp: TopicPartition) -> int:
        """A partition's end, once nothing in it is undecided: commits answer before their markers.

        Raises:
            IllegalState: somebody's transaction stays open.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while (end := self.ends([tp])[tp]) != self.ends([tp], committed=False)[tp]:
            if time.monotonic() > deadline:
                raise IllegalState(f"{tp} of the cluster: a transaction is open at offset {end}")
            time.sleep(_RETRY_S)
        return end

    def records(self, tp: TopicPartition, start: int, end: int) -> Iterator[tuple[int, Any]]:
        """Offset and content of the committed records in [start, end)."""
        with closing(self.consumer("eoslog-reader")) as reader:
            reader.assign([self.kafka.TopicPartition(tp.topic, tp.partition, start)])
            while start < end:
                for message in reader.consume(_BATCH, WAIT_S):
                    start = self.position_behind(message)
                    if message.error() is None and start <= end:
                        headers = message.headers() or []
                        yield (
                            start - 1,
                            (message.timestamp()[1], message.key(), message.value(), headers),
                        )

    def position_behind(self, message: Any) -> int:
        """The next offset, of a message or of a partition's end.

        Raises:
            KafkaError: the message is another error.
        """
        error = message.error()
        if error is None:
            return int(message.offset()) + 1
        if error.code() == self.kafka.KafkaError._PARTITION_EOF:
            return int(message.offset())
        raise error_for(max(error.code(), -1), f"reading {message.topic()}: {error.str()}")

    def groups(self) -> list[str]:
        """Ids of the consumer groups."""
        with kafka_errors("listing groups"):
            found = self._admin.list_consumer_groups().result(TIMEOUT_S)
        if found.errors:
            raise error_for(max(found.errors[0].args[0].code(), -1), "listing groups")
        return sorted(group.group_id for group in found.valid)

    def group_offsets(self, group: str) -> GroupOffsets:
        """The committed offsets of a group; stable ones."""
        asked = [self.kafka.ConsumerGroupTopicPartitions(group)]
        with kafka_errors(f"reading the offsets of group {group!r}"):
            answer = self._admin.list_consumer_group_offsets(asked, require_stable=True)
            try:
                found = answer[group].result(TIMEOUT_S).topic_partitions
            except self.kafka.KafkaException as error:
                if error.args[0].code() == self.kafka.KafkaError.GROUP_ID_NOT_FOUND:
                    return {}  # or of a kind that has none, as share groups
                raise
        return _offsets(found)

    def set_group_offsets(self, group: str, offsets: GroupOffsets) -> None:
        """Set the committed offsets of a group without members.

        Raises:
            NonEmptyGroup: it has members, which would not notice.
        """
        wanted = [
            self.kafka.TopicPartition(tp.topic, tp.partition, at.offset, at.metadata or "")
            for tp, at in offsets.items()
        ]
        asked = [self.kafka.ConsumerGroupTopicPartitions(group, wanted)]
        with kafka_errors(f"setting the offsets of group {group!r}"):
            answer = self._admin.alter_consumer_group_offsets(asked)
            found = answer[group].result(TIMEOUT_S).topic_partitions
        for tp in found:
            if tp.error is None:
                continue
            if tp.error.code() == self.kafka.KafkaError.UNKNOWN_MEMBER_ID:
                raise NonEmptyGroup(f"group {group!r} of the cluster has members")
            raise error_for(max(tp.error.code(), -1), f"group {group!r}, {tp.topic}: {tp.error}")


def _offsets(found: Iterable[Any]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(tp.topic, tp.partition): OffsetAndMetadata(
            tp.offset, metadata=tp.metadata or ""
        )
        for tp in found
        if tp.offset >= 0
    }


def check_empty(
    job: str, missing: Collection[TopicPartition], ends: Mapping[TopicPartition, int]
) -> None:
    """Where the job has no position, the target must hold nothing: else it would be doubled.

    Raises:
        IllegalState: a partition holds records that this job does not know of.
    """
    full = sorted(tp for tp in missing if ends.get(tp, 0) > 0)
    if full:
        raise IllegalState(
            f"{full[0]} of the target ends at offset {ends[full[0]]}, and job {job!r} has no "
            "position there: it was filled by something else, or the position has expired"
        )
