"""The commit point: one durable PREPARE_* record, and the steps around it.

C is the `__transaction_state` partition of the transactional id.

    1 commit only: read what no flush has made durable of each participant, up to the transaction's
      last offset; flush all of them in parallel instead, if that is more than 32 KiB
    2 append PREPARE_* with the first and last offset of every partition and with these bytes, if C
      has not changed
    3 flush C up to this record                                    <- decided
    4 write the markers and COMPLETE_* (`markers.py`)

After step 2, a commit has three possible results: committed, fenced, or unknown
(`CommitOutcomeUnknown`). The caller must not abort or rewind then, because the record may be on
disk.

Source: protocol.md "Commit" and "Carry", rows 1, 14, 18, 19.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from eoslog.coordinator.host import HostLog, TransactionHost
from eoslog.coordinator.retry import again
from eoslog.coordinator.transactions.log import TransactionLog
from eoslog.coordinator.transactions.markers import MarkerDriver, open_span
from eoslog.coordinator.transactions.state import NO_ID, Cause, OffsetSpan, TransactionMetadata
from eoslog.errors import (
    CommitOutcomeUnknown,
    EoslogError,
    InvalidTxnState,
    UnknownTopicOrPartition,
)
from eoslog.model import TopicPartition
from eoslog.storage.fs.files import failpoint
from eoslog.storage.segment.carried_batches import CarriedBatches

Claimed = Mapping[TopicPartition, tuple[int, int] | tuple[int, int, bytes]]
Rows = Sequence[tuple[bytes, bytes | None]]
"""Records (key, value) that are appended in one batch with a decision."""
CARRIED_BYTES = 32 << 10
"""The most that one decision carries, because these bytes are written twice."""


class CarriedPart(NamedTuple):
    """The batches of a partition that a decision carries, up to `end`."""

    log: HostLog
    batches: CarriedBatches
    end: int

    def row(self) -> tuple[str, bytes, int, int, bytes]:
        """The row of the decision's record."""
        log, (first, data), _ = self
        return log.topic, log.topic_id, log.partition, first, data


