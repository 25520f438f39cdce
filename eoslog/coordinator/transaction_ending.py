"""The commit point: one durable PREPARE_* record, and what has to come before and after it.

    1 flush every participant to the transaction's last offset, in parallel (commit only)
    2 append PREPARE_* with first and last offset of every partition, if C has not moved
    3 flush C past it                                              <- decided
    4 markers, COMPLETE (`markers.py`)

After step 2 a commit has only three ends: committed, fenced, or unknown (`CommitOutcomeUnknown`),
never aborted or rewound by whoever asked: the record may be on the disk.

Source: protocol.md "Commit", rows 1, 14, 18, 19.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from eoslog.coordinator.attempts import Attempts
from eoslog.coordinator.host import Host, HostLog
from eoslog.coordinator.markers import MarkerDriver, open_span
from eoslog.coordinator.transaction_log import TransactionLog
from eoslog.coordinator.transaction_state import (
    NO_ID,
    Cause,
    Span,
    TransactionMetadata,
)
from eoslog.errors import (
    CommitOutcomeUnknown,
    EoslogError,
    InvalidTxnState,
    UnknownTopicOrPartition,
)
from eoslog.model import TopicPartition
from eoslog.storage.files import failpoint

Claimed = Mapping[TopicPartition, tuple[int, int] | tuple[int, int, bytes]]


class Endings:
    """Decides transactions and drives them.

    Args:
        host: the engine.
        driver: writes the markers.
        new_id: hands out a producer id, where an epoch is exhausted.
    """

    def __init__(self, host: Host, driver: MarkerDriver, new_id: Callable[[], int]) -> None:
        """Wire the parts."""
        self._host = host
        self._driver = driver
        self._new_id = new_id

    def end(
        self, clog: TransactionLog, transactional_id: str, commit: bool, *,
        may: Callable[[TransactionMetadata], bool], cause: Cause = Cause.REQUEST,
        claimed: Claimed | None = None, extra: Mapping[TopicPartition, Span] | None = None,
        goes_on: bool = True,
    ) -> TransactionMetadata | None:  # fmt: skip
        """Decide the id's transaction and drive it as far as possible.

        Args:
            clog: the id's log.
            transactional_id: the id.
            commit: the decision.
            may: asked about the id's newest state before every try: False = nothing to decide
                (any more); may raise instead.
            cause: why.
            claimed: first and last offset that the producer says it wrote, by partition, and in
                which topic if it knows its id.
            extra: open data that recovery found in partitions the id does not name.
            goes_on: whether the producer may need a new id where the epoch is exhausted; else the
                next init rotates.

        Returns:
            The PREPARE_* record, or None if `may` said no.

        Raises:
            CommitOutcomeUnknown: the decision to commit is appended and could not be flushed.
            InvalidTxnState: `claimed` disagrees with what the partitions hold; nothing was decided.

        **Durability**: on return the decision is durable, and with a commit all of its data.
        """
        attempts = Attempts("end of", transactional_id)
        new_id = NO_ID
        while True:
            end = clog.refresh()
            current = clog.get(transactional_id)
            if current is None or not may(current):
                return None
            spans, written = self._spans(current, commit, claimed or {})
            if extra:
                spans |= extra
            if commit and self._flush(written):
                continue  # it took a while: look again before deciding
            if current.exhausted and goes_on and new_id == NO_ID:
                new_id = self._new_id()
            now = self._host.clock_ms()
            record = current.prepared(
                commit, spans, now, cause=cause, new_id=new_id if current.exhausted else NO_ID
            )
            failpoint("txn.flushed")
            offset = clog.append(record, end, now)
            if offset is None:
                attempts.again()
                continue
            failpoint("txn.prepared")
            self.settle(clog, record, offset)
            return record

    def settle(self, clog: TransactionLog, record: TransactionMetadata, offset: int) -> bool:
        """Make an appended PREPARE_* durable, then drive it; whether it is complete."""
        decided = record.decided
        assert decided is not None
        try:
            clog.make_durable(offset)
        except EoslogError as error:
            if decided.commit:
                raise CommitOutcomeUnknown(
                    f"{record.transactional_id}: PREPARE_COMMIT of epoch {decided.data_epoch} is "
                    f"appended at offset {offset}, but not known to be durable: {error}"
                ) from error
            raise
        failpoint("txn.decided")
        try:
            return self._driver.drive(clog, decided.key)
        except EoslogError:
            return False  # decided is decided: whoever comes next drives it

    def _spans(
        self, current: TransactionMetadata, commit: bool, claimed: Claimed
    ) -> tuple[dict[TopicPartition, Span], list[tuple[HostLog, int]]]:
        """What the transaction wrote, as the partitions themselves know it.

        Returns:
            Its spans, and what a commit depends on: each partition it wrote to, and up to where.
        """
        if commit:
            foreign = [tp for tp in claimed if tp not in current.partitions]
            if foreign:
                raise InvalidTxnState(
                    f"{current.transactional_id}: {min(foreign)} was never added to the transaction"
                )
        spans, written = {}, []
        for tp in current.partitions:
            try:
                log = self._host.partition(tp.topic, tp.partition)
            except UnknownTopicOrPartition:
                spans[tp] = Span()  # deleted meanwhile: no marker will be asked for
                continue
            found = open_span(log, current.producer_id)
            if found is not None and found[0] == current.producer_epoch:
                span = found[1]
                written.append((log, span.last + 1))
            else:
                span = Span(topic_id=log.topic_id)
            wrote = claimed.get(tp) if commit else None
            if wrote is not None and len(wrote) == 3 and wrote[2] != log.topic_id:
                if span.empty:
                    span = Span(topic_id=wrote[2])  # deleted, and made again: gone with the old one
            elif wrote is not None:
                first, last = wrote[:2]
                if span.empty or first < span.first or last > span.last:
                    raise InvalidTxnState(
                        f"{current.transactional_id}: wrote {first}..{last} to {tp}, "
                        f"which holds {span.first}..{span.last} of it"
                    )
            spans[tp] = span
        return spans, written

    def _flush(self, written: list[tuple[HostLog, int]]) -> bool:
        """Flush the participants; whether there was anything to flush."""
        targets = [(log, end) for log, end in written if log.high_watermark < end]
        if targets:
            self._host.flush_many(targets)
        return bool(targets)
