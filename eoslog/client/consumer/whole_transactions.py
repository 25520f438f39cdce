"""Whole transactions: records up to a cut that splits no transaction.

A cut has an end offset for each assigned partition. It is closed if each transaction with a record
below it has all its records below it. The smallest closed cut that contains a record is found by
extension: the partition's end moves past the record, then every partition's end moves past the
records of each transaction that was entered, until nothing changes.

    A   [t t][u u]          The cut after [t t] in A needs [t] in B, before which v begins.
    B   [v][t][v][u]        So it needs v too: {A: 2, B: 3}. The next one is {A: 4, B: 4}.

**Why a transaction is complete.** All records of a transaction are appended before its first
marker. First the readable ends are read, then all batch headers up to the log ends. A record below
a readable end belongs to a decided transaction, so its markers come after all of its records, and
these were seen. A piece that is not below its partition's readable end holds the transaction back.

**Why the memory is bounded.** The pieces of a window of each partition are kept. Batches after the
windows are only searched for parts of the transactions in the windows, up to a higher epoch of the
producer or the log end. A transaction with such a part waits until the windows contain it: its cut
contains all batches before that part, too. While a part of a log is after its window, the readable
ends stay as they were before the search, because what it has found is true for them. When no cut is
left in the windows, all of this is done again from the new positions.

Source: Kafka has no such call. See KIP-98, "Consumer guarantees", and row G09.
"""

from __future__ import annotations

from typing import Any

from eoslog import _core
from eoslog.client.consumer.fetcher import Fetcher
from eoslog.client.consumer.partition_state import TopicPartitionState
from eoslog.client.consumer.subscription import SubscriptionState
from eoslog.client.consumer.transaction_pieces import (
    FarPieces,
    TransactionPiece,
    TransactionPieces,
)
from eoslog.config.keys import ConsumerConfig
from eoslog.errors import EoslogError, OffsetOutOfRange, RecordTooLarge, UnknownTopicOrPartition
from eoslog.model import TopicPartition

__all__ = ["WholeTransactions"]

_ALL = 1 << 62
_WINDOW = 4096
"""The pieces that are kept for all partitions together."""
_LEAST = 64
"""The pieces that are kept for each partition."""


