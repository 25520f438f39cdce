"""A Kafka cluster as the source or target of a job, through confluent-kafka.

Source: KIP-98, KIP-447 (positions in the transaction); confluent-kafka-python.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from eoslog._util.argument_types import explained_calls
from eoslog._util.arguments import as_int, as_list_of
from eoslog._util.extras import to_install
from eoslog.errors import (
    ConfigError,
    EoslogError,
    ErrorCode,
    IllegalState,
    KafkaError,
    NonEmptyGroup,
    RequestTimedOut,
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
"""librdkafka's maximum. Its default, 1,000,000, is less than a topic may accept."""
_NO_ID = "A" * 22
COPIED = (
    "cleanup.policy", "compression.type", "delete.retention.ms", "max.compaction.lag.ms",
    "max.message.bytes", "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "retention.bytes",
    "retention.ms",
)  # fmt: skip
"""Topic settings that are copied to a new topic; settings of segment files are not."""


@explained_calls()
@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOptions:
    """The options of an export or import.

    Attributes:
        job: the transactional id and the group that hold the position at the target; None means
            the default name of the direction.
        records: the maximum number of records per transaction.
        follow: keep copying new records, and those of partitions that are added later; if False,
            stop at the ends that the partitions had at the start.
        groups: the groups whose committed offsets are moved too; "all" means every group that has
            committed offsets.
        config: further librdkafka configuration.
        progress: called after each transaction.
    """

    job: str | None = None
    records: int = 10_000
    follow: bool = False
    groups: Sequence[str] | Literal["all"] = ()
    config: Mapping[str, Any] | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ConfigError: if `records` or `groups` has a wrong type or value, or if groups are given
                for a run that does not end.
        """
        if as_int("records", self.records) < 1:
            raise ConfigError(
                f"records: expected at least 1 record per transaction, got {self.records}"
            )
        if self.groups != "all":
            as_list_of(str, "groups", 'group ids, or "all"', self.groups)
        if self.groups and self.follow:
            raise ConfigError(
                "groups are moved at the end of a run, and a run with follow=True does not end; "
                "leave out groups or follow"
            )


@dataclass(frozen=True, slots=True)
class Moved:
    """The progress of an export or import.

    Attributes:
        job: the transactional id and the group that hold the position at the target.
        records: the number of records that this run has copied.
        positions: the next offset to copy, by source partition.
        groups: the committed offsets that were moved, as offsets of the target, by group.
    """

    job: str
    records: int
    positions: Mapping[TopicPartition, int]
    groups: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)


def require_confluent_kafka() -> Any:
    """Import and return the confluent_kafka module.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise ConfigError(
            "a Kafka cluster needs the package 'confluent-kafka': "
            + to_install("kafka", "confluent-kafka")
        ) from error
    return confluent_kafka


@contextmanager
def kafka_errors(what: str) -> Iterator[None]:
    """Convert the client's exceptions to eoslog's exceptions of the same code."""
    kafka = require_confluent_kafka()
    try:
        yield
    except kafka.KafkaException as error:
        raise _of_client(error.args[0], what) from error
    except TimeoutError as error:
        if isinstance(error, EoslogError):
            raise
        # It is of a future of the client.
        raise RequestTimedOut(f"{what}: no answer within {TIMEOUT_S:g} s") from error


def _of_client(error: Any, what: str) -> KafkaError:
    """Return eoslog's exception for an error of the client.

    The client's own errors have negative codes. Those of a cluster that does not answer become
    RequestTimedOut, which is retriable. eoslog has no class for the others.
    """
    codes = require_confluent_kafka().KafkaError
    code = error.code()
    unanswered = error.retriable() or code in {
        codes._ALL_BROKERS_DOWN, codes._TIMED_OUT, codes._TIMED_OUT_QUEUE, codes._TRANSPORT
    }  # fmt: skip
    if code < 0 and unanswered and not error.fatal():
        code = ErrorCode.REQUEST_TIMED_OUT
    return error_for(max(code, -1), f"{what}: {error.str()}")


