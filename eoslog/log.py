"""Log and `open()`: the face of an open directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from eoslog.arguments import as_directory, as_int, as_list_of, as_mapping, as_names, keys_of_log
from eoslog.client import health
from eoslog.client.offsets import named_offsets, offsets_of, starts_of
from eoslog.client.recipes import run_transaction
from eoslog.client.subscription import compiled
from eoslog.closing import Owner
from eoslog.config import LogConfig
from eoslog.engine import Engine
from eoslog.errors import (
    EoslogError,
    IllegalState,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from eoslog.model import (
    AppendLock,
    BackupReport,
    CheckReport,
    GroupDescription,
    OffsetAndMetadata,
    Offsets,
    PartitionDescription,
    ProducerDescription,
    TopicDescription,
    TopicPartition,
    TransactionDescription,
)
from eoslog.storage.partition_log import PartitionLog

if TYPE_CHECKING:
    from eoslog._core import Record
    from eoslog.client.consumer import Consumer
    from eoslog.client.kafka_cluster import Moved
    from eoslog.client.producer import Producer
    from eoslog.client.scan import Scan
    from eoslog.client.transaction_scope import Transaction

T = TypeVar("T")

__all__ = ["Log", "open"]


def open(  # noqa: A001
    path: str | os.PathLike[str],
    config: Mapping[str, Any] | None = None,
    *,
    create: bool = True,
    read_only: bool = False,
    durability: str | None = None,
    **options: Any,
) -> Log:
    """Open a log directory; many processes may have it open.

    Args:
        path: the directory.
        config: Kafka's keys for a broker, as {"transaction.max.timeout.ms": 60_000}: timers and
            limits of this process's handles, counts of internal partitions of a new directory.
        create: make it when missing.
        read_only: change nothing. Opened while nobody writes it does not follow: once a writer has
            come, who reads it or asks for its ends gets IllegalState, and opens it again.
        durability: "strict" (acknowledged means on disk) or "os" (means in the page cache). Fixed
            at creation; None takes what is stored, "strict" for a new directory.
        options: more keys, in snake_case.

    Raises:
        ConfigError: no path; an unknown key; another value is stored or in use here (both named).
        StorageError: foreign, damaged, or on a file system without local locks.
        LockTimeout: another process holds it for longer than 30 s.
    """
    settings = LogConfig.of(config, **options) if config or options else None
    return Log(
        Engine.open(
            path, create=create, read_only=read_only, durability=durability, config=settings
        )
    )


class Log(Owner):
    """An open directory: topics, offsets, scans, transactions, groups, and the clients' maker.

    Thread-safe. A handle inherited through fork raises IllegalState: open the path again there. So
    does a call that writes on a log that was opened read_only.
    """

    def __init__(self, engine: Engine) -> None:
        """Wrap an engine; use `eoslog.open`."""
        super().__init__()
        self._engine = engine

    def __repr__(self) -> str:
        return f"Log({self.path!r}, durability={self.durability!r})"

    @property
    def path(self) -> str:
        """The directory."""
        return self._engine.path

    @property
    def durability(self) -> str:
        """What acknowledged means here: "strict" (on the disk) or "os" (in the page cache)."""
        return self._engine.durability

    @property
    def engine(self) -> Engine:
        """The floor below, which other handles of this process share. IllegalState after close."""
        if self._closed:
            raise IllegalState("the log is closed")
        self._engine.check()
        return self._engine

    def _let_go(self) -> None:
        self._engine.close()

    # --- topics ---------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, Any] | None = None,
        *,
        exist_ok: bool = False,
    ) -> TopicDescription:
        """Create a topic; Kafka's topic configuration.

        Args:
            name: letters, digits, ".", "_" and "-", at most 249.
            partitions: 1 to 10,000.
            config: Kafka's keys, as {"retention.ms": 86_400_000}; the rest are defaults.
            exist_ok: leave one that is there as it is, with the partitions and settings that it
                has: the answer tells them.

        Raises:
            TopicAlreadyExists, InvalidTopic, InvalidPartitions, ConfigError

        Durability: durable on return.
        """
        try:
            self.engine.for_writing().create_topic(name, partitions, config)
        except TopicAlreadyExists:
            if not exist_ok or name not in self.topics():  # it may just be being deleted
                raise
        return self.describe_topic(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its data and what groups committed in it.

        Raises:
            UnknownTopicOrPartition: there is none.
        """
        self.engine.for_writing().delete_topic(name)

    def create_partitions(self, name: str, total: int) -> None:
        """Grow a topic to `total` partitions; keys move, their partition depends on the count."""
        self.engine.for_writing().metadata.create_partitions(name, total)

    def alter_topic(self, name: str, config: Mapping[str, Any]) -> None:
        """Set topic configuration; None takes a key back to its default. Raises ConfigError."""
        self.engine.for_writing().alter_topic(name, dict(as_mapping("config", config)))

    def topics(self) -> list[str]:
        """Names of the user topics, sorted. Raises IllegalState where `open` says so."""
        self.engine.session.refuse_outdated()
        self.engine.metadata.refresh()
        return sorted(self.engine.metadata.topics)

    def describe_topic(self, name: str) -> TopicDescription:
        """A topic with its partitions' offsets. Raises UnknownTopicOrPartition."""
        info = self.engine.topic(name)
        partitions = [
            PartitionDescription(
                number, info.partitions[number].leader_epoch, self.offsets(name, number)
            )
            for number in sorted(info.partitions)
        ]
        return TopicDescription(name, info.topic_id, partitions, dict(info.config))

    # --- offsets --------------------------------------------------------------------------------

    def _partition(self, topic: str, partition: int) -> PartitionLog:
        return self.engine.partition(topic, partition)

    def offsets(self, topic: str, partition: int) -> Offsets:
        """The published ends of a partition now. Raises IllegalState where `open` says so."""
        self.engine.session.refuse_outdated()
        return health.offsets_of_log(self._partition(topic, partition))

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """The first offset whose timestamp is at or after a time; the high watermark if none is.

        Raises IllegalState where `open` says so.
        """
        log = self._partition(topic, partition)
        end = log.high_watermark
        when = as_int("timestamp_ms", timestamp_ms, "ms since 1970 as int")
        found = log.offset_for_time(when, end)
        return end if found is None else found

    def snapshot(self, topics: Sequence[str] | None = None) -> dict[TopicPartition, int]:
        """End offsets that cut no transaction in two, over all partitions, for some topics or all.

        Reading every partition up to its offset here gives whole transactions and nothing else.
        Never below an earlier snapshot. Source: protocol of closed cuts, docs/architecture.md.
        """
        if topics is not None:
            topics = as_list_of(str, "topics", "names", topics)
            for name in topics:
                self.engine.topic(name)
        partitions = [TopicPartition(*key) for key in self.engine.user_partitions()]
        return self.engine.transactions.snapshot(partitions, topics)

    def scan(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: int | Mapping[TopicPartition, int] | None = None,
        end: int | Mapping[TopicPartition, int] | None = None,
        isolation: str = "read_committed",
        columns: Sequence[str] | None = None,
        batch_rows: int = 65536,
        binary: str = "view",
    ) -> Scan:
        """Columns of a topic as Arrow record batches (extra `[arrow]`).

        Args:
            topic: what to scan.
            partitions: which; None is all, one after the other.
            start: first offset, one for all or by partition; None is each log start.
            end: exclusive; None is each partition's last stable offset (or high watermark with
                read_uncommitted), read once now. One number for all is a limit that shorter
                partitions do not reach; by partition, it is what the caller is to get.
            isolation: "read_committed" or "read_uncommitted".
            columns: of topic, partition, offset, timestamp, timestamp_type, key, value, headers;
                only these are decoded.
            batch_rows: rows a record batch at most.
            binary: "view" gives binary_view columns over the mapping, "copy" plain binary.

        Raises:
            OffsetOutOfRange: `start` lies below a log's start; by partition, `start` lies beyond
                its end, or `end` above what can be read of it now.
        """
        from eoslog.client.scan import scan

        return scan(
            self.engine, topic, partitions=partitions, start=start, end=end, isolation=isolation,
            columns=columns, batch_rows=batch_rows, binary=binary,
        )  # fmt: skip

    def read(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: int | Mapping[TopicPartition, int] | None = None,
        end: int | Mapping[TopicPartition, int] | None = None,
        isolation: str = "read_committed",
    ) -> Iterator[Record]:
        """The records of a topic up to its end as of now, partition by partition; then it stops.

        Arguments and errors are those of `scan`, whose twin this is, without Arrow. Nothing is
        committed or remembered: a consumer does that, and goes on with what comes later.
        """
        return self.scan(
            topic, partitions=partitions, start=start, end=end, isolation=isolation
        ).records()

    # --- clients --------------------------------------------------------------------------------

    def producer(self, config: Mapping[str, Any] | None = None, **options: Any) -> Producer:
        """A producer on this directory; Kafka's keys, `transactional_id=` as a keyword."""
        from eoslog.client.producer import Producer

        self.engine.for_writing()
        return self._own(Producer(keys_of_log(self.path, config, options), **options))

    def consumer(self, *topics: str, group_id: str | None = None, **options: Any) -> Consumer:
        """A consumer on this directory, subscribed to the topics given."""
        from eoslog.client.consumer import Consumer

        if self.engine.read_only:
            options["engine"] = self.engine
        if group_id is not None:
            options["group_id"] = group_id
        names = as_names("topics", topics)
        consumer = self._own(Consumer(keys_of_log(self.path, None, options), **options))
        if topics and group_id is not None:
            consumer.subscribe(names)
        elif topics:
            consumer.assign(
                [
                    TopicPartition(name, number)
                    for name in names
                    for number in sorted(self.engine.topic(name).partitions)
                ]
            )
        return consumer

    def run_transaction(
        self, fn: Callable[[Transaction], T], *, transactional_id: str, **options: Any
    ) -> T:
        """Run `fn(tx)` in a transaction of its own producer, again after an abortable error."""
        with self.producer(transactional_id=transactional_id, **options) as producer:
            producer.init_transactions()
            return run_transaction(producer, fn)

    # --- transactions and groups ----------------------------------------------------------------

    def transactions(self, open_only: bool = True) -> list[TransactionDescription]:
        """Transactional ids as their coordinators hold them."""
        found = self.engine.transactions.describe_transactions()
        return [t for t in found if not open_only or t.state in health.OPEN_STATES]

    def abort_transaction(self, transactional_id: str) -> bool:
        """Abort an id's open transaction and fence its producer; whether there was one.

        Raises TransactionalIdNotFound.
        """
        return self.engine.for_writing().transactions.abort_transaction(transactional_id)

    def producers(self, topic: str, partition: int) -> list[ProducerDescription]:
        """What a partition knows of its producers."""
        return self._partition(topic, partition).producers()

    def groups(self) -> list[str]:
        """Ids of all groups."""
        return self.engine.groups.list_groups()

    def describe_group(self, group_id: str) -> GroupDescription:
        """A group with its members and committed offsets."""
        return self.engine.groups.describe_group(group_id)

    def lag(self, group_id: str) -> dict[TopicPartition, int]:
        """Offsets from each committed one to the last stable one, where read_committed ends.

        Partitions that nothing was committed for have none. Raises GroupNotFound.
        """
        return health.lag(self.engine, group_id)

    def reset_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int | str | OffsetAndMetadata]
    ) -> None:
        """Set the committed offsets of a group without members. Raises NonEmptyGroup.

        Args:
            group_id: the group, unused so far or not; PolicyViolation as in `delete_group`.
            offsets: the next offset to read by partition, or "earliest" or "latest", the log start
                or the last stable offset as they are now.
        """
        wanted = offsets_of(named_offsets(as_mapping("offsets", offsets), self.offsets))
        self.engine.for_writing().groups.reset_offsets(group_id, wanted)

    def delete_group(self, group_id: str, *, force: bool = False) -> None:
        """Delete a group without members, with its offsets. Raises NonEmptyGroup, GroupNotFound.

        Versions of Spark's writes (`__eoslog-spark-...`) only by `force`, else PolicyViolation.
        """
        self.engine.for_writing().groups.delete_group(group_id, force=force)

    # --- to Kafka and back -----------------------------------------------------------------------

    def export_kafka(
        self, bootstrap: str, topics: Sequence[str] | None = None, **options: Any
    ) -> Moved:
        """Send committed records into a Kafka cluster, exactly once, from where it stopped last.

        Partition, order, key, value, headers and timestamp stay; offsets may differ. Missing topics
        are made with the same settings. Needs the extra `[kafka]`.

        Args:
            bootstrap: host:port of the cluster.
            topics: which; None is all.
            options: see `MoveOptions`: `job`, `records` a transaction, `follow`, `config`,
                `progress`, and `groups`, whose committed offsets go along (names, or "all").

        Raises:
            ProducerFenced: another run of the same job took over.
            IllegalState: the target holds records where the job has no position, or was cleaned so
                that a group's offset cannot be told there.
            NonEmptyGroup: a group that shall go along has members at the target.
            ConfigError: a topic has another shape there; a timestamp that cannot be sent.
            KafkaError: what the cluster answered.

        **Durability**: what the cluster promises; the position is part of each transaction.
        """
        from eoslog.client.kafka_cluster import MoveOptions
        from eoslog.client.kafka_export import export_kafka

        self.engine.check()
        return export_kafka(self, bootstrap, topics, MoveOptions(**options))

    def import_kafka(
        self, bootstrap: str, topics: Sequence[str] | None = None, **options: Any
    ) -> Moved:
        """Take committed records out of a Kafka cluster, exactly once, from where it stopped last.

        The mirror of `export_kafka`, with the same options; the position is kept here, as offsets
        of the group of the job's name, in the transaction of the records. It writes nothing there.
        """
        from eoslog.client.kafka_cluster import MoveOptions
        from eoslog.client.kafka_import import import_kafka

        self.engine.for_writing()
        return import_kafka(self, bootstrap, topics, MoveOptions(**options))

    # --- care -----------------------------------------------------------------------------------

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Drop all records before the offsets (-1: the high watermark); the new log starts."""
        wanted, engine = starts_of(as_mapping("offsets", offsets)), self.engine.for_writing()
        return {
            tp: engine.partitions.settled(tp.topic, tp.partition).delete_records(before)
            for tp, before in wanted.items()
        }

    def clean(self, topic: str | None = None, *, roll: bool = False) -> dict[TopicPartition, int]:
        """Apply compaction and retention now, whatever the dirty ratio; bytes freed by partition.

        Args:
            topic: one topic, an internal one too; None: all, and the internal ones.
            roll: seal the active segments of compacted topics first: they are never cleaned.

        Raises:
            CorruptRecord, StorageError: a partition that could not be cleaned is as it was.
            LockTimeout: another process is cleaning a partition.
        """
        return health.clean(self.engine.for_writing(), topic, roll=roll)

    def backup(
        self,
        path: str | os.PathLike[str],
        *,
        check: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> BackupReport:
        """Copy the log as it is at one instant, while everybody goes on: a log of its own.

        All that was committed by then is in it, whole; transactions that were open are aborted in
        it. Producers, groups and offsets go along. Cleaning waits until all is copied.

        Args:
            path: where to; it must not exist, or be empty, and lie outside of the log.
            check: read the copy again and compare indexes and checksums.
            progress: gets the bytes copied and those of all, after each step.

        Raises:
            ConfigError: the target is not new. LockTimeout: a lock was held for too long.
            LogPoisoned: a flush failed in this session. StorageError: a disk failed.

        **Durability**: all is durable when the directory appears under its name.
        """
        from eoslog.client.backup import backup

        return backup(self.engine, as_directory(path), check=check, progress=progress)

    def check(self, full: bool = False) -> CheckReport:
        """Read every batch by its CRC and compare the indexes; `full` decodes every record too."""
        return health.check(self.engine, full=full)

    def locks(self) -> dict[TopicPartition, AppendLock]:
        """The append locks held at this moment, by any process; asking waits for none."""
        return health.locks(self.engine)

    def trace(self, callback: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        """Get an event for each coordinator request; call what is returned to stop."""
        return self.engine.transactions.trace(callback)

    def stats(self) -> dict[str, Any]:
        """Counts, sizes (bytes) and lags; `offline` names the partitions that cannot be opened."""
        return health.stats(self.engine)

    def offline_partitions(self) -> dict[TopicPartition, EoslogError]:
        """The partitions that cannot be opened as they are, and why; every other one works.

        What is damaged inside of one that opens is found by `check`.
        """
        return health.offline_partitions(self.engine)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Every partition of a topic."""
        return [TopicPartition(topic, n) for n in sorted(self.engine.topic(topic).partitions)]

    def match_topics(self, pattern: str) -> list[str]:
        """User topics whose whole name matches a regular expression.

        Raises ConfigError if it is none, UnknownTopicOrPartition if no topic matches.
        """
        matching = compiled("match_topics", pattern)
        names = [name for name in self.topics() if matching.fullmatch(name)]
        if not names:
            raise UnknownTopicOrPartition(f"no topic matches {pattern!r}")
        return names
