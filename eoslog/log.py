"""The public API of an open directory: `Log`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, Unpack, overload

from eoslog._util.argument_types import explained_calls
from eoslog._util.arguments import (
    as_directory,
    as_int,
    as_list_of,
    as_mapping,
    as_names,
    keys_of_log,
)
from eoslog._util.closing import Closing, OwnedClients
from eoslog.admin import diagnosis, health
from eoslog.client import prepared
from eoslog.client.consumer.subscription import compiled
from eoslog.client.offset_arguments import as_partition, named_offsets, offsets_of, starts_of
from eoslog.client.recipes import run_transaction
from eoslog.descriptions import (
    Blocker,
    GroupDescription,
    PartitionDescription,
    PreparedTransaction,
    ProcessDescription,
    ProducerDescription,
    TopicDescription,
    TransactionDescription,
)
from eoslog.engine.engine import Engine
from eoslog.engine.topics import explain_unfinished
from eoslog.errors import (
    EoslogError,
    IllegalState,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from eoslog.model import AppendLock, OffsetAndMetadata, Offsets, Outcome, TopicPartition
from eoslog.reports import BackupReport, CheckReport, RunReport
from eoslog.storage.log.retention import delete_records

if TYPE_CHECKING:
    import pyarrow as pa

    from eoslog._core import Record
    from eoslog.aio.atomic import AsyncAtomicTransaction
    from eoslog.aio.consumer import AsyncConsumer
    from eoslog.aio.producer import AsyncProducer
    from eoslog.aio.sink import AsyncSink
    from eoslog.client.consumer.consumer import Consumer
    from eoslog.client.half_producer import HalfProducer
    from eoslog.client.producer.named.producer import NamedProducer
    from eoslog.client.producer.producer import Producer
    from eoslog.client.producer.transactions.transaction import Transaction
    from eoslog.client.scan.scan import Scan
    from eoslog.client.table import Table
    from eoslog.client.transaction_listener import TransactionListener
    from eoslog.kafka.cluster import Moved
    from eoslog.options import (
        CommonProducerOptions,
        Format,
        KafkaMoveOptions,
        LogConsumerOptions,
        ProcessOptions,
        ProducerOptions,
        ResolverOptions,
        TopicChanges,
        TopicOptions,
    )
    from eoslog.sql.atomic import AtomicTransaction
    from eoslog.sql.database import Database
    from eoslog.sql.sink import Sink

T = TypeVar("T")
C = TypeVar("C", bound="Consumer")

__all__ = ["Log"]


@explained_calls()
class Log(Closing):
    """A log directory, opened by this process.

    Use `eoslog.open` to get one. Any number of processes can have the same directory open. Within a
    process, `Log` objects for the same path and mode share files and locks::

        with eoslog.open("shop") as log:
            log.create_topic("orders", partitions=3, exist_ok=True)
            with log.producer() as producer:
                producer.produce("orders", value="3 apples", key="ada")
            for record in log.read("orders"):
                print(record.offset, record.value)

    Closing the log first closes the producers and consumers that it created, in order of creation;
    producers send what they have buffered.

    Thread-safe. After a fork, the child must open the path again.

    Raises:
        IllegalState: from any method, if the log is closed or was inherited through a fork, if it
            is read-only and the method writes, or if it is outdated (see `outdated`) and the
            method reads.
    """

    def __init__(self, engine: Engine) -> None:
        """Wrap an engine; programs call `eoslog.open` instead."""
        engine.check()
        self._clients = OwnedClients()
        self._closed = False
        self._opened = engine

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"Log({self.path!r}, durability={self.durability!r}{state})"

    def __reduce__(self) -> NoReturn:
        """Refuse copies, which would close the directory of the original."""
        raise TypeError(
            f"cannot copy or pickle {self!r}; pass its path, and call eoslog.open in the other "
            "process"
        )

    def _repr_html_(self) -> str:
        """Return a small table of the topics, for notebooks."""
        from eoslog.admin.overview import overview

        return overview(self._opened, closed=self._closed)

    @property
    def path(self) -> str:
        """The path of the directory."""
        return self._opened.path

    @property
    def read_only(self) -> bool:
        """Whether the log was opened with `read_only=True`."""
        return self._opened.read_only

    @property
    def durability(self) -> str:
        """Where acknowledged records are, "strict" (disk) or "os" (page cache)."""
        return self._opened.durability

    @property
    def cluster_id(self) -> str:
        """The unique id of this log directory, like Kafka's `cluster.id`."""
        return self._opened.properties.cluster_id

    @property
    def outdated(self) -> bool:
        """Whether a writer came after this read-only log was opened without one.

        Reading then raises IllegalState. Open the log again.
        """
        return self._engine.outdated

    @property
    def _engine(self) -> Engine:
        """The open directory, which other handles share.

        Raises:
            IllegalState: if the log is closed, or was inherited through a fork.
        """
        if self._closed:
            raise IllegalState(f"{self.path}: the log is closed; open it again")
        self._opened.check()
        return self._opened

    @property
    def _current(self) -> Engine:
        """The engine, unless this is an outdated read-only log."""
        self._engine.refuse_outdated()
        return self._engine

    def close(self) -> None:
        """Close the producers and consumers of this log, then the log itself.

        Producers send what they have buffered. A second call does nothing.

        Raises:
            EoslogError: if a client could not be closed without an error. Everything is closed in
                any case.
        """
        if not self._closed:
            self._closed = True
            self._clients.close(then=self._opened.close)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self._clients.fail(kind, error, trace)
        self.close()

    # --- topics ---------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: TopicOptions | None = None,
        *,
        exist_ok: bool = False,
    ) -> TopicDescription:
        """Create a topic.

        Args:
            name: at most 249 letters, digits, ".", "_" and "-".
            partitions: the number of partitions, 1 to 10,000.
            config: Kafka's topic keys, for example {"retention.ms": 86_400_000}. Other keys have
                their defaults. At run time, any mapping is accepted.
            exist_ok: if the topic exists, leave its partitions and configuration as they are, and
                return its description.

        Returns:
            The description of the topic.

        Raises:
            TopicAlreadyExists: if the topic exists and `exist_ok` is False.
            InvalidTopic: if the name is illegal.
            InvalidPartitions: if the number of partitions is out of range.
            ConfigError: if a key is unknown or a value is invalid.
            DiskFull, TooManyOpenFiles: the message says whether the topic exists now.
            LockTimeout: if another process is suspended while it uses a deleted topic of the name.
                The topic exists; its partitions open when that process has continued.

        Durability:
            The topic is durable when the call returns.
        """

        def state() -> tuple[str, str]:
            if name not in self.topics():
                return f"topic {name!r} was not created", "create it again"
            step = f"use it, or delete it with log.delete_topic({name!r})"
            return f"topic {name!r} was created, but not the files of its partitions", step

        try:
            with explain_unfinished(state):
                self._engine.for_writing().topics.create(name, partitions, config)
                return self.describe_topic(name)
        except TopicAlreadyExists:
            if not exist_ok or name not in self.topics():  # missing if it is being deleted
                raise
        return self.describe_topic(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, with its records and the groups' committed offsets in it.

        Args:
            name: the topic.

        Raises:
            UnknownTopicOrPartition: if the topic does not exist.
            LockTimeout: if another process creates or recovers a partition of the topic for over
                30 s, or is suspended then. The topic is deleted; the next call removes its files.
        """
        self._engine.for_writing().topics.delete(name)

    def create_partitions(self, name: str, total: int) -> None:
        """Increase the number of partitions of a topic.

        Existing records stay where they are. New records with the same key may go to a different
        partition, because the partitioner uses the number of partitions.

        Args:
            name: the topic.
            total: the new number of partitions.

        Raises:
            UnknownTopicOrPartition: if the topic does not exist.
            InvalidPartitions: if the topic has that many partitions already, or `total` is out of
                range.
            DiskFull, TooManyOpenFiles: the message says how many partitions the topic has now.
        """

        def state() -> tuple[str, str]:
            have = len(self._engine.metadata.topic(name).partitions)
            if have < total:
                return f"topic {name!r}: it has {have} of {total} partitions", "call it again"
            return f"topic {name!r}: it has {have} partitions now, but not all files", "use them"

        with explain_unfinished(state):
            self._engine.for_writing().metadata.create_partitions(name, total)
            self.describe_topic(name)  # creates the directories, which read-only readers cannot

    def alter_topic(self, name: str, config: TopicOptions | TopicChanges) -> None:
        """Change the configuration of a topic.

        Args:
            name: the topic.
            config: Kafka's topic keys with new values; None resets a key to its default. At run
                time, any mapping is accepted.

        Raises:
            UnknownTopicOrPartition: if the topic does not exist.
            ConfigError: if a key is unknown or a value is invalid.
        """
        self._engine.for_writing().topics.alter(name, dict(as_mapping("config", config)))

    def topics(self) -> list[str]:
        """Return the names of all topics except internal ones, in order.

        Raises:
            IllegalState: if this read-only log is outdated (see `outdated`).
        """
        self._current.metadata.refresh()
        return sorted(self._engine.metadata.topics)

    def describe_topic(self, name: str) -> TopicDescription:
        """Describe a topic, with the offsets of its partitions.

        Args:
            name: the topic.

        Raises:
            UnknownTopicOrPartition: if the topic does not exist.
        """
        info = self._current.topic(name)
        partitions = [
            PartitionDescription(
                number, info.partitions[number].leader_epoch, self.offsets(name, number)
            )
            for number in sorted(info.partitions)
        ]
        return TopicDescription(name, info.topic_id, partitions, dict(info.config))

    def topic_id(self, name: str) -> bytes:
        """Return the id of a topic, 16 bytes.

        A topic that is deleted and re-created under its name has another id.

        Args:
            name: the topic.

        Raises:
            UnknownTopicOrPartition: if the topic does not exist.
        """
        return self._engine.topic(name).topic_id

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic, in order.

        Args:
            topic: the topic.

        Raises:
            UnknownTopicOrPartition: if the topic does not exist.
        """
        return [TopicPartition(topic, n) for n in sorted(self._current.topic(topic).partitions)]

    def match_topics(self, pattern: str) -> list[str]:
        """Return the topics whose complete name matches a regular expression.

        Internal topics never match.

        Args:
            pattern: a regular expression.

        Raises:
            ConfigError: if the pattern is not a valid regular expression.
            UnknownTopicOrPartition: if no topic matches.
        """
        matching = compiled("match_topics", pattern)
        names = [name for name in self.topics() if matching.fullmatch(name)]
        if not names:
            raise UnknownTopicOrPartition(
                f"match_topics: no topic matches {pattern!r}; log.topics() lists all topics"
            )
        return names

    # --- offsets --------------------------------------------------------------------------------

    def offsets(self, topic: str, partition: int) -> Offsets:
        """Return the current start and ends of a partition.

        Args:
            topic: the topic.
            partition: the partition number.

        Raises:
            UnknownTopicOrPartition: if the partition does not exist.
            IllegalState: if this read-only log is outdated (see `outdated`).
        """
        return health.offsets_of_log(self._current.partition(topic, partition))

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """Return the first offset with a timestamp at or after a time.

        Args:
            topic: the topic.
            partition: the partition number.
            timestamp_ms: the time, in ms since the epoch.

        Returns:
            The offset; the high watermark if there is no such record.

        Raises:
            UnknownTopicOrPartition: if the partition does not exist.
            IllegalState: if this read-only log is outdated (see `outdated`).
        """
        log = self._current.partition(topic, partition)
        end = log.high_watermark
        when = as_int("timestamp_ms", timestamp_ms, "ms since 1970 as int")
        found = log.offset_for_time(when, end)
        return end if found is None else found

    def snapshot(self, topics: Sequence[str] | None = None) -> dict[TopicPartition, int]:
        """Return end offsets of all partitions that split no transaction.

        A reader that reads every partition up to its end offset sees each transaction completely or
        not at all. The ends are never below those of an earlier snapshot.

        Args:
            topics: the topics to return; None means all. The ends split no transaction of any
                topic.

        Returns:
            The end offset (exclusive) of each partition.

        Raises:
            UnknownTopicOrPartition: if one of `topics` does not exist, or was deleted during the
                call; or if a topic was re-created in each of 16 attempts.
            EoslogError: if a partition of these topics cannot be opened.
        """
        from eoslog.client.scan.same_topics import of_same_topics

        wanted = None if topics is None else as_list_of(str, "topics", "names", topics)
        return of_same_topics(self._current, wanted, lambda: self._cut(wanted))

    def _cut(self, topics: Sequence[str] | None) -> dict[TopicPartition, int]:
        """Return a snapshot that may mix ends of a re-created topic and the old one."""
        engine = self._current
        partitions = [TopicPartition(*key) for key in engine.user_partitions()]
        return engine.transactions.snapshot(partitions, topics)

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
        binary: str | None = None,
        key: Format = None,
        value: Format = None,
        schema: Any = None,
    ) -> Scan:
        """Create a scan of a topic, as Arrow columns.

        The bounds of the scan are fixed now. Reading begins with the first batch.

        Args:
            topic: the topic.
            partitions: the partition numbers; None means all. They are read one after the other.
            start: the first offset, one for all partitions or one for each; None means the log
                start.
            end: the offset after the last one, one for all partitions or one for each; None means
                the current last stable offset (the high watermark with read_uncommitted). One
                offset for all is a limit: shorter partitions end earlier. An offset for a partition
                must be readable.
            isolation: "read_committed" or "read_uncommitted".
            columns: some of topic, partition, offset, timestamp, timestamp_type, key, value and
                headers; None means all. Only these are decoded.
            batch_rows: the most rows of a record batch.
            binary: "view" for keys and values as binary_view, "copy" for binary; None means "view",
                except in `Scan.to_table`.
            key: the format of the column `key`: "string", "short", "integer", "long", "float",
                "double" or "uuid" (as text). None: keys stay bytes. Formats need pyarrow.
            value: the format of the column `value`, as `key`; or "json" for a struct of the fields
                of `schema`. JSON's null is a null struct, and other members are left out.
            schema: a `pyarrow.Schema` with the members of "json" values. A missing one is null.

        Returns:
            The scan. Its methods that return pyarrow's classes need the extra `[arrow]`.

        Raises:
            UnknownTopicOrPartition: if the topic or a partition does not exist.
            OffsetOutOfRange: if `start` is below a log start; or for a partition's own bounds, if
                `start` is beyond the log end, or `end` is above the last readable offset.
            ConfigError: if a column, isolation level, format or value of `binary` is unknown, or
                the schema is missing or invalid.
            SerializationError: from the iteration, if a key or value is not in the format, after
                the records before it; the message has its partition and offset.
        """
        from eoslog.client.scan.log_scan import ScanOptions, scan

        options = ScanOptions(
            partitions=partitions, start=start, end=end, isolation=isolation,
            columns=columns, batch_rows=batch_rows, binary=binary, key=key, value=value,
            schema=schema,
        )  # fmt: skip
        return scan(self._current, topic, options)

    def read(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: int | Mapping[TopicPartition, int] | None = None,
        end: int | Mapping[TopicPartition, int] | None = None,
        isolation: str = "read_committed",
        key: Format = None,
        value: Format = None,
    ) -> Iterator[Record]:
        """Yield the records of a topic up to its current end, partition by partition.

        No offset is committed. To read later records too, use `consumer`.

        Args:
            topic: the topic.
            partitions: the partition numbers; None means all.
            start: the first offset, one for all partitions or one for each; None means the log
                start.
            end: the offset after the last one, one for all partitions or one for each; None means
                the current last stable offset (the high watermark with read_uncommitted).
            isolation: "read_committed" or "read_uncommitted".
            key: the format of keys: "string", "json", "integer", "long", "double", "uuid",
                "msgpack", or a callable that takes the bytes. None: keys stay bytes.
            value: the format of values, as `key`.

        Raises:
            ConfigError: if a format is unknown.
            SerializationError: if a key or value is not in the format, after the records before
                it.
            EoslogError: as `scan` and its iteration.
        """
        from eoslog.client.scan.log_scan import ScanOptions, scan

        options = ScanOptions(partitions=partitions, start=start, end=end, isolation=isolation)
        return scan(self._current, topic, options).records(key=key, value=value)

    def last(
        self,
        topic: str,
        n: int = 1,
        partition: int | None = None,
        *,
        key: str | bytes | None = None,
        end: int | Mapping[TopicPartition, int] | None = None,
        isolation: str = "read_committed",
    ) -> list[Record]:
        """Return the last records of a topic, the newest one last.

        The last `n` records of each partition are ordered by timestamp, partition and offset, and
        the last `n` of these are returned. Partitions are read from their ends backwards.

        Args:
            topic: the topic.
            n: the most records to return, 1 or more.
            partition: the partition number; None means all.
            key: only records with this key; None means all.
            end: the offset after the last one, as in `scan`.
            isolation: "read_committed" or "read_uncommitted".

        Raises:
            ConfigError: if an argument is invalid.
            UnknownTopicOrPartition: if the topic or the partition does not exist.
            OffsetOutOfRange: if a partition's own `end` is above its last readable offset.
            CorruptRecord: if a batch is damaged.
        """
        from eoslog.client.scan.last import last_records

        return last_records(
            self._current, topic, n, partition=partition, key=key, end=end, isolation=isolation
        )

    def query(self, sql: str) -> pa.Table:
        """Run an SQL statement of DuckDB over topics, and return its result.

        Each topic is a view with the columns of `scan`. All topics of a statement are read at one
        point in time, which splits no transaction. Keys and values are blobs: `decode(value)`
        gives their text. Quote "offset", which is an SQL keyword, and names with other
        characters, as in `from "web-clicks"`.

        Args:
            sql: one statement.

        Returns:
            The rows, as a pyarrow table.

        Raises:
            ConfigError: if the statement is invalid, or DuckDB or pyarrow is not installed.
            UnknownTopicOrPartition: if a table of the statement does not exist, or was deleted or
                re-created while it was read.
            EoslogError: as the iteration of a scan.
        """
        from eoslog.client.scan.query import query
        from eoslog.client.scan.same_topics import of_same_topics

        def scans(topics: set[str]) -> dict[str, Scan]:
            def plan() -> dict[str, Scan]:
                ends = self._cut(sorted(topics))
                return {name: self.scan(name, end=ends) for name in topics}

            return of_same_topics(self._current, topics, plan)

        return query(sql, self.topics(), scans)

    def table(
        self, topic: str, key: Format = "string", value: Format = "json", follow: bool = False
    ) -> Table:
        """Read a topic as a table: the last value of each key.

        The table has the state of a snapshot that splits no transaction. Tables of applications
        are read like this by any process.

        Args:
            topic: the topic.
            key: the format of keys: "bytes", "string", "json", "integer", "long", "double", "uuid",
                "msgpack", or a callable that takes the bytes.
            value: the format of values, as `key`.
            follow: at each access, also read what was committed since the last one. False keeps
                the state of the call until `Table.refresh` is called.

        Returns:
            A read-only mapping.

        Raises:
            UnknownTopicOrPartition: if the topic does not exist.
            ConfigError: if a format is unknown.
            CorruptRecord: if a batch is damaged.
        """
        from eoslog.client.table import Table

        return Table(self._current, self._cut, topic, key, value, follow)

    def process(
        self,
        topic: str,
        handler: Callable[..., Any],
        *,
        group_id: str,
        until: Literal["caught_up"] | None = None,
        **options: Unpack[ProcessOptions],
    ) -> RunReport:
        """Run a function over the records of a topic, as an application with one task.

        Args:
            topic: the topic.
            handler: gets a record and a `Context`, as a task of `eoslog.App` does.
            group_id: the id of the application, and of its consumer group.
            until: as for `App.run`.
            options: the options of `App` and `App.task`, for example `value="json"`.

        Returns:
            What the run has done.

        Raises:
            TypeError: if an option does not exist.
            ConfigError: if an option is invalid.
            EoslogError: as `App.run`.
        """
        # The layer of applications is above this one; the package has its name.
        app = sys.modules["eoslog"].App._of_handler(self, group_id, topic, handler, options)
        report: RunReport = app.run(until=until)
        return report

    # --- clients --------------------------------------------------------------------------------

    @overload
    def producer(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        name: str,
        **options: Unpack[ProducerOptions],
    ) -> NamedProducer: ...
    @overload
    def producer(
        self, config: Mapping[str, Any] | None = None, **options: Unpack[ProducerOptions]
    ) -> Producer: ...
    def producer(self, config: Mapping[str, Any] | None = None, **options: Any) -> Producer:
        """Create a producer for this log, which is closed with the log.

        Args:
            config: Kafka's producer keys.
            options: the same keys in snake_case, for example `transactional_id="till-1"`. They
                override `config`.

        Returns:
            The producer; with a `name`, a `NamedProducer`, which takes publishing ids.

        Raises:
            ConfigError: if a key is unknown, a value is invalid, or keys conflict.
            IllegalState: if the log is read-only.
        """
        keys = keys_of_log(self.path, config, options)
        self._engine.for_writing().in_place()
        if {**keys, **options}.get("name") is not None:
            from eoslog.client.producer.named.producer import NamedProducer

            return self._clients.add(NamedProducer(keys, **options))
        from eoslog.client.producer.producer import Producer

        return self._clients.add(Producer(keys, **options))

    def consumer(
        self, *topics: str, group_id: str | None = None, **options: Unpack[LogConsumerOptions]
    ) -> Consumer:
        """Create a consumer for this log, which is closed with the log.

        With a group, the consumer subscribes to the topics. Without one, all their partitions are
        assigned to it.

        Args:
            topics: topic names; none leaves the consumer without a subscription.
            group_id: the consumer group, or None.
            options: Kafka's consumer keys in snake_case, for example
                `auto_offset_reset="earliest"`.

        Raises:
            ConfigError: if a key is unknown, a value is invalid, or keys conflict.
            IllegalState: if the log is read-only and there is a group.
        """
        from eoslog.client.consumer.consumer import Consumer

        return self._consumer_of(Consumer, topics, group_id, {**options})

    def _consumer_of(
        self, kind: type[C], topics: tuple[str, ...], group_id: str | None, options: dict[str, Any]
    ) -> C:
        if group_id is not None:
            options["group_id"] = group_id
        names = as_names("topics", topics)
        config, engine = keys_of_log(self.path, None, options), self._engine
        if not engine.read_only:
            engine.in_place()
        consumer = self._clients.add(
            kind._of_engine(engine, config, **options)
            if engine.read_only
            else kind(config, **options)
        )
        if topics and group_id is not None:
            consumer.subscribe(names)
        elif topics:
            consumer.assign([tp for name in names for tp in self.partitions_of(name)])
        return consumer

    # --- coroutines -----------------------------------------------------------------------------

    def async_producer(
        self, config: Mapping[str, Any] | None = None, **options: Unpack[ProducerOptions]
    ) -> AsyncProducer:
        """Create a producer for coroutines of asyncio or trio; `async with` starts it.

        Args:
            config: Kafka's producer keys.
            options: the same keys in snake_case, as for `producer`.

        Raises:
            ConfigError: if a key is unknown, a value is invalid, or keys conflict.
            IllegalState: if the log is read-only.
        """
        from eoslog.aio.producer import AsyncProducer, check_settings, producer_of

        keys = keys_of_log(self.path, config, options)
        self._engine.for_writing()
        check_settings(keys, options)

        def create() -> Producer:
            self._engine.in_place()
            return self._clients.add(producer_of(keys, options))

        return AsyncProducer(create, self._clients.add)

    def async_consumer(
        self, *topics: str, group_id: str | None = None, **options: Unpack[LogConsumerOptions]
    ) -> AsyncConsumer:
        """Create a consumer for coroutines of asyncio or trio; `async with` starts it.

        Args:
            topics: topic names; none leaves the consumer without a subscription.
            group_id: the consumer group, or None.
            options: Kafka's consumer keys in snake_case, as for `consumer`. A `producer` is an
                `AsyncProducer` that is started.

        Raises:
            ConfigError: if a key is unknown, a value is invalid, or keys conflict.
            IllegalState: if the log is read-only and there is a group.
        """
        from eoslog.aio.consumer import consumer_of

        return consumer_of(self._consumer_of, self._clients.add, topics, group_id, {**options})

    # --- prepared transactions ------------------------------------------------------------------

    def pending(self, resolver: str | None = None) -> list[PreparedTransaction]:
        """Return the prepared transactions that are undecided, the oldest first.

        Args:
            resolver: only those of this resolver; None means all.
        """
        return prepared.pending(self._current, resolver)

    def resolve(self, token: str, outcome: Outcome) -> None:
        """Decide a prepared transaction; the same decision again succeeds.

        Args:
            token: `str()` of the prepared transaction.
            outcome: `Outcome.COMMIT` or `Outcome.ABORT`.

        Raises:
            UnknownToken: if the token is of another log, or its outcome was forgotten
                (`outcome.retention.ms`).
            OutcomeConflict: if it was decided the other way.
            ConfigError: if `outcome` is neither COMMIT nor ABORT.
            RequestTimedOut: if it is decided, but another process blocks its completion.

        Durability:
            The decision is durable when the call returns, and its records are visible, unless
            their time (`deliver_at`) is in the future.
        """
        prepared.resolve(self._engine.for_writing(), token, outcome)

    def outcome(self, token: str) -> Outcome | None:
        """Return the decision about a prepared transaction.

        Args:
            token: `str()` of the prepared transaction.

        Returns:
            COMMIT or ABORT; UNKNOWN while it is undecided; None for an unknown token.
        """
        return self._current.transactions.prepared.outcome(str(token))

    def recheck(self, token: str) -> bool:
        """Begin the checks of a prepared transaction again; the next one is due now.

        The next process that has registered its resolver asks it. A parked transaction is
        prepared again.

        Args:
            token: `str()` of the prepared transaction.

        Returns:
            Whether the transaction is undecided; False if nothing was changed.

        Raises:
            UnknownToken: if the token is of another log, or its outcome was forgotten.
        """
        return self._engine.for_writing().transactions.prepared.recheck(str(token))

    def register_resolver(
        self,
        name: str,
        fn: Callable[[PreparedTransaction], Any],
        *,
        first_check: float = 6.0,
        interval: float = 30.0,
        backoff: float = 1.0,
        max_checks: int = 15,
        timeout: float = 3.0,
        on_exhausted: str = "park",
        workers: int = 1,
    ) -> Callable[[], None]:
        """Let a function answer how prepared transactions ended.

        While this log is open, the function is called for each undecided transaction that any
        process has prepared with `resolver=name`, even if the process has exited. The function runs
        in threads of its own. If it raises, or exceeds `timeout`, nothing is decided, and it is
        called again.

        Args:
            name: the resolver's name. A function of this process with an equal name is not called
                until the new one is ended.
            fn: receives a `PreparedTransaction` and returns an `Outcome`, or is a coroutine
                function that does.
            first_check: seconds from the prepare to the first call.
            interval: seconds from an answer UNKNOWN, or from a failed call, to the next call.
            backoff: the factor by which the interval grows with each answer UNKNOWN.
            max_checks: the number of answers UNKNOWN after which `on_exhausted` applies.
            timeout: the longest call, in seconds. A later answer is dropped.
            on_exhausted: "park" makes the transaction PARKED: it stays in `pending`, and only
                `resolve` and `recheck` change it. "abort" and "commit" decide it.
            workers: the number of calls at the same time. Calls that hang may double the threads.

        Returns:
            A function that ends the calls.

        Raises:
            ConfigError: if an argument is invalid.
        """
        settings = {
            "first_check": first_check, "interval": interval, "backoff": backoff,
            "max_checks": max_checks, "timeout": timeout, "on_exhausted": on_exhausted,
            "workers": workers,
        }  # fmt: skip
        engine = self._engine.for_writing()
        return self._clients.add(prepared.register_resolver(engine, name, fn, settings)).close

    def half_producer(
        self, group: str, listener: TransactionListener, **settings: Unpack[ResolverOptions]
    ) -> HalfProducer:
        """Create a producer of half messages, and answer for those of its group.

        Args:
            group: the name of the group, and of its resolver. Any number of processes share it.
            listener: runs local transactions, and answers how they ended.
            settings: when the listener is asked, as for `register_resolver`.

        Raises:
            ConfigError: if an argument is invalid.
        """
        from eoslog.client.half_producer import HalfProducer

        return self._clients.add(HalfProducer(self, group, listener, **settings))

    def run_transaction(
        self,
        fn: Callable[[Transaction], T],
        *,
        transactional_id: str,
        **options: Unpack[CommonProducerOptions],
    ) -> T:
        """Run a function in a transaction of a new producer.

        The function runs again after an abortable or retriable error, up to 10 times. So it must
        not have effects outside the transaction.

        Args:
            fn: receives the open transaction (`tx.produce`, `tx.commit_offsets`).
            transactional_id: the producer's transactional id.
            options: more producer keys, in snake_case.

        Returns:
            The result of `fn`.

        Raises:
            CommitOutcomeUnknown: if the decision may not be durable. The next producer with this id
                finds out the outcome.
            RequestTimedOut: if the commit has not ended in time. The same holds.
            Exception: if `fn` raises it, or the error is fatal; the transaction is aborted first.

        Durability:
            The transaction is durable when the call returns.
        """
        with self.producer(transactional_id=transactional_id, **options) as producer:
            producer.init_transactions()
            return run_transaction(producer, fn)

    def last_publishing_id(self, name: str, topic: str, partition: int) -> int | None:
        """Return the last committed publishing id of a producer name in a partition.

        If an open transaction has ids of the name, the call waits for its end.

        Args:
            name: the name of the producer.
            topic: the topic.
            partition: the partition number.

        Returns:
            The id; None if the name has stored no record with an id, or was forgotten
            (`publishing.id.expiration.ms`).

        Raises:
            UnknownTopicOrPartition: if the partition does not exist.
            KafkaError: UNSTABLE_OFFSET_COMMIT, if a transaction is undecided after a minute.

        Durability:
            The returned id is durable.
        """
        from eoslog.client.producer.named.publishing_ids import last_publishing_id

        return last_publishing_id(self._current, name, topic, partition)

    @overload
    def sink(
        self,
        consumer: Consumer,
        database: Database,
        records: int = 500,
        timeout: float | None = 1.0,
    ) -> Sink: ...
    @overload
    def sink(
        self,
        consumer: AsyncConsumer,
        database: Database,
        records: int = 500,
        timeout: float | None = 1.0,
    ) -> AsyncSink: ...
    def sink(
        self,
        consumer: Any,
        database: Database,
        records: int = 500,
        timeout: float | None = 1.0,
    ) -> Sink | AsyncSink:
        """Apply a consumer's records to a database exactly once, batch by batch.

        The offsets are stored in the database, in the transaction of the rows::

            for batch in log.sink(consumer, database):
                for record in batch:
                    batch.connection.execute("insert into bill values (?)", (record.value,))

        A batch is committed when the loop asks for the next one, or by `batch.commit()`. If the
        loop ends by `break` or an exception, the batch is rolled back, and its records are read
        again by the next loop. The same holds after a crash.

        Until the first commit, the database has no offset. Pass `auto_offset_reset="earliest"` to
        the consumer: with the default, "latest", a process that dies before that commit is
        followed by one that begins at the end of the topic.

        The loop continues until the consumer is closed. If another consumer has taken over a
        partition, the batch is rolled back, and the loop continues with the offsets of the
        database.

        A coroutine passes an `AsyncConsumer`, and a database over an AsyncEngine of SQLAlchemy.
        It uses `async for` and `await batch.commit()`.

        Args:
            consumer: a consumer of this log with a `group.id`. The database becomes its offset
                store, and auto-commit ends.
            database: the database, with its rows and the offsets.
            records: the most records of a batch.
            timeout: the longest wait for records in seconds. After it, the loop gets an empty
                batch, so that it can check whether to stop. None waits until a record comes, and
                ends the loop after `consumer.wakeup()`.

        Returns:
            An iterable of batches; an asynchronous one for an `AsyncConsumer`.

        Raises:
            ConfigError: if the consumer has no group, commits in another way, or an argument is
                invalid. From the loop: if the settings of the database do not allow durable
                commits.
            DatabaseUnavailable: from the loop, if the database is down or too slow. Nothing is
                lost. Begin the loop again.
            IllegalState: from the loop, if the program ended the database transaction itself.

        Durability:
            The rows and the offsets of a batch are durable together when the next batch is
            returned.
        """
        if _is_async(consumer):
            from eoslog.aio.sink import AsyncSink

            return AsyncSink(consumer, database, records, timeout)
        from eoslog.sql.sink import Sink

        return Sink(consumer, database, records, timeout)

    @overload
    def atomic(
        self, producer: Producer, database: Database, connection: Any = None
    ) -> AtomicTransaction: ...
    @overload
    def atomic(
        self, producer: AsyncProducer, database: Database, connection: Any = None
    ) -> AsyncAtomicTransaction: ...
    def atomic(
        self, producer: Any, database: Database, connection: Any = None
    ) -> AtomicTransaction | AsyncAtomicTransaction:
        """Create a transaction of this log and a database: all or nothing.

        The end of the `with` block commits the records, the consumer offsets and the rows::

            with log.atomic(producer, database) as tx:
                tx.connection.execute("insert into orders values (7, 'ada')")
                tx.produce("orders", value="7", key="ada")

        An exception in the block rolls back both. After a crash, the database decides: the next
        `atomic` of this transactional id asks it first, and so does any process that has used
        `atomic` with the database. `init_transactions` need not be called. Read the records of
        `commit_offsets` inside the block: before it, a consumer waits for offsets that a killed
        process has left undecided, and no process decides them.

        A coroutine passes an `AsyncProducer`, and a database over an AsyncEngine of SQLAlchemy.
        It uses `async with`, and the methods of an `AsyncTransaction`.

        Args:
            producer: a producer of this log with a `transactional.id`, or with a `name`.
            database: the database with the rows, and with the outcome of the transaction.
            connection: a connection to the database, with or without an open transaction, which
                the block ends. If the `with` statement raises, the transaction is rolled back,
                with the rows from before the block. None means a connection that the database
                opens.

        Returns:
            A transaction with the methods of `Producer.transaction` and with `connection`.

        Raises:
            ConfigError: if an argument is invalid, or the settings of the database do not allow
                durable commits.
            DatabaseUnavailable: if the database is down or too slow. At the start of the block,
                nothing is begun. At its end, the message says whether the outcome is known.
            PreparedTransactionPending: at the start, if this transactional id has left a
                transaction prepared with another database.
            TransactionAborted: at the end, if a resolver has aborted the transaction. Nothing was
                written; repeat the work.
            OutcomeConflict: at the end, if the log's part was aborted with `Log.resolve` although
                the database has committed.

        Durability:
            Both are durable when the block ends without an exception.
        """
        if _is_async(producer):
            from eoslog.aio.atomic import AsyncAtomicTransaction

            return AsyncAtomicTransaction(self, producer, database, connection)
        from eoslog.sql.atomic import atomic_transaction

        return atomic_transaction(self, producer, database, connection)

    # --- transactions and groups ----------------------------------------------------------------

    def transactions(self, open_only: bool = True) -> list[TransactionDescription]:
        """Describe transactional ids, with the process of each.

        Args:
            open_only: return only ids with an open transaction; False returns all ids.
        """
        return diagnosis.transactions(self._current, open_only=open_only)

    def abort_transaction(self, transactional_id: str) -> bool:
        """Abort the open transaction of a transactional id, and fence its producer.

        Args:
            transactional_id: the transactional id.

        Returns:
            Whether a transaction was aborted. A transaction that is decided already is completed
            instead.

        Raises:
            TransactionalIdNotFound: if the id does not exist.

        Durability:
            The abort is durable when the call returns.
        """
        return self._engine.for_writing().transactions.abort_transaction(transactional_id)

    def producers(self, topic: str, partition: int) -> list[ProducerDescription]:
        """Return the state of the producers that have written to a partition.

        Args:
            topic: the topic.
            partition: the partition number.

        Raises:
            UnknownTopicOrPartition: if the partition does not exist.
        """
        return self._current.partition(topic, partition).producers()

    def groups(self) -> list[str]:
        """Return the ids of all groups, in order."""
        return self._current.groups.list_groups()

    def describe_group(self, group_id: str) -> GroupDescription:
        """Describe a group, with its members, committed offsets and blockers.

        Args:
            group_id: the group.

        Raises:
            GroupNotFound: if the group does not exist.
        """
        return diagnosis.describe_group(self._current, group_id)

    def committed(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group.

        If a transaction has written offsets and is not decided, the call waits for its end.

        Args:
            group_id: the group.
            partitions: some partitions; None means all.

        Returns:
            The offsets, without partitions that have none.

        Raises:
            KafkaError: UNSTABLE_OFFSET_COMMIT, if a transaction is undecided after a minute, or
                immediately if the log was opened read-only while there was no writer.
        """
        return self._current.groups.fetch_offsets(group_id, partitions)

    def lag(self, group_id: str) -> dict[TopicPartition, int]:
        """Return the lag of a group, up to the last stable offsets.

        Args:
            group_id: the group.

        Returns:
            The lag of each partition with a committed offset. It is 0 if no visible record is left.
            Other partitions are missing, also if they have records that the group has not read.

        Raises:
            GroupNotFound: if the group does not exist.
        """
        return health.lag(self._current, group_id)

    def reset_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int | str | OffsetAndMetadata],
        *,
        forward_only: bool = False,
    ) -> None:
        """Set committed offsets of a group that has no members.

        Args:
            group_id: the group, which may be new.
            offsets: the next offset to read of each partition, or "earliest" (the current log
                start) or "latest" (the current last stable offset).
            forward_only: set only offsets that are larger than those of the group. The comparison
                and the write are one step. If a transaction has written offsets of the partitions
                and is not decided, the call waits for its end.

        Raises:
            NonEmptyGroup: if the group has members.
            UnknownTopicOrPartition: if a partition does not exist, an offset has the `topic_id` of
                another topic, or a topic with "earliest" or "latest" was re-created; call again.
            KafkaError: UNSTABLE_OFFSET_COMMIT, if `forward_only` is True and a transaction is
                undecided after a minute.
            PolicyViolation: if the group stores Spark write versions (`__eoslog-spark-...`) or
                publishing ids (`__eoslog-ids-...`).

        Durability:
            The offsets are durable when the call returns.
        """
        from eoslog.client.scan.same_topics import of_same_topics

        places = as_mapping("offsets", offsets)
        named = {as_partition(tp).topic for tp, place in places.items() if isinstance(place, str)}

        def ends(tp: TopicPartition) -> tuple[Offsets, bytes]:
            log = self._current.partition(tp.topic, tp.partition)
            return health.offsets_of_log(log), log.topic_id

        wanted = of_same_topics(
            self._current, sorted(named), lambda: offsets_of(named_offsets(places, ends))
        )
        groups = self._engine.for_writing().groups
        groups.reset_offsets(group_id, wanted, forward_only=forward_only)

    def delete_group(self, group_id: str, *, force: bool = False) -> None:
        """Delete a group that has no members, with its committed offsets.

        Args:
            group_id: the group.
            force: also delete a group that stores Spark write versions (`__eoslog-spark-...`) or
                publishing ids (`__eoslog-ids-...`).

        Raises:
            NonEmptyGroup: if the group has members.
            GroupNotFound: if the group does not exist.
            PreparedTransactionPending: if its only offsets are part of a staged transaction.
            PolicyViolation: if the group stores Spark write versions or publishing ids, and
                `force` is False.

        Durability:
            The deletion is durable when the call returns.
        """
        self._engine.for_writing().groups.delete_group(group_id, force=force)

    # --- positions ------------------------------------------------------------------------------

    def position(self, name: str) -> int | str | bytes | None:
        """Return the position that `Transaction.set_position` stored under a name.

        Args:
            name: the name of the position.

        Returns:
            The committed position; None if it was never set, or was deleted.

        Raises:
            ConfigError: if the name is not a str of 1 to 1,024 bytes.
            IllegalState: if this read-only log is outdated (see `outdated`).
        """
        return self._current.positions.get(name)

    def positions(self) -> dict[str, int | str | bytes]:
        """Return all committed positions by name, in the order of their names.

        Raises:
            IllegalState: if this read-only log is outdated (see `outdated`).
        """
        return self._current.positions.all()

    def delete_position(self, name: str) -> bool:
        """Delete a position, so that its source is read from the start again.

        Args:
            name: the name of the position.

        Returns:
            Whether there was such a position.

        Raises:
            PositionConflict: if an open transaction sets the position.
            ConfigError: if the name is not a str of 1 to 1,024 bytes.

        Durability:
            The deletion is durable when the call returns.
        """
        return self._engine.for_writing().positions.delete(name)

    # --- diagnosis -----------------------------------------------------------------------------

    def blockers(self, group_id: str | None = None) -> list[Blocker]:
        """Find what blocks readers now: transactions, locks, group members, damage.

        The call changes nothing.

        Args:
            group_id: find only what blocks this group; None means all partitions and groups.

        Returns:
            One entry for each cause, partition and group; `Blocker` lists the kinds.

        Raises:
            GroupNotFound: if the group does not exist, and no transaction has offsets of it.
        """
        return diagnosis.blockers(self._current, group_id)

    def processes(self) -> list[ProcessDescription]:
        """Return the processes that have the directory open, with their locks and groups.

        Read-only processes are included if this process may read their `/proc/PID/fd`.
        """
        return diagnosis.processes(self._engine)

    def locks(self) -> dict[TopicPartition, AppendLock]:
        """Return the append locks that processes hold now, without waiting for them."""
        return health.locks(self._engine)

    # --- Kafka ----------------------------------------------------------------------------------

    def export_kafka(
        self,
        bootstrap: str,
        topics: Sequence[str] | None = None,
        **options: Unpack[KafkaMoveOptions],
    ) -> Moved:
        """Copy committed records to a Kafka cluster, exactly once.

        A second run of the same job continues where the last one stopped. Partition, order, key,
        value, headers and timestamp stay the same; offsets may differ. Missing topics are created
        with the same configuration, and missing partitions are added. This needs the extra
        `[kafka]`.

        Args:
            bootstrap: host and port of the cluster, as "host:port".
            topics: the topics; None means all.
            options: `job` (a name; None means the default), `records` (the most records per
                transaction), `follow` (keep copying, also from partitions that are added later),
                `groups` (whose committed offsets are moved too: names, or "all"), `config`
                (librdkafka's configuration) and `progress` (called after each transaction).

        Returns:
            The number of copied records, and the positions.

        Raises:
            ProducerFenced: if another run of the same job took over.
            IllegalState: if the target has records but the job has no position; if a topic of the
                source or target was re-created; or if the target was cleaned, so that a group's
                offset cannot be translated.
            NonEmptyGroup: if a group that is moved has members at the target.
            ConfigError: if a topic differs at the target, or a timestamp cannot be sent.
            KafkaError: if the cluster reports an error.

        Durability:
            The records are as durable as the cluster makes them. The position is part of each
            transaction.
        """
        from eoslog.kafka.cluster import MoveOptions
        from eoslog.kafka.exporter import export_kafka

        self._engine.check()
        return export_kafka(self, bootstrap, topics, MoveOptions(**options))

    def import_kafka(
        self,
        bootstrap: str,
        topics: Sequence[str] | None = None,
        **options: Unpack[KafkaMoveOptions],
    ) -> Moved:
        """Copy committed records from a Kafka cluster into this log, exactly once.

        A second run of the same job continues where the last one stopped. The positions are stored
        in this log, as named positions (`kafka-import/JOB/TOPIC-PARTITION`), in the transaction of
        the records. Nothing is written to the cluster. This needs the extra `[kafka]`.

        Args:
            bootstrap: host and port of the cluster, as "host:port".
            topics: the topics; None means all.
            options: as for `export_kafka`.

        Returns:
            The number of copied records, and the positions.

        Raises:
            EoslogError: as `export_kafka`.

        Durability:
            The records and the position are durable together, transaction by transaction.
        """
        from eoslog.kafka.cluster import MoveOptions
        from eoslog.kafka.importer import import_kafka

        self._engine.for_writing()
        return import_kafka(self, bootstrap, topics, MoveOptions(**options))

    # --- maintenance ----------------------------------------------------------------------------

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete all records below the given offsets.

        Args:
            offsets: the first offset to keep of each partition; -1 deletes everything up to the
                high watermark.

        Returns:
            The new log start of each partition.

        Raises:
            UnknownTopicOrPartition: if a partition does not exist.
            OffsetOutOfRange: if an offset is above the high watermark.
            PolicyViolation: if the topic's cleanup policy does not allow deletion.
        """
        wanted, engine = starts_of(as_mapping("offsets", offsets)), self._engine.for_writing()
        return {
            tp: delete_records(engine.partitions.settled(tp.topic, tp.partition), before)
            for tp, before in wanted.items()
        }

    def clean(self, topic: str | None = None, *, roll: bool = False) -> dict[TopicPartition, int]:
        """Run compaction and retention now, at any dirty ratio.

        Args:
            topic: one topic, which may be internal; None means all, including internal ones.
            roll: seal the active segments of compacted topics first. Active segments are not
                cleaned.

        Returns:
            The number of bytes that were freed in each partition.

        Raises:
            CorruptRecord: if a partition is damaged; it is unchanged.
            StorageError: if a file operation failed; the partition is unchanged.
            LockTimeout: if another process is cleaning a partition.
        """
        return health.clean(self._engine.for_writing(), topic, roll=roll)

    def backup(
        self,
        path: str | os.PathLike[str],
        *,
        check: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> BackupReport:
        """Copy the log at one point in time, while processes use it.

        The copy is a complete log, with producers, groups and offsets. It has every transaction
        that was committed at that time. Transactions that were open are aborted in the copy.
        Cleaning waits until the copy is complete.

        Args:
            path: the target directory. It must not exist or must be empty, and must be outside of
                the log.
            check: read the copy, and compare its indexes and checksums.
            progress: called after each step, with the copied and the total number of bytes.

        Returns:
            The size of the copy, and the problems that were found in it.

        Raises:
            ConfigError: if the target directory is not new.
            LockTimeout: if another process held a lock for too long, or is writing a backup to the
                same target.
            LogPoisoned: if a flush of the log has failed.
            StorageError: if a file operation failed.

        Durability:
            The copy is durable when its directory appears under its name.
        """
        from eoslog.admin.backup import backup

        return backup(self._engine, as_directory(path), check=check, progress=progress)

    def check(self, full: bool = False) -> CheckReport:
        """Check every batch by its CRC, and compare the indexes.

        Args:
            full: also decode every record.

        Returns:
            The problems that were found.
        """
        return health.check(self._engine, full=full)

    def trace(self, callback: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        """Call a function for each coordinator request of this process.

        Args:
            callback: receives a dict with the request, its arguments and its error.

        Returns:
            A function that ends the calls.

        Raises:
            ConfigError: if `callback` is not callable.
        """
        return self._engine.transactions.trace(callback)

    def stats(self) -> dict[str, Any]:
        """Return counts, sizes (in bytes) and lags.

        The key `offline` lists the partitions that cannot be opened, or whose files are missing.
        """
        return health.stats(self._current)

    def offline_partitions(self) -> dict[TopicPartition, EoslogError]:
        """Return the partitions that cannot be opened, with their errors.

        All other partitions can be used. Damage inside of those is found by `check`.
        """
        return health.offline_partitions(self._engine)


def _is_async(client: object) -> bool:
    """Whether a client is of `eoslog.aio`, which is not imported for others."""
    return any(cls.__module__.startswith("eoslog.aio.") for cls in type(client).__mro__)