def retried(call: Callable[[], T]) -> T:
    """Call again while the error is retriable, as for a topic that is new.

    Raises:
        KafkaError: if the error is not retriable, or TIMEOUT_S has passed.
        KafkaException: likewise, if the call raised the client's exception.
    """
    kafka = require_confluent_kafka()
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return call()
        except (KafkaError, kafka.KafkaException) as error:
            again = error.retriable if isinstance(error, KafkaError) else error.args[0].retriable()
            if not again or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_S)


class KafkaCluster:
    """A Kafka cluster, reached through its bootstrap servers.

    Args:
        bootstrap: host:port[,host:port...].
        config: further librdkafka configuration for every client, for example security settings.
    """

    def __init__(self, bootstrap: str, config: Mapping[str, Any] | None = None) -> None:
        """Create the admin client, which connects at its first call."""
        self.kafka = require_confluent_kafka()
        self._config = {"log_level": 2, **(config or {}), "bootstrap.servers": bootstrap}
        self._admin = self.kafka.admin.AdminClient(self._config)

    def producer(self, transactional_id: str, topics: Iterable[str]) -> confluent_kafka.Producer:
        """Return a transactional producer that keeps order and timestamps of records.

        Its size limits are those of the topics, because the client's own defaults may be lower.
        """
        key = "max.message.bytes"
        sizes = []
        # The broker may not know a new topic yet, or may deny the request.
        with suppress(EoslogError):
            sizes = [int(found[key]) for found in self.configs(topics).values() if key in found]
        made: confluent_kafka.Producer = self.kafka.Producer(
            {"linger.ms": 20, "enable.idempotence": True, "message.max.bytes": _RECORD_BYTES,
             "batch.size": min([_BATCH_BYTES, *sizes]), **self._config,
             "transactional.id": transactional_id}
        )  # fmt: skip
        return made

    def consumer(self, group_id: str) -> confluent_kafka.Consumer:
        """Return a `read_committed` consumer that is assigned manually and never commits."""
        made: confluent_kafka.Consumer = self.kafka.Consumer(
            {**self._config, "group.id": group_id, "enable.auto.commit": False,
             "isolation.level": "read_committed", "auto.offset.reset": "error",
             "enable.partition.eof": True}
        )  # fmt: skip
        return made

    def topics(self) -> dict[str, int]:
        """Return the partition counts of the topics that are not internal."""
        with kafka_errors("listing topics"):
            found = self._admin.list_topics(timeout=TIMEOUT_S).topics
        return {name: len(t.partitions) for name, t in found.items() if not name.startswith("__")}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of topics as Kafka prints them; a cluster before 2.8 has none."""
        asked = self._admin.describe_topics(self.kafka.TopicCollection(list(topics)))
        found = {}
        for name, answer in asked.items():
            with kafka_errors(f"topic {name!r} of the cluster"):
                found[name] = str(answer.result(TIMEOUT_S).topic_id)
        return {name: text for name, text in found.items() if text != _NO_ID}

    def ensure_topics(
        self, wanted: Mapping[str, int], configs: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Create the topics that are missing, and check the others.

        Raises:
            ConfigError: if a topic has more partitions than in the log, or replaces timestamps.
        """
        there = self.topics()
        for name, count in wanted.items():
            if there.get(name, count) > count:
                raise ConfigError(
                    f"topic {name!r} has {there[name]} partitions in the cluster and {count} in "
                    "the log; both need the same number, so that keys keep their partitions"
                )
        stamped = [
            name
            for name, config in self.configs([n for n in wanted if n in there]).items()
            if config.get("message.timestamp.type") == "LogAppendTime"
        ]
        if stamped:
            raise ConfigError(
                f"topic {stamped[0]!r} of the cluster has message.timestamp.type=LogAppendTime, "
                "which would replace the records' timestamps; set it to CreateTime"
            )
        new = {name: count for name, count in wanted.items() if name not in there}
        if not new:
            return
        with kafka_errors("creating topics"):
            asked = [
                self.kafka.admin.NewTopic(name, count, -1, config=dict(configs.get(name, {})))
                for name, count in new.items()
            ]
            for future in self._admin.create_topics(asked).values():
                future.result(TIMEOUT_S)
        self._until_listed(new)

    def add_partitions(self, wanted: Mapping[str, int]) -> None:
        """Increase the number of partitions of the topics that have fewer."""
        there = self.topics()
        short = {name: count for name, count in wanted.items() if there.get(name, count) < count}
        if not short:
            return
        with kafka_errors("adding partitions"):
            asked = [self.kafka.admin.NewPartitions(name, count) for name, count in short.items()]
            for future in self._admin.create_partitions(asked).values():
                future.result(TIMEOUT_S)
        self._until_listed(short)

    def _until_listed(self, counts: Mapping[str, int]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while any(self.topics().get(name) != count for name, count in counts.items()):
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"the cluster does not list the new partitions of {sorted(counts)} after "
                    f"{TIMEOUT_S:g} s; check the brokers, then run this again"
                )
            time.sleep(_RETRY_S)

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the settings of topics that differ from Kafka's defaults."""
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
        """Return each partition's last stable offset, high watermark or first offset."""
        admin, kafka = self.kafka.admin, self.kafka
        if not partitions:
            return {}
        spec = admin.OffsetSpec.earliest() if beginning else admin.OffsetSpec.latest()
        asked = {kafka.TopicPartition(tp.topic, tp.partition): spec for tp in partitions}
        levels = kafka.IsolationLevel
        level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED

        def listed() -> dict[TopicPartition, int]:
            with kafka_errors("listing offsets"):
                answers = self._admin.list_offsets(asked, isolation_level=level).items()
                return {
                    TopicPartition(tp.topic, tp.partition): future.result(TIMEOUT_S).offset
                    for tp, future in answers
                }

        return retried(listed)

    def committed(
        self, consumer: confluent_kafka.Consumer, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the stable committed offsets of the consumer's group."""
        asked = [self.kafka.TopicPartition(tp.topic, tp.partition) for tp in partitions]
        with kafka_errors("reading the position"):
            found = retried(lambda: consumer.committed(asked, TIMEOUT_S))
        for tp in found:
            if tp.error is not None:
                raise _of_client(tp.error, f"the position of {tp.topic}")
        return _offsets(found)

    # --- the Side of group_offsets ---------------------------------------------------------------

    def start(self, tp: TopicPartition) -> int:
        """Return a partition's first offset."""
        return self.ends([tp], beginning=True)[tp]

    def end(self, tp: TopicPartition) -> int:
        """Return a partition's end once no transaction in it is undecided.

        A commit returns before its markers are written, so this call waits for them.

        Raises:
            IllegalState: if a transaction stays open for TIMEOUT_S.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while (end := self.ends([tp])[tp]) != self.ends([tp], committed=False)[tp]:
            if time.monotonic() > deadline:
                raise IllegalState(
                    f"{tp} of the cluster: a transaction has been open at offset {end} for "
                    f"{TIMEOUT_S:g} s; commit or abort it, then run this again"
                )
            time.sleep(_RETRY_S)
        return end

    def records(self, tp: TopicPartition, start: int, end: int) -> Iterator[tuple[int, Any]]:
        """Yield the offset and content of each committed record in [start, end)."""
        with closing(self.consumer("eoslog-reader")) as reader:
            reader.assign([self.kafka.TopicPartition(tp.topic, tp.partition, start)])
            while start < end:
                for message in reader.consume(_BATCH, WAIT_S):
                    start = self.position_after(message)
                    if message.error() is None and start <= end:
                        headers = message.headers() or []
                        yield (
                            start - 1,
                            (message.timestamp()[1], message.key(), message.value(), headers),
                        )

    def position_after(self, message: Any) -> int:
        """Return the next offset after a message, or at a partition's end.

        Raises:
            KafkaError: if the message is any other error.
        """
        error = message.error()
        if error is None:
            return int(message.offset()) + 1
        if error.code() == self.kafka.KafkaError._PARTITION_EOF:
            return int(message.offset())
        raise _of_client(error, f"reading {message.topic()}")

    def groups(self) -> list[str]:
        """Return the ids of the consumer groups."""
        with kafka_errors("listing groups"):
            found = self._admin.list_consumer_groups().result(TIMEOUT_S)
        if found.errors:
            raise _of_client(found.errors[0].args[0], "listing groups")
        return sorted(group.group_id for group in found.valid)

    def group_offsets(self, group: str) -> GroupOffsets:
        """Return the stable committed offsets of a group."""
        asked = [self.kafka.ConsumerGroupTopicPartitions(group)]
        with kafka_errors(f"reading the offsets of group {group!r}"):
            answer = self._admin.list_consumer_group_offsets(asked, require_stable=True)
            try:
                found = answer[group].result(TIMEOUT_S).topic_partitions
            except self.kafka.KafkaException as error:
                if error.args[0].code() == self.kafka.KafkaError.GROUP_ID_NOT_FOUND:
                    return {}  # also for a share group, which has no offsets
                raise
        return _offsets(found)

    def advance_group(self, group: str, offsets: GroupOffsets, ids: Mapping[str, str]) -> None:
        """Set the offsets that are larger than the group's; without one, do nothing.

        Kafka has no conditional commit for a group without members. A commit of the group, or a
        re-creation of a topic, between the reads and the write is not noticed.

        Raises:
            NonEmptyGroup: if the group has members, which would not see the change.
            IllegalState: if a topic was re-created.
            UnknownTopicOrPartition: if a topic was deleted.
        """
        names = {tp.topic for tp in offsets}
        if self.topic_ids(names) != {name: ids[name] for name in names if name in ids}:
            raise re_created(group)
        wanted = [
            self.kafka.TopicPartition(tp.topic, tp.partition, at.offset, at.metadata or "")
            for tp, at in larger(offsets, self.group_offsets(group)).items()
        ]
        if not wanted:
            return
        asked = [self.kafka.ConsumerGroupTopicPartitions(group, wanted)]
        with kafka_errors(f"setting the offsets of group {group!r}"):
            answer = self._admin.alter_consumer_group_offsets(asked)
            found = answer[group].result(TIMEOUT_S).topic_partitions
        for tp in found:
            if tp.error is None:
                continue
            if tp.error.code() == self.kafka.KafkaError.UNKNOWN_MEMBER_ID:
                raise NonEmptyGroup(
                    f"group {group!r} of the cluster has members; stop its consumers, then "
                    "run this again"
                )
            raise _of_client(tp.error, f"group {group!r}, {tp.topic}")


def _offsets(found: Iterable[Any]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(tp.topic, tp.partition): OffsetAndMetadata(
            tp.offset, metadata=tp.metadata or ""
        )
        for tp in found
        if tp.offset >= 0
    }


def larger(offsets: GroupOffsets, known: GroupOffsets) -> GroupOffsets:
    """Return the offsets that are larger than the known ones."""
    return {tp: at for tp, at in offsets.items() if tp not in known or known[tp].offset < at.offset}


def re_created(group: str) -> IllegalState:
    """The error for offsets of a topic that the target does not have any more."""
    return IllegalState(
        f"group {group!r}: a topic of the target was deleted or re-created during the run, so no "
        "offset of the group was set; run this again"
    )


def check_empty(
    job: str, missing: Collection[TopicPartition], ends: Mapping[TopicPartition, int],
    resume: Callable[[TopicPartition], str] | None = None,
) -> None:  # fmt: skip
    """Check that a target without a saved position is empty, to avoid duplicates.

    Args:
        job: the name of the job.
        missing: the partitions without a position.
        ends: where the partitions end at the target.
        resume: says how to set a position; None for a committed offset at the target.

    Raises:
        IllegalState: if a partition holds records that the job did not write.
    """
    full = sorted(tp for tp in missing if ends.get(tp, 0) > 0)
    if full:
        how = f"set the offsets of group {job!r}" if resume is None else resume(full[0])
        raise IllegalState(
            f"target partition {full[0]} already holds records (end offset {ends[full[0]]}), but "
            f"job {job!r} has no saved position: another program wrote them, the position "
            f"expired, or the topic was re-created; use an empty topic, or {how}"
        )
