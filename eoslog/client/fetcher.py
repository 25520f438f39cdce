"""Reading for a consumer: starting points, fetches up to the isolation level's bound, waiting.

One fetch reads the bound once: the last stable offset for read_committed, the high watermark for
read_uncommitted. What lies below it never changes, so fetched records stay valid until the
position is moved. A reader held up at a last stable offset drives the transaction in its way.

Source: Kafka Fetcher, FetchCollector, OffsetFetcher; KIP-98.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import Any

from eoslog import _core
from eoslog.client.subscription import PartitionState, SubscriptionState
from eoslog.config import ConsumerConfig
from eoslog.errors import (
    CorruptRecord,
    EoslogError,
    ErrorCode,
    KafkaError,
    NoOffset,
    OffsetOutOfRange,
    SerializationError,
    UnknownTopicOrPartition,
)
from eoslog.model import OffsetAndMetadata, TopicPartition
from eoslog.storage.files import failpoint

logger = logging.getLogger("eoslog.consumer")

_WAIT_SLICE_S = 0.05
_DRIVE_AFTER_S = 0.05
_DRIVE_EVERY_S = 0.25


class Fetcher:
    """Fetches for one consumer; used by one thread at a time, as the consumer is."""

    def __init__(
        self, engine: Any, config: ConsumerConfig, subscription: SubscriptionState
    ) -> None:
        """Read from a directory open in this process."""
        self._engine = engine
        self._config = config
        self._subscription = subscription
        # A fetch asks one partition: both limits are its own. A whole batch is had in any case.
        self._fetch_bytes = min(config.max_partition_fetch_bytes, config.fetch_max_bytes)
        self._committed_only = config.isolation_level == "read_committed"
        self._bound_name = "last_stable_offset" if self._committed_only else "high_watermark"
        self._turn = 0
        self._unfinished = False  # the fetch whose turn it is was not used up here
        self.current: PartitionState | None = None

    # Positions.

    def log(self, state: PartitionState) -> Any:
        """The partition's log.

        Raises:
            UnknownTopicOrPartition: there is none; or the group has not given it yet, for the topic
                that it was given of was deleted.
        """
        # Asked for anew each time: a topic may be deleted, and made again under its name.
        partition = state.partition
        log = self._engine.partition(partition.topic, partition.partition)
        if state.log is not None and state.log.topic_id != log.topic_id:
            if self._subscription.subscribed:
                raise UnknownTopicOrPartition(f"{partition}: the topic was deleted and made again")
            state.forget()
        state.log = log
        return log

    def bound(self, state: PartitionState) -> int:
        """Where reading ends at present."""
        return int(getattr(self.log(state), self._bound_name))

    def lag(self, state: PartitionState) -> int | None:
        """Offsets from the position to where reading ends at present; None without a position."""
        end = self.bound(state)
        return None if state.position is None else max(end - state.position, 0)

    def locate(self, states: Iterable[PartitionState]) -> None:
        """Find the starting points of partitions that have none, without waiting.

        A partition whose committed offset is undecided stays without; the next call tries again.

        Raises:
            NoOffset: no committed offset, and auto.offset.reset is none.
        """
        missing = [state for state in states if state.position is None]
        by_commit = [state for state in missing if state.reset is None]
        for state in missing:
            if state.reset is not None:
                self._reset(state, state.reset)
        if not by_commit:
            return
        group_id = self._config.group_id
        committed: dict[TopicPartition, OffsetAndMetadata] = {}
        if group_id is not None:
            committed, by_commit = self._stable_offsets(group_id, by_commit)
        for state in by_commit:
            offset = committed.get(state.partition)
            if offset is not None:
                state.move_to(offset.offset)
                state.committed = offset.offset
            elif state.start is not None:
                state.move_to(state.start)
            elif self._config.auto_offset_reset == "none":
                raise NoOffset(
                    f"{state.partition}: group {group_id!r} has no committed offset "
                    "and auto.offset.reset=none"
                )
            else:
                self._reset(state, self._config.auto_offset_reset)

    def _stable_offsets(
        self, group_id: str, states: list[PartitionState]
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata], list[PartitionState]]:
        """Committed offsets, and the states that they are decided for."""
        partitions = [state.partition for state in states]
        try:
            return self._engine.groups.fetch_offsets(group_id, partitions, timeout=0.0), states
        except KafkaError as error:
            if error.code != ErrorCode.UNSTABLE_OFFSET_COMMIT:
                raise
        if len(states) == 1:
            return {}, []
        # One undecided partition must not hold up the others.
        found, settled = {}, []
        for state in states:
            offsets, decided = self._stable_offsets(group_id, [state])
            found.update(offsets)
            settled += decided
        return found, settled

    def _reset(self, state: PartitionState, policy: str) -> None:
        log = self.log(state)
        state.move_to(log.log_start if policy == "earliest" else self.bound(state))

    def seek_to_time(self, state: PartitionState, timestamp_ms: int) -> None:
        """Go to the first record at or after a time; to the end if there is none."""
        end = self.bound(state)
        found = self.log(state).offset_for_time(timestamp_ms, end)
        state.move_to(end if found is None else found)

    # Records.

    def in_turn(self) -> Iterator[tuple[int, PartitionState]]:
        """The partitions that are not paused, beginning with the one whose turn it is."""
        states = [s for s in self._subscription.states.values() if not s.paused]
        for turn in range(self._turn, self._turn + len(states)):
            yield turn, states[turn % len(states)]

    def pass_turn(self, turn: int) -> None:
        """The partition at `turn` has been served: the next one comes first."""
        self._turn = turn + 1

    def collect(self, limit: int) -> list[Any]:
        """Up to `limit` records that are there now, partition by partition in turn.

        Raises:
            CorruptRecord, SerializationError, OffsetOutOfRange, NoOffset: the next record of a
                partition cannot be had; its position stays, so the error comes again.
        """
        if self._unfinished and self.current is not None and not self.current.records:
            self._turn += 1  # `poll` has handed out the rest
        self._unfinished = False
        out: list[Any] = []
        before = []
        for turn, state in self.in_turn():
            before.append((state, state.place()))
            try:
                out += self._collect_from(state, limit - len(out))
            except EoslogError:
                # What was taken from other partitions has moved their positions: it goes first.
                if out:
                    break
                self._turn = turn + 1
                raise
            except BaseException:  # an interrupt: nobody gets what was taken
                for taken, place in before:
                    taken.put_back(*place)
                raise
            if len(out) >= limit:
                self.current = state
                # The same partition goes on until its fetch is used up, then it is the next's turn.
                self._unfinished = bool(state.records)
                self._turn = turn + (not self._unfinished)
                break
        return out

    def _collect_from(self, state: PartitionState, limit: int) -> list[Any]:
        out: list[Any] = []
        while len(out) < limit:
            if not state.records:
                try:
                    if not self._fetch(state):
                        break
                except EoslogError:
                    if out:
                        break
                    raise
            taken = state.take(limit - len(out))
            out = out + taken if out else taken
        return out

    def _fetch(self, state: PartitionState) -> bool:
        """Fetch until there is a record or the bound is reached."""
        while (found := self.readable(state)) is not None:
            self._decode(state, *found)
            if state.records:
                return True
        return False

    def readable(
        self, state: PartitionState
    ) -> tuple[list[Any], _core.AbortedTransactions | None, int] | None:
        """What there is to read at a position: slices, aborted transactions, the bound.

        None where there is nothing: the bound is reached, or the starting point is not known yet.
        """
        while True:
            if state.position is None:
                self.locate([state])
            position = state.position
            if position is None:
                return None
            try:
                log = self.log(state)
                if state.position is None:
                    continue  # the topic was made again
                bound: int = getattr(log, self._bound_name)
                if position >= bound and log.log_start <= position <= log.log_end:
                    return None
                cleaned = log.cleaned_version
                slices = log.read(position, bound, self._fetch_bytes)
                if not slices:
                    return None
                failpoint("fetch.read")
                aborted = None
                if self._committed_only:
                    end = min(bound, slices[-1].next_offset)
                    aborted = _core.AbortedTransactions(log.aborted(position, end))
                    if log.cleaned_version != cleaned or log.log_start > position:
                        continue  # an abort entry goes with its data: all was there, or none is
                return slices, aborted, bound
            except OffsetOutOfRange as error:
                self._out_of_range(state, error)
            except UnknownTopicOrPartition:
                if self._subscription.subscribed:
                    # The topic was deleted: the group takes the partition away at the next step.
                    return None
                raise

    def _decode(
        self,
        state: PartitionState,
        slices: list[Any],
        aborted: _core.AbortedTransactions | None,
        bound: int,
    ) -> None:
        config = self._config
        partition = state.partition
        position = state.position
        assert position is not None
        records: list[Any] = []
        for part in slices:
            try:
                found, next_offset = _core.decode_records(
                    partition.topic, partition.partition, part.data, position, bound, aborted, None,
                    config.key_deserializer, config.value_deserializer, config.check_crcs,
                )  # fmt: skip
            except Exception as error:
                # Good records come first; the error is raised when its record's turn comes.
                if records:
                    break
                if isinstance(error, CorruptRecord):
                    raise error.located(part.path, part.position, str(partition)) from error
                if isinstance(error, EoslogError) and not isinstance(error, SerializationError):
                    raise
                # It may lie behind what nobody is shown; without deserializers it is found.
                [bad], _ = _core.decode_records(
                    partition.topic, partition.partition, part.data, position, bound, aborted, 1
                )
                raise _undecodable(partition, bad.offset, error) from error
            records += found
            stopped_early = next_offset < min(part.next_offset, bound)
            position = next_offset
            if stopped_early:
                break
        state.fill(records, position)

    def _out_of_range(self, state: PartitionState, error: OffsetOutOfRange) -> None:
        policy = self._config.auto_offset_reset
        if policy == "none":
            raise error
        logger.warning("%s; going to %s", error, policy)
        state.position = None
        self._reset(state, policy)

    # Waiting.

    def wait(self, timeout: float) -> None:
        """Wait until something may have come, at most `timeout` seconds or 50 ms."""
        pause = min(timeout, _WAIT_SLICE_S)
        states = [
            s
            for s in self._subscription.states.values()
            if not s.paused and s.position is not None and s.log is not None
        ]
        if not states:
            time.sleep(pause)
            return
        if self._committed_only and not self._engine.read_only:
            now = time.monotonic()
            for state in states:
                self._drive(state, now)
        self._engine.wait_any([(s.log, s.position) for s in states], pause, of=self._bound_name)

    def _drive(self, state: PartitionState, now: float) -> None:
        """Held up by an undecided transaction for a while: have it driven to its end if due."""
        stable = state.log.last_stable_offset
        if state.position < stable or stable >= state.log.high_watermark:
            state.blocked_at = -1
            return
        if state.blocked_at != stable:
            state.blocked_at = stable
            state.next_drive = now + _DRIVE_AFTER_S
            return
        if now >= state.next_drive:
            state.next_drive = now + _DRIVE_EVERY_S
            try:
                self._engine.transactions.resolve_blockers(state.log)
            except EoslogError as error:
                # Somebody else may succeed; this reader goes on waiting.
                logger.warning("%s is held up at offset %d: %s", state.partition, stable, error)


def _undecodable(partition: TopicPartition, offset: int, error: Exception) -> SerializationError:
    name, number = partition.topic, partition.partition
    what = "" if isinstance(error, SerializationError) else f"{type(error).__name__}: "
    return SerializationError(
        f"{partition} at offset {offset}: {what}{error}; to skip this record: "
        f"consumer.seek(TopicPartition({name!r}, {number}), {offset + 1})"
    )