class WholeTransactions:
    """Finds cuts, and reads up to them; used by one thread at a time."""

    def __init__(
        self,
        fetcher: Fetcher,
        config: ConsumerConfig,
        subscription: SubscriptionState,
        use: _core.OneThread,
    ) -> None:
        """Read with the consumer's fetcher; an interrupt of `use` ends every loop."""
        self._fetcher = fetcher
        self._config = config
        self._subscription = subscription
        self._use = use
        self._by_key: dict[tuple[int, int], list[TransactionPiece]] = {}
        self._all: dict[TopicPartition, TransactionPieces] = {}
        self._states: dict[TopicPartition, TopicPartitionState] = {}
        self._seen: dict[TopicPartition, int] = {}  # the readable ends of the last search
        self._far: FarPieces = {}
        self._searched = False  # whether the windows are known, and batches after them exist
        self._short = False  # whether a transaction is readable, and not in the windows
        self._factor = 1
        self._turn = 0

    def collect(self, limit: int, most: int | None = None) -> list[Any]:
        """Return records up to the next cut.

        Args:
            limit: take no further transaction if that would return more records.
            most: the most records to return; None means no limit.

        Raises:
            RecordTooLarge: if the smallest cut has more than `most` records.
            EoslogError: as `Fetcher.collect`, and if a batch before the log end is damaged.

        After an error, the positions are where they were, or after cuts that had only markers and
        aborted records.
        """
        self._factor = 1
        while True:
            searched = self._searched
            turns = self._refresh()
            if turns is None:
                return []
            if not self._extend_up_to(turns, limit):
                if not searched:
                    if not self._short:
                        return []
                    self._factor *= 2
                self._searched = False
                continue
            self._factor = 1
            try:
                found = self._read(most)
            except RecordTooLarge:
                raise
            except EoslogError:
                # The records of the first transaction may be intact.
                for pieces in turns:
                    pieces.restart()
                if not self._extend_up_to(turns, 0):
                    return []
                found = self._read(most)
            if found is None:
                self._searched = False
                return []
            self._turn += 1
            if found:
                return found
            # The cut had only markers and aborted records.

    def wait(self, timeout: float) -> None:
        """Wait until a readable end has moved since `collect`, at most 50 ms."""
        self._fetcher.wait_beyond(self._seen, timeout)

    # The pieces of transactions.

    def _refresh(self) -> list[TransactionPieces] | None:
        """Know the pieces in the windows of all partitions.

        Returns:
            The partitions, beginning with the one whose turn it is; None if a partition has no
            position, or after an interrupt.
        """
        states = self._subscription.states
        for tp in [tp for tp in self._all if tp not in states]:
            self._forget(tp)
        self._states = dict(states)
        for tp, state in list(self._states.items()):
            try:
                log = self._located(state)
            except UnknownTopicOrPartition:
                if not self._subscription.subscribed:
                    raise
                # The topic was deleted: the next group step revokes the partition.
                del self._states[tp]
                if tp in self._all:
                    self._forget(tp)
                continue
            if log is None or state.position is None:
                return None
            if tp not in self._all:
                check = self._config.check_crcs
                self._all[tp] = TransactionPieces(tp, self._by_key, check=check)
            self._searched &= self._all[tp].start(log, state.position)
        present = [(self._all[tp], state) for tp, state in self._states.items()]
        if not self._searched and not self._search(present):
            return None
        for pieces, state in present:
            pieces.limit = pieces.position if state.paused else pieces.readable
            pieces.bound = min(pieces.limit, pieces.scanned)
        turn = self._turn % max(len(present), 1)
        return [pieces for pieces, _ in present[turn:] + present[:turn]]

    def _forget(self, tp: TopicPartition) -> None:
        self._all.pop(tp).forget_all()
        self._searched = False

    def _search(self, present: list[tuple[TransactionPieces, TopicPartitionState]]) -> bool:
        """Read the windows, and search what comes after them; False after an interrupt."""
        for pieces, state in present:  # all ends before any header
            pieces.readable = self._fetcher.bound(state)
        self._seen = {pieces.partition: pieces.readable for pieces, _ in present}
        most = max(_WINDOW // max(len(present), 1), _LEAST) * self._factor
        for pieces, state in present:
            while pieces.scan(state.log, most):
                if self._use.interrupted:
                    return False
        self._far = {}
        epochs: dict[int, int] | None = None
        if len(present) > 1:
            epochs = {}
            for producer_id, epoch in self._by_key:
                epochs[producer_id] = max(epoch, epochs.get(producer_id, -1))
        for pieces, state in present:
            if not pieces.complete:
                pieces.look_ahead(state.log, epochs, self._far, lambda: self._use.interrupted)
        if self._use.interrupted:
            return False
        self._searched = any(not pieces.complete for pieces, _ in present)
        return True

    def _located(self, state: TopicPartitionState) -> Any:
        """Return the partition's log, and have a position in it.

        Returns:
            None if the committed offset is undecided, so that there is no position.

        Raises:
            EoslogError: as `Fetcher.readable`.
        """
        log = self._fetcher.log(state)
        if state.position is None:
            self._fetcher.locate([state])
        if state.position is None:
            return None
        if not log.log_start <= state.position <= log.log_end:
            try:
                log.read(state.position, state.position)
            except OffsetOutOfRange as error:
                self._fetcher.out_of_range(state, error)
        return log

    # The cut.

    def _extend_up_to(self, turns: list[TransactionPieces], limit: int) -> bool:
        """Extend the cut by one whole transaction or more, up to `limit` offsets.

        Returns:
            Whether the cut has moved.
        """
        taken = 0
        self._short = False
        for pieces in turns:
            while taken < max(limit, 1) and pieces.cut < pieces.bound:
                moved = self._step(pieces, max(limit - taken, 1), first=not taken)
                if not moved:
                    break
                taken += moved
        return taken > 0

    def _step(self, pieces: TransactionPieces, room: int, *, first: bool) -> int:
        """Extend the cut of a partition by one transaction, or by records outside of all.

        Returns:
            The number of offsets in all partitions; 0 if the transaction is not complete, or is
            not the first one and has more offsets than `room`.
        """
        piece = pieces.coming()
        if piece is None or piece.first > pieces.cut:
            # Between two pieces, a cut is possible at each offset.
            end = pieces.bound if piece is None else min(piece.first, pieces.bound)
            moved = min(end - pieces.cut, room)
            pieces.cut += moved
            return moved
        return self._close(piece, _ALL if first else room)

    def _close(self, piece: TransactionPiece, room: int) -> int:
        """Extend the cut by the smallest closed one that contains a piece.

        Returns:
            The number of offsets; 0 without a change if there is none below the readable ends, or
            none with at most `room` offsets.
        """
        before: dict[TransactionPieces, tuple[int, int, int]] = {}
        todo = [piece]
        entered: set[tuple[int, int]] = set()
        moved = 0
        while todo:
            reached = todo.pop()
            pieces = reached.pieces
            if reached.end <= pieces.cut:
                continue
            before.setdefault(pieces, pieces.place())
            moved += reached.end - pieces.cut
            if reached.end > pieces.bound or moved > room or self._use.interrupted:
                for changed, place in before.items():
                    changed.put_back(place)
                return 0
            pieces.cut = reached.end
            for one in pieces.enter():
                if one.key in entered:
                    continue
                same, far = self._by_key[one.key], self._far.get(one.key, {})
                spread = any(part is not pieces for part in [*(o.pieces for o in same), *far])
                ends = far if spread else {pieces: one.more} if one.more > one.end else {}
                if ends:
                    self._short |= all(end <= part.limit for part, end in ends.items())
                    for changed, place in before.items():
                        changed.put_back(place)
                    return 0
                if spread:
                    entered.add(one.key)
                    todo += same
                else:  # several transactions of one epoch in one partition are several pieces
                    todo.append(one)
        for pieces in before:
            pieces.pass_marker()
        return moved

    # The records.

    def _read(self, most: int | None) -> list[Any] | None:
        """Return the records up to the cut, and move the positions there.

        Returns:
            None after an interrupt, or if a part was deleted in the meantime.
        """
        states = self._states
        before = [(state, state.place()) for state in states.values()]
        out: list[Any] = []
        try:
            for tp, state in states.items():
                end = self._all[tp].cut
                if end == state.position:
                    continue
                state.drop_fetched()
                while state.position is not None and state.position < end:
                    if not self._fetch(state, end):
                        break
                    out += state.take(_ALL)
                    if most is not None and len(out) > most:
                        raise self._too_many(most)
                if state.position is None or state.position < end:
                    for taken, place in before:
                        taken.put_back(*place)
                    return None
        except BaseException:
            for taken, place in before:
                taken.put_back(*place)
            raise
        return out

    def _fetch(self, state: TopicPartitionState, end: int) -> bool:
        """Fetch records below an offset; return False if the position cannot reach it."""
        found = self._fetcher.readable(state, end)
        position = state.position
        if found is None:
            if position is None or self._use.interrupted or state.log.read(position, end, 1):
                return False
            state.position = end  # a cleaning has left no batch before the cut
            return True
        self._fetcher.decode(state, found)
        return bool(state.records) or not self._fetcher.ends_without_records(state, position)

    def _too_many(self, most: int) -> RecordTooLarge:
        count = sum(self._all[tp].records(state.log) for tp, state in self._states.items())
        return RecordTooLarge(
            f"poll_transactions: the next transactions have {count} records, more than "
            f"max_records={most}, and no smaller part splits none; call "
            f"poll_transactions(max_records={count})"
        )
