"""The fetcher of a consumer: positions, fetches up to the readable end, waits.

A fetch reads the end once: the last stable offset with read_committed, the high watermark with
read_uncommitted. Records below it never change, so fetched records stay valid until the position
moves. A reader that is blocked at the last stable offset completes the transaction that blocks it,
if that transaction is decided or has timed out.

Source: Kafka Fetcher, FetchCollector, OffsetFetcher; KIP-98.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from eoslog import _core
from eoslog.client.consumer.fetched import Fetched
from eoslog.client.consumer.offset_store import OffsetStore
from eoslog.client.consumer.partition_state import TopicPartitionState
from eoslog.client.consumer.read_ahead import ReadAhead
from eoslog.client.consumer.subscription import SubscriptionState
from eoslog.client.consumer.warned import Warned
from eoslog.client.visible_lag import lag_of
from eoslog.config.keys import ConsumerConfig
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
from eoslog.model import EARLIEST, NO_RESET, OffsetAndMetadata, TopicPartition
from eoslog.serializers import undecodable
from eoslog.shown_paths import get_logger
from eoslog.storage.fs.files import failpoint
from eoslog.storage.fs.timeouts import SLICE_S
from eoslog.storage.log.published_end import PublishedEnd

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine
    from eoslog.storage.log.partition_log import PartitionLog

logger = get_logger("eoslog.consumer")

_DRIVE_AFTER_S = 0.05
_DRIVE_EVERY_S = 0.25
_AWAIT_APPENDS_S = 0.005
"""Longest wait for other processes' appends; it suffices unless one of them is suspended."""
_LOOK_AGAIN_S = 0.05
"""Time between two such waits."""
_LEAST_DECODED = 1000
"""Records that are decoded in one step: few enough to stay in the processor's cache."""


