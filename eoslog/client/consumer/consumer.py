"""The consumer: reads partitions, alone or in a group, and commits its progress.

    at-least-once   commit after processing (auto-commit does so at the next poll)
    at-most-once    processing.guarantee=at_most_once: commit before records are returned
    exactly-once    the producer that writes the results commits the offsets in its transactions

Source: Kafka KafkaConsumer, KIP-62, KIP-98, KIP-447, KIP-848.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from eoslog import _core
from eoslog._util.argument_types import explained_calls
from eoslog._util.arguments import as_int, as_seconds
from eoslog._util.closing import Closing
from eoslog.client.arrow.schema import is_view
from eoslog.client.consumer import abandoned
from eoslog.client.consumer.arrow import empty_batch, next_batch
from eoslog.client.consumer.blocked_partitions import BlockedPartitions
from eoslog.client.consumer.closing import ConsumerClosing
from eoslog.client.consumer.fetcher import Fetcher
from eoslog.client.consumer.member_identity import MemberIdentity
from eoslog.client.consumer.membership import Membership
from eoslog.client.consumer.offset_commits import OffsetCommits, commits_by_itself
from eoslog.client.consumer.offset_store import OffsetStore
from eoslog.client.consumer.poll_loop import PollLoop
from eoslog.client.consumer.subscription import (
    Listener,
    SubscriptionState,
    Topics,
    normalise_topics,
)
from eoslog.client.offset_arguments import Offsets, as_list, as_partition, in_the_shape_of, place_of
from eoslog.client.transaction_link import ConsumerLink
from eoslog.config.keys import ConsumerConfig
from eoslog.descriptions import GroupMetadata
from eoslog.errors import (
    ConfigError,
    EoslogError,
    ErrorCode,
    IllegalState,
    UnknownTopicOrPartition,
    error_for,
)
from eoslog.model import EARLIEST, LATEST, NO_RESET, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from eoslog._core import Record
    from eoslog.client.consumer.whole_transactions import WholeTransactions
    from eoslog.engine.engine import Engine
    from eoslog.options import GroupConsumerOptions

__all__ = ["Consumer"]

T = TypeVar("T")
Partitions = TopicPartition | Iterable[TopicPartition]


@explained_calls("consume", "wakeup")
class Consumer(_core.RecordPolling, Closing):
    """A client that reads records from partitions, alone or in a consumer group.

    Use `Log.consumer`, or create a consumer from Kafka's configuration keys::

        with Consumer({"log.dir": "shop", "group.id": "billing"}) as consumer:
            consumer.subscribe(["orders"])
            for record in consumer.consume(timeout=1.0):
                print(record.offset, record.value)

    By default a consumer delivers at least once: auto-commit commits the positions at the next
    poll, after the program has processed the records. `processing.guarantee` selects
    "at_most_once", which commits before records are returned, or "exactly_once", which commits in
    the transactions of `producer` or of the database `offset_store`.

    Use a consumer in one thread at a time; `wakeup` and `close` can be called from any thread.
    After a fork, every method raises IllegalState in the child, except `close`, which does nothing.

    Args:
        config: Kafka's consumer keys, plus `log.dir` (required), the log's directory. The directory
            is created if it is missing, unless `log.create` is False.
        producer: a transactional producer whose transactions commit the offsets, or None.
        offset_store: an `eoslog.sql.Database` that has the offsets of the group, or None. Reading
            begins at these offsets. `Log.sink` or `Database.store_offsets` changes them.
        keywords: the same keys in snake_case, for example `group_id="billing"`. They override
            `config`.

    Raises:
        ConfigError: if a key is unknown, a value is invalid, keys conflict, or exactly-once is
            configured without a transactional producer and without an offset store.
        StorageError: if the directory cannot be opened.
        IllegalState: from any method, if a second thread calls it while a call is running.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        producer: Any = None,
        *,
        offset_store: OffsetStore | None = None,
        **keywords: Unpack[GroupConsumerOptions],
    ) -> None:
        """Check the configuration and open the directory.

        Reading begins with the first poll.
        """
        self._wire(ConsumerConfig.of(config, **keywords), producer, offset_store, None)

    @classmethod
    def _of_engine(
        cls,
        engine: Engine,
        config: Mapping[str, Any] | None = None,
        producer: Any = None,
        *,
        offset_store: OffsetStore | None = None,
        **keywords: Any,
    ) -> Self:
        """Create a consumer of a directory that is open and outlives the consumer."""
        made = cls.__new__(cls)
        made._wire(ConsumerConfig.of(config, **keywords), producer, offset_store, engine)
        return made

    def _wire(
        self,
        config: ConsumerConfig,
        producer: Any,
        offset_store: OffsetStore | None,
        engine: Engine | None,
    ) -> None:
        # The parts have at most weak references to the consumer: dropping it frees it immediately.
        auto_commit = commits_by_itself(config, producer, offset_store)
        owns_engine = engine is None
        if engine is None:
            engine = _open_engine(config)
        self._config = config
        self._engine = engine
        self._use = use = _core.OneThread("consumer")
        self._subscription = subscription = SubscriptionState()
        self._fetcher = fetcher = Fetcher(engine, config, subscription, use)
        self._member = member = MemberIdentity(config)
        self._link = link = ConsumerLink(
            engine, config, use, subscription, fetcher.positions, auto_commits=auto_commit
        )
        self._commits = commits = OffsetCommits(
            engine, config, subscription, member, link, auto_commit=auto_commit
        )
        self._membership = membership = Membership(
            self, engine, config, subscription, fetcher, member, link, commits
        )
        self._whole: WholeTransactions | None = None  # made at the first `poll_transactions`
        blocked = BlockedPartitions(engine, config.group_id, subscription, fetcher.end)
        self._loop = loop = PollLoop(
            engine, use, subscription, fetcher, membership, commits, link, blocked
        )
        if producer is not None:
            try:
                link.check_directory(producer._link)
            except ConfigError:
                if owns_engine:
                    engine.close()
                raise
            link.bind(producer._link)
        if offset_store is not None:
            self._store_offsets_in(offset_store)
        guard = abandoned.watch(self, engine, use, member.place, owns_engine=owns_engine)
        self._closing = ConsumerClosing(
            use, commits, membership, loop, guard, engine.close if owns_engine else None
        )

    def _store_offsets_in(self, store: OffsetStore) -> None:
        """Read and store offsets in a store outside of the log from now on.

        The consumer reads again from the offsets of the store, or from where reading would begin.
        """
        with self._use:
            if self._commits.offset_store is store:
                return
            self._commits.store_in(store)
            self._fetcher.offset_store = store
            self._next_duty = 0.0
            for state in self._subscription.states.values():
                if state.committed is None:
                    state.rewind()
                else:
                    state.forget()  # it began at an offset that is committed in the log
            self._subscription.unsettled = None

    @property
    def _offset_store(self) -> OffsetStore | None:
        return self._commits.offset_store

    def __repr__(self) -> str:
        group = "no group" if self._config.group_id is None else f"group {self._config.group_id!r}"
        state = "closed" if self.closed else f"{len(self._subscription.states)} partitions"
        return f"<Consumer {group}, {state}>"

    # Topics and partitions.

    def subscribe(
        self,
        topics: Topics,
        on_assign: Listener | None = None,
        on_revoke: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Subscribe to topics, and share their partitions with the group's members.

        The subscription takes effect at the next poll. Without a `group.id`, all partitions of the
        topics are assigned to this consumer. A topic may be created after the subscription.

        Listeners run inside a poll. They can commit and seek, but not close or unsubscribe.

        Args:
            topics: topic names, or a pattern that must match complete names: a compiled pattern,
                or a string that is not a legal topic name. Internal topics never match a pattern.
            on_assign: called with the consumer and the partitions that were assigned.
            on_revoke: called with the consumer and the partitions that will be revoked; it can
                still commit their offsets.
            on_lost: called with the consumer and the partitions that another member owns already;
                None means `on_revoke`.

        Raises:
            IllegalState: if partitions were assigned with `assign`, or the log is read-only.
            ConfigError: if `topics` has an invalid pattern or something else than names.
        """
        with self._use:
            self._next_duty = 0.0
            wanted = normalise_topics(topics)
            if isinstance(wanted, list) and not wanted:
                self.unsubscribe()
            elif self._config.group_id is not None:
                self._membership.subscribe(wanted, on_assign, on_revoke, on_lost)
            elif isinstance(wanted, list):
                self._assign(
                    [
                        TopicPartition(topic, partition)
                        for topic in wanted
                        for partition in sorted(self._engine.topic(topic).partitions)
                    ]
                )
            else:
                raise error_for(
                    ErrorCode.INVALID_GROUP_ID,
                    "subscribe: a pattern needs a group.id; configure one, or pass topic names",
                )

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions, without joining a group.

        Partitions that stay assigned keep their positions. Auto-commit commits the positions of
        the previous assignment first.

        Args:
            partitions: the partitions. One with an offset, "earliest" or "latest" starts there.
                Others start at their committed offset, or as `auto.offset.reset` says.

        Raises:
            ConfigError: if an offset is invalid.
            IllegalState: if topics are subscribed.
            UnknownTopicOrPartition: if a partition does not exist.
        """
        with self._use:
            self._assign(as_list(partitions))

    def _assign(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            info = self._engine.topic(partition.topic)
            if partition.partition not in info.partitions:
                raise UnknownTopicOrPartition(
                    f"{partition}: the topic has only {len(info.partitions)} partitions; assign "
                    f"one of 0 to {len(info.partitions) - 1}"
                )
        if self._subscription.manual:  # without a group, no rebalance commits them
            self._commits.before_loss(self._subscription.states)
        moved = self._subscription.assign(partitions)
        if self._config.auto_offset_reset == NO_RESET:
            moved = [state for state in moved if state.reset is not None]
        # Resolve "latest" now, not at the first poll.
        self._fetcher.locate(moved)

    def unsubscribe(self) -> None:
        """Unsubscribe from all topics, or unassign all partitions, and leave the group.

        Auto-commit commits the positions first.

        Raises:
            IllegalState: if a rebalance listener calls it.
        """
        with self._use:
            self._membership.refuse_in_listener("unsubscribe")
            self._membership.leave()

    def assignment(self) -> list[TopicPartition]:
        """Return the assigned partitions, in order."""
        return sorted(self._subscription.states)

    def subscription(self) -> Topics:
        """Return the subscribed topics or pattern; an empty list without a subscription."""
        return self._subscription.topics if self._subscription.topics is not None else []

    def pause(self, partitions: Partitions) -> None:
        """Stop returning records of these partitions until `resume`.

        Args:
            partitions: one or more assigned partitions.

        Raises:
            IllegalState: if a partition is not assigned.
        """
        with self._use:
            for state in self._subscription.select(partitions):
                state.paused = True

    def resume(self, partitions: Partitions) -> None:
        """Return records of these partitions again.

        Args:
            partitions: one or more assigned partitions.

        Raises:
            IllegalState: if a partition is not assigned.
        """
        with self._use:
            for state in self._subscription.select(partitions):
                state.paused = False

    def paused(self) -> list[TopicPartition]:
        """Return the paused partitions, in order."""
        return sorted(p for p, state in self._subscription.states.items() if state.paused)

    # Records.

    def _poll_one(self, timeout: float | None) -> Record | None:
        with self._use:
            try:
                records = self._loop.find(self._fetcher.collect, 1, timeout)
            finally:
                self._next_duty = self._loop.next_duty
            self._current = self._fetcher.current
            return records[0] if records else None

    def consume(
        self, num_messages: int | None = None, timeout: float | None = None
    ) -> list[Record]:
        """Return the available records, and wait for at least one.

        Args:
            num_messages: the most records to return; None means `max.poll.records`. A configured
                `max.poll.records` also limits it.
            timeout: the longest wait in seconds; None waits until a record comes.

        Returns:
            The records; an empty list after the timeout or a `wakeup`.

        Raises:
            EoslogError: as `poll`. Records before the error are returned first.
        """
        limit = self._config.max_poll_records
        if num_messages is not None:
            if as_int("num_messages", num_messages, "1 or more") < 1:
                raise ConfigError(f"num_messages: expected 1 or more, got {num_messages}")
            capped = "max.poll.records" in self._config.given
            limit = min(num_messages, limit) if capped else num_messages
        with self._use:
            return self._find(self._fetcher.collect, limit, timeout) or []

    def poll_transactions(
        self, timeout: float | None = None, max_records: int | None = None
    ) -> list[Record]:
        """Return records up to a cut that splits no transaction.

        A transaction is returned with all its records in the assigned partitions, in one list. A
        record outside of transactions may be returned with any others. The positions split no
        transaction either, so offsets that are committed after this call do not.

        A transaction is held back until all its records in the assigned partitions are readable,
        in paused partitions too. So calls read the headers of batches ahead of the positions, up to
        the end of the log. The memory for that does not grow with the history: a long one is read
        ahead several times.

        Positions that already split a transaction, for example after `seek` or `poll`, give the
        rest of it.

        Args:
            timeout: the longest wait in seconds; None waits until a record comes.
            max_records: the most records to return. None returns about `max.poll.records`, or one
                transaction that has more.

        Returns:
            The records, one partition after the other; an empty list after the timeout or a
            `wakeup`.

        Raises:
            RecordTooLarge: if no cut has at most `max_records` records. The message has the number
                that is needed. The positions may move past records of aborted transactions, but not
                past records that this method returns.
            ConfigError: if `isolation.level` is read_uncommitted.
            CorruptRecord: if a batch ahead of the positions is damaged, because it could belong to
                any transaction. The positions stay, or move as above.
            EoslogError: as `poll`.
        """
        most = max_records
        if most is not None and as_int("max_records", most, "1 or more") < 1:
            raise ConfigError(f"max_records: expected 1 or more, got {most}")
        if self._config.isolation_level != "read_committed":
            raise ConfigError(
                "poll_transactions: isolation.level=read_uncommitted returns records of "
                "transactions that are not committed; set it to read_committed"
            )
        whole = self._whole
        if whole is None:
            from eoslog.client.consumer.whole_transactions import WholeTransactions

            whole = self._whole = WholeTransactions(
                self._fetcher, self._config, self._subscription, self._use
            )

        def collect(limit: int) -> list[Record]:
            return whole.collect(limit, most)

        limit = self._config.max_poll_records if most is None else most
        with self._use:
            return self._find(collect, limit, timeout, whole.wait) or []

    def consume_arrow(
        self, num_messages: int = 65_536, timeout: float | None = None, *, binary: str = "view"
    ) -> pa.RecordBatch:
        """Return available records of one partition as a pyarrow RecordBatch.

        Args:
            num_messages: the most records to return.
            timeout: the longest wait in seconds; None waits until a record comes.
            binary: "view" for keys and values that point into the log's files, or "copy" for a
                batch that pyarrow can sort, filter, join and write as CSV.

        Returns:
            A batch with the columns of `Log.scan`; an empty one after the timeout or a `wakeup`.

        Raises:
            ConfigError: if the consumer has deserializers, `binary` is unknown, or pyarrow is not
                installed.
            EoslogError: as `poll`. Records before the error are returned first.
        """
        config = self._config
        if config.key_deserializer is not None or config.value_deserializer is not None:
            raise ConfigError(
                "consume_arrow: keys and values stay bytes, but a deserializer is configured; "
                "remove key.deserializer and value.deserializer"
            )
        if as_int("num_messages", num_messages, "1 or more") < 1:
            raise ConfigError(f"num_messages: expected 1 or more, got {num_messages}")
        view = is_view(binary)

        def collect(limit: int) -> Any:
            return next_batch(self._fetcher, limit, check_crc=config.check_crcs, view=view)

        with self._use:
            found = self._find(collect, num_messages, timeout)
            return empty_batch(view=view) if found is None else found

    def __iter__(self) -> Iterator[Record]:
        """Yield records as they come, until `close` or `wakeup`.

        Raises:
            IllegalState: if the consumer is closed already.
            EoslogError: as `poll`.
        """
        if self.closed:  # a loop would end without a record, and without a word
            raise IllegalState("the consumer is closed; create a new one")
        return self._until_closed()

    def _until_closed(self) -> Iterator[Record]:
        while not (self._use.closed or self._use.closing):
            try:
                record = self.poll(None)
            except IllegalState:
                if self._use.closed or self._use.closing:  # another thread closed it before `poll`
                    return
                raise
            if record is None:
                return
            yield record

    def wakeup(self) -> None:
        """End the current or next poll, consume or iteration immediately.

        Any thread can call it.
        """
        self._use.woken = True

    def _find(
        self,
        collect: Callable[[int], T],
        limit: int,
        timeout: float | None,
        wait: Callable[[float], None] | None = None,
    ) -> T | None:
        try:
            return self._loop.find(collect, limit, timeout, wait)
        finally:
            self._next_duty = self._loop.next_duty

    # Offsets.

    def commit(self, offsets: Offsets | None = None) -> None:
        """Commit the positions, or the given offsets, for the group.

        Args:
            offsets: the next offset to read of each partition, as {TopicPartition: offset} or
                [TopicPartition(topic, partition, offset)]; or a record, which commits the offset
                after it. None commits the positions: the offsets after the returned records.

        Raises:
            CommitFailed: if this consumer is no longer a member of the group.
            FencedInstanceId: if another consumer took over the `group.instance.id`.
            IllegalState: if `processing.guarantee` is exactly_once, or the consumer has an offset
                store. Commit in the transaction.
            KafkaError: INVALID_GROUP_ID, if there is no `group.id`.

        Durability:
            The offsets are durable when the call returns.
        """
        with self._use:
            self._commits.commit(offsets)

    commit_sync = commit  # Kafka's name

    def commit_async(self, offsets: Offsets | None = None) -> None:
        """Commit like `commit`, and return when the offsets are durable.

        The name is Kafka's. eoslog has no network to wait for, so it commits synchronously.

        Args:
            offsets: as for `commit`.

        Raises:
            EoslogError: as `commit`.

        Durability:
            The offsets are durable when the call returns.
        """
        with self._use:
            self._commits.commit(offsets)

    @overload
    def committed(self, partitions: TopicPartition, timeout: float | None = None) -> int | None: ...
    @overload
    def committed(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> list[TopicPartition]: ...
    def committed(self, partitions: Partitions, timeout: float | None = None) -> Any:
        """Return the group's committed offsets.

        If a transaction has written offsets and is not decided, the call waits for its end.

        Args:
            partitions: one partition, or several.
            timeout: the longest wait in seconds; None means `default.api.timeout.ms`.

        Returns:
            For one partition its offset or None; for several, TopicPartitions with offset or None.

        Raises:
            KafkaError: UNSTABLE_OFFSET_COMMIT, if the transaction is undecided after the timeout.
            IllegalState: if the consumer is closed during the call.
        """
        with self._use:
            default = self._config.default_api_timeout_ms / 1000
            wait = default if timeout is None else as_seconds("timeout", timeout)
            wanted = as_list(partitions)
            offsets = self._commits.committed(wanted, wait, lambda: self._use.closing)
            return in_the_shape_of(partitions, wanted, offsets)

    @overload
    def position(self, partitions: TopicPartition) -> int | None: ...
    @overload
    def position(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]: ...
    def position(self, partitions: Partitions) -> Any:
        """Return the positions: the offsets of the next records to return.

        Args:
            partitions: one assigned partition, or several.

        Returns:
            For one partition its position or None; for several, TopicPartitions with their
            positions. None means that the committed offset is undecided.

        Raises:
            IllegalState: if a partition is not assigned.
            NoOffset: if there is no committed offset, and `auto.offset.reset` is none.
        """
        with self._use:
            states = list(self._subscription.select(partitions))
            self._fetcher.locate(states)
            return in_the_shape_of(
                partitions, [s.partition for s in states], [s.position for s in states]
            )

    @overload
    def current_lag(self, partitions: TopicPartition) -> int | None: ...
    @overload
    def current_lag(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int | None]: ...
    def current_lag(self, partitions: Partitions | None = None) -> Any:
        """Return the number of offsets between the position and the readable end.

        The readable end is the last stable offset, or the high watermark with read_uncommitted. The
        lag counts offsets, not records, so it includes markers, aborted and compacted records. If
        no visible record is left, the lag is 0.

        Args:
            partitions: one assigned partition, or several; None means all.

        Returns:
            For one partition its lag; for several, a dict of lags. A lag is None while the
            committed offset is undecided.

        Raises:
            IllegalState: if a partition is not assigned.
            NoOffset: if there is no committed offset, and `auto.offset.reset` is none.
            UnknownTopicOrPartition: if the topic was deleted.
        """
        with self._use:
            lags = self._fetcher.lags(list(self._subscription.select(partitions)))
            return lags[partitions] if isinstance(partitions, TopicPartition) else lags

    def positions(self) -> dict[TopicPartition, int]:
        """Return the positions of all assigned partitions that have one.

        These are the offsets that `commit` commits.
        """
        with self._use:
            return {tp: at.offset for tp, at in self._subscription.positions().items()}

    def group_metadata(self) -> GroupMetadata:
        """Return the group, member and generation that fence a transactional commit.

        Pass it to `Producer.send_offsets_to_transaction`.

        Raises:
            KafkaError: INVALID_GROUP_ID, if there is no `group.id`.
        """
        with self._use:
            _ = self._commits.group_id  # raises without a group.id
            return self._member.metadata()

    # Positions.

    def seek(self, partition: TopicPartition, offset: int | str | None = None) -> None:
        """Move the position of a partition.

        Args:
            partition: an assigned partition.
            offset: the offset of the next record to return, "earliest" or "latest"; None means the
                offset in `partition`.

        Raises:
            IllegalState: if the partition is not assigned.
            ConfigError: if the offset is invalid.
        """
        with self._use:
            tp = as_partition(partition)
            place = place_of("seek", tp.offset if offset is None else offset)
            self._subscription.of(tp).go_to(place)

    def seek_to_beginning(self, partitions: Partitions | None = None) -> None:
        """Move positions to the log start.

        Args:
            partitions: one or more assigned partitions; None means all.

        Raises:
            IllegalState: if a partition is not assigned.
        """
        with self._use:
            for state in self._subscription.select(partitions):
                state.ask_reset(EARLIEST)

    def seek_to_end(self, partitions: Partitions | None = None) -> None:
        """Move positions to the readable end, which depends on the isolation level.

        Args:
            partitions: one or more assigned partitions; None means all.

        Raises:
            IllegalState: if a partition is not assigned.
        """
        with self._use:
            for state in self._subscription.select(partitions):
                state.ask_reset(LATEST)

    def seek_to_time(self, partitions: Partitions | None, timestamp_ms: int) -> None:
        """Move positions to the first record at or after a time.

        Without such a record, the position moves to the readable end.

        Args:
            partitions: one or more assigned partitions; None means all.
            timestamp_ms: milliseconds since the epoch.

        Raises:
            IllegalState: if a partition is not assigned.
        """
        timestamp_ms = as_int("timestamp_ms", timestamp_ms, "ms since 1970 as int")
        with self._use:
            for state in self._subscription.select(partitions):
                self._fetcher.seek_to_time(state, timestamp_ms)

    def rewind(self) -> None:
        """Move positions back to the committed offsets, so that records are read again.

        A partition without a committed offset moves back to where reading began. An aborted
        transaction calls this method. The committed offsets are looked up at the next poll.
        """
        with self._use:
            self._subscription.rewind()

    @property
    def isolation_level(self) -> str:
        """The isolation level, `read_committed` or `read_uncommitted`."""
        return self._config.isolation_level

    # Closing.

    def close(self) -> None:
        """Leave the group and close the consumer.

        If auto-commit is on, the positions are committed first.

        A static member keeps its place in the group. Closing twice, or in a forked child, does
        nothing. A `with` block that ends with an exception commits nothing, so that the records
        that were being processed are read again.

        If another thread waits in a poll, consume or iteration, that call ends first, with None, an
        empty result or StopIteration. If a signal handler calls `close` during such a call, the
        call closes the consumer when it ends.

        Raises:
            IllegalState: if a rebalance listener calls it; or if another thread's call has not
                ended within 30 s. In the second case that call closes the consumer when it ends.
        """
        self._closing.close()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
            return
        self._commits.stop_auto_commit()
        with contextlib.suppress(EoslogError):  # the error of the `with` block is the first cause
            self.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._use.closed


def _open_engine(settings: ConsumerConfig) -> Engine:
    from eoslog.engine.engine import Engine

    if settings.log_dir is None:
        raise ConfigError("log.dir: a consumer needs a log directory; set log.dir to its path")
    return Engine.open(settings.log_dir, create=settings.log_create)
