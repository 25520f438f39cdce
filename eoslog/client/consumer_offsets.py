"""A consumer's offsets: what it commits, what is committed, where it is, where it goes.

Source: Kafka ConsumerCoordinator, KafkaConsumer; KIP-98, KIP-447.
"""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Iterable, Mapping
from threading import get_ident
from typing import Any, overload

from eoslog import _core
from eoslog.arguments import as_int, as_seconds
from eoslog.client.fetcher import Fetcher
from eoslog.client.membership import Membership
from eoslog.client.offsets import (
    Offsets,
    as_list,
    as_partition,
    in_the_shape_of,
    offsets_of,
    place_of,
)
from eoslog.client.subscription import SubscriptionState
from eoslog.config import ConsumerConfig
from eoslog.errors import (
    CommitFailed,
    EoslogError,
    ErrorCode,
    IllegalGeneration,
    IllegalState,
    StaleMemberEpoch,
    UnknownMember,
    UnknownTopicOrPartition,
    error_for,
)
from eoslog.model import GroupMetadata, OffsetAndMetadata, TopicPartition

logger = logging.getLogger("eoslog.consumer")

Partitions = TopicPartition | Iterable[TopicPartition]


class ConsumerOffsets:
    """The half of the consumer that deals in offsets.

    Thread-safety: one thread at a time.
    """

    _producer: Any = None  # whose transactions carry the offsets

    def __init__(self, config: ConsumerConfig, engine: Any, *, auto_commit: bool) -> None:
        """Deal in the offsets of a directory open in this process."""
        self._use = _core.OneThread("consumer")
        self._config = config
        self._engine = engine
        self._subscription = SubscriptionState()
        self._fetcher = Fetcher(engine, config, self._subscription)
        self._membership = Membership(
            self, engine, config, self._subscription, self._fetcher, self._commit_before_loss
        )
        self._auto_commit = auto_commit
        # True: committed before records are handed out, so that none is handed out twice.
        self._commit_first = auto_commit and config.auto_commit_when == "before"
        self._next_auto_commit = time.monotonic() + config.auto_commit_interval_ms / 1000

    # Offsets.

    def commit(self, offsets: Offsets | None = None) -> None:
        """Commit where the group goes on: after the last record handed out, or where told.

        Args:
            offsets: next offset to read per partition, as {TopicPartition: offset} or
                [TopicPartition(t, p, offset)]; a record commits the offset after it.

        Raises:
            CommitFailed: the group went on without this member.
            FencedInstanceId: another consumer took over group.instance.id.
            IllegalState: the offsets belong into the bound producer's transaction.
            KafkaError: INVALID_GROUP_ID, there is no group.id.

        Durability: durable on return.
        """
        with self._use:
            if self._config.exactly_once:
                raise IllegalState(
                    "processing.guarantee=exactly_once: commit offsets in the transaction, with "
                    "producer.send_offsets_to_transaction or transaction.commit_offsets"
                )
            if offsets is None:
                self._commit(self._progress(self._subscription.states))
            else:
                self._commit(self._checked_offsets(offsets))

    # The names of Kafka's own client; without a network both are synchronous.
    commit_sync = commit
    commit_async = commit

    def _checked_offsets(self, offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
        result = offsets_of(offsets)
        for partition, committed in result.items():
            state = self._subscription.states.get(partition)
            if state is not None and state.last_returned == committed.offset:
                warnings.warn(
                    f"{partition}: committed {committed.offset}, the last record handed out; "
                    f"it will be read again, commit {committed.offset + 1} to go on after it",
                    RuntimeWarning,
                    stacklevel=4,
                )
        return result

    def _progress(
        self, partitions: Iterable[TopicPartition], *, changed_only: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        found = {}
        for partition in partitions:
            state = self._subscription.states.get(partition)
            if state is None or state.position is None or state.of_deleted:
                continue
            if not changed_only or state.position != state.committed:
                found[state.partition] = OffsetAndMetadata(state.position, topic_id=state.topic_id)
        return found

    def _commit_positions(self, partitions: Iterable[TopicPartition]) -> None:
        self._commit(self._progress(list(partitions), changed_only=True))

    def _commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        group_id = self._group()
        if not offsets:
            return
        who = self._membership.metadata()
        if self._subscription.subscribed and not self._membership.joined:
            gone = self._membership.lost
            why = "is no member any more" if gone else "has not joined yet: call poll() first"
            raise CommitFailed(f"group {group_id}: this consumer {why}")
        try:
            self._engine.groups.commit_offsets(
                group_id,
                who.member_id,
                who.generation_id,
                offsets,
                instance_id=who.instance_id if who.member_id else None,
            )
        except (UnknownMember, StaleMemberEpoch, IllegalGeneration) as error:
            raise CommitFailed(f"offsets were not committed: {error}") from error
        self.note_committed(group_id, offsets)

    def _auto_commit_now(self, partitions: Iterable[TopicPartition]) -> None:
        self._next_auto_commit = time.monotonic() + self._config.auto_commit_interval_ms / 1000
        try:
            self._commit_positions(list(partitions))
        except EoslogError as error:
            # The next step of the membership raises or repairs what is behind it.
            logger.warning("auto-commit: %s", error)

    def _commit_before_loss(self, partitions: Iterable[TopicPartition]) -> None:
        if self._auto_commit and not self._commit_first:
            self._auto_commit_now(partitions)

    def _group(self) -> str:
        if self._config.group_id is None:
            raise error_for(ErrorCode.INVALID_GROUP_ID, "committed offsets need a group.id")
        return self._config.group_id

    @overload
    def committed(self, partitions: TopicPartition, timeout: float | None = None) -> int | None: ...
    @overload
    def committed(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> list[TopicPartition]: ...
    def committed(self, partitions: Partitions, timeout: float | None = None) -> Any:
        """The group's committed offsets: what is undecided is driven or waited for.

        Args:
            partitions: one partition, or many.
            timeout: seconds; default default.api.timeout.ms.

        Returns:
            For one partition its offset or None; for many [TopicPartition with offset or None].

        Raises:
            KafkaError: UNSTABLE_OFFSET_COMMIT, still undecided after the timeout.
        """
        with self._use:
            default = self._config.default_api_timeout_ms / 1000
            wait = default if timeout is None else as_seconds("timeout", timeout)
            wanted = as_list(partitions)
            found = self._engine.groups.fetch_offsets(self._group(), wanted, timeout=wait)
            offsets = [found[p].offset if p in found else None for p in wanted]
            return in_the_shape_of(partitions, wanted, offsets)

    @overload
    def position(self, partitions: TopicPartition) -> int | None: ...
    @overload
    def position(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]: ...
    def position(self, partitions: Partitions) -> Any:
        """The offset of the next record to hand out, as `committed` returns it.

        Raises:
            IllegalState: a partition is not assigned.
            NoOffset: there is no starting point.
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
        """How many offsets there are from the position to the end that can be read at present.

        That end is the last stable offset, with read_uncommitted the high watermark. Offsets, not
        records: markers, aborted and compacted records count.

        Args:
            partitions: one partition, or many; default: all assigned ones.

        Returns:
            For one partition its lag, None while its committed offset is undecided; for many
            {TopicPartition: lag or None}.

        Raises:
            IllegalState: a partition is not assigned.
            NoOffset: there is no starting point.
            UnknownTopicOrPartition: its topic was deleted.
        """
        with self._use:
            states = list(self._subscription.select(partitions))
            for state in states:
                self._fetcher.log(state)  # of a topic made anew no place is known any more
            self._fetcher.locate(states)
            lags = {s.partition: self._fetcher.lag(s) for s in states}
            return lags[partitions] if isinstance(partitions, TopicPartition) else lags

    def positions(self) -> dict[TopicPartition, int]:
        """The positions of all assigned partitions that have one: what there is to commit."""
        with self._use:
            states = self._subscription.states.values()
            return {
                s.partition: s.position
                for s in states
                if s.position is not None and not s.of_deleted
            }

    def progress(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The same as offsets to commit, each bound to the topic that it counts in.

        Where an end of the log was sought, it is found now, unless the topic was deleted.
        """
        with self._use:
            for state in self._subscription.states.values():
                if state.reset is not None:
                    with contextlib.suppress(UnknownTopicOrPartition):
                        self._fetcher.locate([state])
            return self._progress(self._subscription.states)

    def group_metadata(self) -> GroupMetadata:
        """What `send_offsets_to_transaction` needs to fence this member."""
        with self._use:
            self._group()
            return self._membership.metadata()

    # Moving.

    def seek(self, partition: TopicPartition, offset: int | str | None = None) -> None:
        """Go on reading a partition at an offset (default: the one in `partition`).

        "earliest" and "latest" do as `seek_to_beginning` and `seek_to_end`.
        """
        with self._use:
            tp = as_partition(partition)
            place = place_of("seek", tp.offset if offset is None else offset)
            self._subscription.of(tp).go_to(place)

    def seek_to_beginning(self, partitions: Partitions | None = None) -> None:
        """Go to the first record that is kept; default: in all assigned partitions."""
        with self._use:
            for state in self._subscription.select(partitions):
                state.ask_reset("earliest")

    def seek_to_end(self, partitions: Partitions | None = None) -> None:
        """Go to the end as this consumer's isolation level sees it."""
        with self._use:
            for state in self._subscription.select(partitions):
                state.ask_reset("latest")

    def seek_to_time(self, partitions: Partitions | None, timestamp_ms: int) -> None:
        """Go to the first record at or after a time; to the end if there is none."""
        timestamp_ms = as_int("timestamp_ms", timestamp_ms, "ms since 1970 as int")
        with self._use:
            for state in self._subscription.select(partitions):
                self._fetcher.seek_to_time(state, timestamp_ms)

    def rewind(self) -> None:
        """Go back to the committed offsets, where nothing is committed to where reading began.

        What an aborted transaction calls, so that its input is read again. The committed offsets
        are looked up at the next poll.
        """
        with self._use:
            self._subscription.rewind()

    # What transactions ask of a consumer; none of it waits for the thread that uses it.

    def bind_to(self, producer: Any) -> None:
        """Let this producer's transactions carry the offsets, and no other's."""
        before, self._producer = self._producer, producer
        if before is producer:
            return
        if before is not None:
            before.unbind(self)
            manager = before.transactions
            if manager is not None and manager.open and self._subscription.unfinished:
                self.must_rewind("records were handed out in another producer's transaction")
        producer.bind(self)

    def note_abort(self, transactions: Any) -> None:
        """A transaction was aborted, by a producer with these `transactions`."""
        bound = None if self._producer is None else self._producer.transactions
        # Producers may take turns on one consumer: if the bound one has no transaction, it was read
        # for the other's. Other threads than those of that transaction have consumers of their own.
        if (
            bound is not None
            and bound.transactional_id != transactions.transactional_id
            and (bound.open or self._use.last_user not in (transactions.begun_by, get_ident()))
        ):
            return
        if self._subscription.unfinished:
            self.must_rewind(
                "a transaction was aborted after records were handed out that are not committed"
            )

    def must_rewind(self, reason: str) -> None:
        """Until `rewind` was called, no transaction may take the positions."""
        self._subscription.unsettled = self._subscription.unsettled or reason

    @property
    def unsettled(self) -> str | None:
        """Why no transaction may take the positions before a `rewind`; None where one may."""
        return self._subscription.unsettled

    def note_committed(self, group_id: str, offsets: Mapping[TopicPartition, Any]) -> None:
        """A group goes on at these offsets (`OffsetAndMetadata`), whoever committed them; what its
        members were handed out since then is not committed.
        """
        if group_id != self._config.group_id:
            return
        for partition, offset in offsets.items():
            state = self._subscription.states.get(partition)
            if state is not None:
                state.committed = offset.offset