class Fetcher:
    """Fetches records for one consumer; used by one thread at a time."""

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        subscription: SubscriptionState,
        use: _core.OneThread,
    ) -> None:
        """Read from an open directory; an interrupt of `use` ends every loop."""
        self._engine = engine
        # Where committed offsets are; None: in the log.
        self.offset_store: OffsetStore | None = None
        self._use = use
        self._warned = Warned(logger)
        self._config = config
        self._subscription = subscription
        # A fetch reads one partition, so both limits apply to it. It returns at least one batch.
        self._fetch_bytes = min(config.max_partition_fetch_bytes, config.fetch_max_bytes)
        self._committed_only = config.isolation_level == "read_committed"
        self.end = (
            PublishedEnd.LAST_STABLE_OFFSET if self._committed_only else PublishedEnd.HIGH_WATERMARK
        )
        self._turn = 0
        self._look_again = 0.0  # by `time.monotonic`: an append was under way for too long
        self._unfinished = False  # the current partition still has fetched records
        self.current: TopicPartitionState | None = None
        # A partition could not be read up to its end, so the next wait sleeps instead of polling.
        self._stalled = False
        # The positions when a wait last found new data. If `collect` leaves them unchanged, it
        # could not read that data.
        self._found_ready: list[tuple[TopicPartition, int | None]] | None = None

    # Positions.

    def log(self, state: TopicPartitionState) -> PartitionLog:
        """Return the partition's log.

        Raises:
            UnknownTopicOrPartition: if the partition does not exist; or if its topic was deleted
                and re-created, and the group has not assigned the new partition.
        """
        # Looked up each time, because a topic may be deleted and re-created under its name.
        partition = state.partition
        log = self._engine.partition(partition.topic, partition.partition)
        if state.log is not None and state.log.topic_id != log.topic_id:
            if self._subscription.subscribed:
                raise UnknownTopicOrPartition(
                    f"{partition}: the topic was deleted and re-created; poll again, the group "
                    "will assign the new partition"
                )
            state.forget()
        state.log = log
        return log

    def bound(self, state: TopicPartitionState) -> int:
        """The readable end now."""
        return self.readable_end(self.log(state))

    def readable_end(self, log: PartitionLog) -> int:
        """The readable end of any partition now."""
        return self.end.of(log)

    def lags(self, states: list[TopicPartitionState]) -> dict[TopicPartition, int | None]:
        """The lag of each partition; None without a position."""
        for state in states:
            self.log(state)  # drops the position if the topic was re-created
        self.locate(states)
        return {state.partition: self._lag(state) for state in states}

    def _lag(self, state: TopicPartitionState) -> int | None:
        end = self.bound(state)
        if state.position is None:
            return None
        if state.records:
            return max(end - state.position, 0)
        return lag_of(state.log, state.position, end, committed_only=self._committed_only)

    def locate(self, states: Iterable[TopicPartitionState]) -> None:
        """Find the positions of partitions that have none, without waiting.

        A partition whose committed offset is undecided stays without a position until the next
        call.

        Raises:
            NoOffset: if there is no committed offset, and `auto.offset.reset` is none.
        """
        missing = [state for state in states if state.position is None]
        by_commit = [state for state in missing if state.reset is None]
        for state in missing:
            if state.reset is not None:
                self._reset(state, state.reset)
        if not by_commit:
            return
        for state in by_commit:
            self.log(state)  # before the look-up, so that it is known to be of this topic
        group_id = self._config.group_id
        committed: Mapping[TopicPartition, int] = {}
        if self.offset_store is not None:
            committed = self._offsets_in(self.offset_store, by_commit)
        elif group_id is not None:
            found, by_commit = self._stable_offsets(group_id, by_commit)
            committed = {partition: at.offset for partition, at in found.items()}
        for state in by_commit:
            offset = committed.get(state.partition)
            if state.of_deleted:
                state.forget()  # the offset may be that of the deleted topic; look it up again
            elif offset is not None:
                state.move_to(offset)
                state.committed = offset
            elif state.start is not None:
                state.move_to(state.start)
            elif self._config.auto_offset_reset == NO_RESET:
                raise NoOffset(
                    f"{state.partition}: group {group_id!r} has no committed offset, and "
                    "auto.offset.reset=none; seek, or set auto.offset.reset"
                )
            else:
                self._reset(state, self._config.auto_offset_reset)

    def _offsets_in(
        self, store: OffsetStore, states: list[TopicPartitionState]
    ) -> Mapping[TopicPartition, int]:
        """The offsets in an offset store; a change expects exactly these."""
        ids = {state.partition: self.log(state).topic_id for state in states}
        found = store.committed_offsets(self._config.group_id or "", ids)
        for state in states:
            state.committed = found.get(state.partition)
        return found

    def _stable_offsets(
        self, group_id: str, states: list[TopicPartitionState]
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata], list[TopicPartitionState]]:
        """The committed offsets, and the partitions whose committed offset is decided."""
        if time.monotonic() < self._look_again:
            return {}, []
        if not self._engine.transactions.await_appends(group_id, _AWAIT_APPENDS_S):
            self._look_again = time.monotonic() + _LOOK_AGAIN_S
            return {}, []
        return self._decided_offsets(group_id, states)

    def _decided_offsets(
        self, group_id: str, states: list[TopicPartitionState]
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata], list[TopicPartitionState]]:
        partitions = [state.partition for state in states]
        try:
            return self._engine.groups.fetch_offsets(group_id, partitions, timeout=0.0), states
        except KafkaError as error:
            if error.code != ErrorCode.UNSTABLE_OFFSET_COMMIT:
                raise
        if len(states) == 1:
            return {}, []
        # One undecided partition must not block the others.
        found, settled = {}, []
        for state in states:
            offsets, decided = self._decided_offsets(group_id, [state])
            found.update(offsets)
            settled += decided
        return found, settled

    def _reset(self, state: TopicPartitionState, policy: str) -> None:
        log = self.log(state)
        state.move_to(log.log_start if policy == EARLIEST else self.bound(state))

    def seek_to_time(self, state: TopicPartitionState, timestamp_ms: int) -> None:
        """Move to the first record at or after a time, or to the end if there is none."""
        end = self.bound(state)
        found = self.log(state).offset_for_time(timestamp_ms, end)
        state.move_to(end if found is None else found)

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions to commit.

        Pending seeks to a log's start or end are resolved first, unless the topic was deleted.
        """
        with self._use:
            for state in self._subscription.states.values():
                if state.reset is not None:
                    with contextlib.suppress(UnknownTopicOrPartition):
                        self.locate([state])
            return self._subscription.positions()

    # Records.

    def in_turn(self) -> Iterator[tuple[int, TopicPartitionState]]:
        """The partitions that are not paused, in round-robin order."""
        states = [s for s in self._subscription.states.values() if not s.paused]
        for turn in range(self._turn, self._turn + len(states)):
            yield turn, states[turn % len(states)]

    def pass_turn(self, turn: int) -> None:
        """Begin the next round after the partition at `turn`."""
        self._turn = turn + 1

    def collect(self, limit: int) -> list[Any]:
        """Return at most `limit` available records, round-robin over the partitions.

        Raises:
            CorruptRecord, SerializationError, OffsetOutOfRange, NoOffset: if the next record of a
                partition cannot be read. The position stays, so the next call raises again.
        """
        if self._unfinished and self.current is not None and not self.current.fetched:
            self._turn += 1  # `poll` has returned the rest of the fetch
        self._unfinished = False
        out: list[Any] = []
        before: list[Any] = []
        turns = list(self.in_turn())
        count = len(turns)
        for turn, state in turns:
            if len(before) < count:
                before.append((state, state.place()))
            try:
                taken = self._collect_from(state, limit - len(out))
                out += taken
            except EoslogError:
                # Records of other partitions come first, because their positions have moved.
                if out:
                    break
                self._turn = turn + 1
                raise
            except BaseException:  # an interrupt: the caller does not get the records
                for moved, place in before:
                    moved.put_back(*place)
                raise
            if len(out) >= limit:
                self.current = state
                # Continue with this partition until its fetched records are used up.
                self._unfinished = state.fetched
                self._turn = turn + (not self._unfinished)
                break
            if taken:
                turns.append((turn, state))  # its next fetch comes after the other partitions
        return out

    def _collect_from(self, state: TopicPartitionState, limit: int) -> list[Any]:
        """Return at most `limit` records, up to the end of a fetch."""
        out: list[Any] = []
        while len(out) < limit:
            if not state.records:
                if out and not state.fetched:
                    break
                try:
                    if not self._fetch(state, limit - len(out)):
                        break
                except EoslogError:
                    if out:
                        break
                    raise
            taken = state.take(limit - len(out))
            out = out + taken if out else taken
        return out

    def _fetch(self, state: TopicPartitionState, limit: int) -> bool:
        """Fetch and decode until there is a record, or the readable end is reached."""
        if state.ahead is not None and self._take_ahead(state):
            return True
        least = max(limit, _LEAST_DECODED)
        while (fetched := state.undecoded or self.readable(state)) is not None:
            position = state.position
            self.decode(state, fetched, least)
            if state.records:
                return True
            if self.ends_without_records(state, position):
                return False
        return False

    def _take_ahead(self, state: TopicPartitionState) -> bool:
        """Use what was decoded before it was durable, as far as it is durable now."""
        ahead = state.ahead
        assert ahead is not None
        log = self.log(state)  # drops the position if the topic was re-created
        state.ahead = ahead.give(state, log, self.end.of(log))
        return bool(state.records)

    def _read_ahead(self, states: list[TopicPartitionState]) -> None:
        """Decode records that are not durable yet, because the disk is slower."""
        config = self._config
        if config.key_deserializer is not None or config.value_deserializer is not None:
            return  # code of the application sees durable records only
        for state in states:
            log, position = state.log, state.position
            if state.ahead is None and not state.fetched and position is not None:
                # An error is ignored here: the read that returns the records meets it again.
                with contextlib.suppress(EoslogError, OSError):
                    state.ahead = self._decoded_ahead(log, state.partition, position)

    def _decoded_ahead(
        self, log: PartitionLog, partition: TopicPartition, position: int
    ) -> ReadAhead | None:
        cleaned = log.cleaned_version
        end = log.stable_end if self._committed_only else log.log_end
        if not log.log_start <= position < end:
            return None
        slices = log.read(position, end, self._fetch_bytes)
        aborted = None
        if self._committed_only and slices:
            read_to = min(end, slices[-1].next_offset)
            aborted = _core.AbortedTransactions(log.aborted(position, read_to))
        if log.cleaned_version != cleaned or log.log_start > position:
            return None
        records, begin = [], position
        for part in slices:
            found, next_offset = _core.decode_records(
                partition.topic, partition.partition, part.data, position, end, aborted, None,
                None, None, self._config.check_crcs, log.leader_epochs,
            )  # fmt: skip
            records += found
            stopped_early = next_offset < min(part.next_offset, end)
            position = next_offset
            if stopped_early:
                break
        return ReadAhead(log, cleaned, begin, records, position) if records else None

    def ends_without_records(self, state: TopicPartitionState, position: int | None) -> bool:
        """Whether to stop after a fetch at `position` that had no visible record.

        A fetch that did not move the position would be repeated forever. A wakeup also ends a long
        run of aborted records.
        """
        self._stalled = self._stalled or state.position == position
        return self._stalled or self._use.interrupted

    def readable(self, state: TopicPartitionState, until: int | None = None) -> Fetched | None:
        """Read at the position.

        Args:
            state: the partition.
            until: an offset to use as the readable end if it is lower.

        Returns:
            None if the readable end is reached, or there is no position yet, or the position is
            out of range again after a reset.
        """
        was_reset = False
        while not self._use.interrupted:
            if state.position is None:
                self.locate([state])
            position = state.position
            if position is None:
                return None
            try:
                log = self.log(state)
                if state.position is None:
                    continue  # the topic was re-created
                bound = self.end.of(log)
                if until is not None and until < bound:
                    bound = until
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
                        # Deletion and cleaning remove abort entries too: read both again.
                        continue
                return Fetched(slices, aborted, bound)
            except OffsetOutOfRange as error:
                if was_reset:
                    self._stalled = True
                    return None
                was_reset = True
                self.out_of_range(state, error)
            except UnknownTopicOrPartition:
                if self._subscription.subscribed:
                    # The topic was deleted: the next group step revokes the partition.
                    self._stalled = True
                    return None
                raise
        return None

    def decode(
        self, state: TopicPartitionState, fetched: Fetched, least: int = sys.maxsize
    ) -> None:
        """Decode what `readable` returned into the partition's state.

        Args:
            state: the partition, without decoded records.
            fetched: what to decode. The state keeps the rest as `undecoded`.
            least: records after which to stop, at the end of a batch.

        Raises:
            CorruptRecord, SerializationError: if the first record cannot be read.
        """
        config = self._config
        partition = state.partition
        position = state.position
        assert position is not None
        state.undecoded = None  # after an error, it is read again
        slices, bound = fetched.slices, fetched.bound
        records: list[Any] = []
        while slices:
            part = slices[0]
            decoder = fetched.decoder
            if decoder is None:
                decoder = fetched.decoder = _core.RecordDecoder(
                    partition.topic, partition.partition, part.data, position, bound,
                    fetched.aborted, config.key_deserializer, config.value_deserializer,
                    config.check_crcs, state.log.leader_epochs,
                )  # fmt: skip
            try:
                found = decoder.take(least - len(records))
            except Exception as error:
                formats = config.key_deserializer, config.value_deserializer
                if formats == (None, None) and not isinstance(error, EoslogError):
                    raise  # not from a record: of a signal handler, or memory is short
                # Return the good records first; the next fetch raises the error.
                if records:
                    break
                if isinstance(error, CorruptRecord):
                    raise error.located(part.path, part.position, str(partition)) from error
                if isinstance(error, EoslogError) and not isinstance(error, SerializationError):
                    raise
                # Find the offset of the bad record: it is the first visible one without
                # deserializers.
                [bad], _ = _core.decode_records(
                    partition.topic, partition.partition, part.data, position, bound,
                    fetched.aborted, 1,
                )  # fmt: skip
                skip = (
                    "to skip this record, call consumer.seek(TopicPartition("
                    f"{partition.topic!r}, {partition.partition}), {bad.offset + 1})"
                )
                raise undecodable(partition, bad.offset, error, skip) from error
            records = records + found if records else found
            position = decoder.position
            if position < min(part.next_offset, bound):
                break  # enough records, or damage after them
            fetched.drop_slice()
        if slices and len(records) >= least:
            state.undecoded = fetched
            position = records[-1].offset + 1
        state.fill(records, position)

    def out_of_range(self, state: TopicPartitionState, error: OffsetOutOfRange) -> None:
        """Move a position out of the log by `auto.offset.reset`, or raise `error`.

        With an offset store, a position beyond the end is not moved: the log is older than the
        database, and a reset would apply records again.
        """
        position, end = state.position, state.log.log_end
        if self.offset_store is not None and position is not None and position > end:
            raise OffsetOutOfRange(
                f"{state.partition}: the offset in the database is {position}, but the log ends at "
                f"{end}, so the log is an older copy than the database; restore a newer log, or "
                "produce the records again and lower the offset in the table of offsets; "
                "`eoslog audit --db` lists all differences"
            ) from error
        policy = self._config.auto_offset_reset
        if policy == NO_RESET:
            raise error
        text = f"{state.partition}: position out of range, resetting to {policy}: {error}"
        self._warned.warn((state.partition, "range"), text)
        state.drop_fetched()
        state.position = None
        self._reset(state, policy)

    # Waiting.

    def wait(self, timeout: float) -> None:
        """Wait for new records, at most `timeout` seconds or 50 ms."""
        pause = min(timeout, SLICE_S)
        states = [
            s
            for s in self._subscription.states.values()
            if not s.paused and s.position is not None and s.log is not None
        ]
        if not states or self._stalled:
            self._stalled = False
            time.sleep(pause)
            return
        if self._committed_only and not self._engine.read_only:
            now = time.monotonic()
            for state in states:
                self._drive(state, now, state.position or 0)
        places = [(s.log, s.position) for s in states if s.position is not None]
        read_ahead = partial(self._read_ahead, states)
        if not self._engine.wait_any(places, pause, of=self.end, on_unflushed=read_ahead):
            self._found_ready = None
            return
        # New data is available. If `collect` neither returns records nor moves a position, waiting
        # for the same end again would be a busy loop, so the next wait sleeps.
        ready = [(s.partition, s.position) for s in states]
        self._stalled = ready == self._found_ready
        self._found_ready = ready

    def wait_beyond(self, ends: Mapping[TopicPartition, int], timeout: float) -> None:
        """Wait until a readable end is beyond a given one, for at most 50 ms."""
        pause = min(timeout, SLICE_S)
        states = [
            (state, end)
            for tp, end in ends.items()
            if (state := self._subscription.states.get(tp)) is not None
            and not state.paused
            and state.log is not None
        ]
        if not states or self._stalled:
            self._stalled = False
            time.sleep(pause)
            return
        if not self._engine.read_only:
            now = time.monotonic()
            for state, _ in states:
                self._drive(state, now, state.log.last_stable_offset)
        self._engine.wait_any([(s.log, end) for s, end in states], pause, of=self.end)

    def _drive(self, state: TopicPartitionState, now: float, position: int) -> None:
        """Complete the transaction that blocks a position, after a short wait."""
        stable = state.log.last_stable_offset
        if position < stable or stable >= state.log.high_watermark:
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
                # Another process may succeed, so this reader keeps waiting.
                text = (
                    f"{state.partition}: blocked at offset {stable} by an undecided transaction, "
                    f"waiting: {error}"
                )
                self._warned.warn((state.partition, "blocked"), text)