class Endings:
    """Decides transactions and completes them.

    Args:
        host: the engine.
        driver: writes the markers.
        new_id: allocates a producer id when an epoch is exhausted.
    """

    def __init__(
        self, host: TransactionHost, driver: MarkerDriver, new_id: Callable[[], int]
    ) -> None:
        """Keep the coordinator's parts."""
        self._host = host
        self._driver = driver
        self._new_id = new_id

    def end(
        self, clog: TransactionLog, transactional_id: str, commit: bool, *,
        may: Callable[[TransactionMetadata], bool], cause: Cause = Cause.REQUEST,
        claimed: Claimed | None = None, extra: Mapping[TopicPartition, OffsetSpan] | None = None,
        goes_on: bool = True, also: Callable[[int], Rows] | None = None,
    ) -> TransactionMetadata | None:  # fmt: skip
        """Decide the id's transaction, and complete it if possible.

        Args:
            clog: the id's log.
            transactional_id: the id.
            commit: the decision.
            may: called with the id's newest state before every attempt. It returns False if there
                is nothing to decide, or raises.
            cause: the reason of the decision.
            claimed: the first and last offset that the producer wrote to each partition, and the
                topic id if the producer knows it.
            extra: open data that recovery found in partitions that the id's record does not list.
            goes_on: whether to allocate a new producer id if the epoch is exhausted. If False, the
                next init does.
            also: returns, for the time of the decision in ms, records that become valid with it.

        Returns:
            The PREPARE_* record, or None if `may` returned False.

        Raises:
            CommitOutcomeUnknown: if the decision to commit was appended and could not be flushed.
            InvalidTxnState: if `claimed` does not match the partitions; nothing was decided.

        Durability:
            The decision is durable on return, and so is all data of a commit.
        """
        attempts = None
        new_id = NO_ID
        while True:
            end = clog.refresh()
            current = clog.get(transactional_id)
            if current is None or not may(current):
                return None
            spans, written = self.spans(current, commit, claimed or {})
            if extra:
                spans |= extra
            carried = self.carry(written) if commit and also is None else None
            flushed = commit and carried is None and self.flush(written)
            if flushed and not (clog.refresh() == end and may(current)):
                continue  # the flush took time, and the state has changed or is overdue
            exhausted = current.exhausted
            if exhausted and goes_on and new_id == NO_ID:
                new_id = self._new_id()
            now = self._host.clock_ms()
            record = current.prepared(
                commit, spans, now, cause=cause, new_id=new_id if exhausted else NO_ID
            )
            failpoint("txn.flushed")
            if also is None:
                rows = [part.row() for part in carried] if carried else ()
                offset = clog.append(record, end, now, rows)
            else:
                offset = clog.append_rows(also(now), end, now, value=record)
            if offset is None:
                attempts = again(attempts, "end of", transactional_id)
                continue
            failpoint("txn.prepared")
            self.settle(clog, record, offset, carried or ())
            return record

    def settle(
        self, clog: TransactionLog, record: TransactionMetadata, offset: int,
        carried: Iterable[CarriedPart] = (),
    ) -> bool:  # fmt: skip
        """Make an appended PREPARE_* durable, then complete the transaction.

        Returns:
            Whether the transaction is complete.
        """
        decided = record.decided
        assert decided is not None
        try:
            clog.make_durable(offset)
        except EoslogError as error:
            if decided.commit:
                raise CommitOutcomeUnknown(
                    f"transactional id {record.transactional_id!r}: PREPARE_COMMIT of epoch "
                    f"{decided.data_epoch} was appended at offset {offset}, but may not be durable "
                    f"({error}); close the producer, and call init_transactions() on a new one, "
                    "which returns the outcome"
                ) from error
            raise
        failpoint("txn.durable")
        try:
            for part in carried:
                part.log.count_carried(part.end)
            failpoint("txn.decided")
            return self._driver.drive(clog, decided.key)
        except EoslogError:
            return False  # the decision stands, and the next driver completes it

    def spans(
        self, current: TransactionMetadata, commit: bool, claimed: Claimed
    ) -> tuple[dict[TopicPartition, OffsetSpan], list[tuple[HostLog, int]]]:
        """Find what the transaction wrote, from the state of its partitions.

        Returns:
            The spans, and the partitions that a commit must flush, each with its end.
        """
        if commit and not current.partitions.issuperset(claimed):
            foreign = min(claimed.keys() - current.partitions)
            raise InvalidTxnState(
                f"transactional id {current.transactional_id!r}: {foreign} was not added "
                "to the transaction; close this producer and create a new one"
            )
        spans, written = {}, []
        for tp in current.partitions:
            try:
                log = self._host.partition(tp.topic, tp.partition)
            except UnknownTopicOrPartition:
                spans[tp] = OffsetSpan()  # the topic was deleted: it needs no marker
                continue
            found = open_span(log, current.producer_id)
            if found is not None and found[0] == current.producer_epoch:
                span = found[1]
                written.append((log, span.last + 1))
            else:
                span = OffsetSpan(topic_id=log.topic_id)
            wrote = claimed.get(tp) if commit else None
            if wrote is not None and len(wrote) == 3 and wrote[2] != log.topic_id:
                if span.empty:
                    # The topic was deleted and re-created: the records are gone with the old one.
                    span = OffsetSpan(topic_id=wrote[2])
            elif wrote is not None:
                first, last = wrote[:2]
                if span.empty or first < span.first or last > span.last:
                    raise InvalidTxnState(
                        f"transactional id {current.transactional_id!r}: the producer wrote "
                        f"offsets {first} to {last} of {tp}, but the partition has {span.first} to "
                        f"{span.last} of this transaction; close this producer and create a new one"
                    )
            spans[tp] = span
        return spans, written

    def carry(self, written: list[tuple[HostLog, int]]) -> list[CarriedPart] | None:
        """Return what a decision must carry instead of a flush; None if it is too much."""
        parts, left = [], CARRIED_BYTES
        for log, end in written:
            if log.high_watermark < end:
                batches = log.carry(end, left)
                if batches is None:
                    return None
                left -= len(batches.data)
                parts.append(CarriedPart(log, batches, end))
        return parts

    def flush(self, written: list[tuple[HostLog, int]]) -> bool:
        """Flush the participants, and return whether there was anything to flush."""
        targets = [(log, end) for log, end in written if log.high_watermark < end]
        if targets:
            self._host.flush_many(targets)
        return bool(targets)
