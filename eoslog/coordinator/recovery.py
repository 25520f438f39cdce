"""Finishing what nobody else will finish: transactions of dead owners, timed out or half driven.

Three callers: a partition that is recovered at the start of a session (`recover_partition`), a
reader that is held up at a last stable offset (`resolve_blockers`), the sweep (`sweep`), which also
comes back to what the recovery of a partition did not get done.

What happens to an open (producer id, epoch) of a partition:

    a decision speaks of it           its marker is written, also if one was lost before
    Ongoing, owner dead / timed out   PREPARE_ABORT under its id
    Ongoing otherwise                 left alone: somebody works on it
    id known, not Ongoing             its Ongoing was lost by a power cut: what was decided before
                                      it is driven to its end, then PREPARE_ABORT under it
    unknown                           PREPARE_ABORT under the reserved id `__recovery-<producer id>`

Presumed abort always goes through C as a durable PREPARE_ABORT with the epoch bumped, never as a
bare marker. An owner is the process that initialised the id; it is dead when its lock is free,
which no stopped process can fake. A timeout runs on this process's monotonic clock from when it
first read of the transaction: late at worst, never early.

Source: protocol.md "Recovery", rows 17, 21, 22, 31, 39.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from eoslog.coordinator.attempts import Attempts
from eoslog.coordinator.host import Host, HostLog
from eoslog.coordinator.markers import MarkerDriver, open_span
from eoslog.coordinator.transaction_ending import Endings
from eoslog.coordinator.transaction_log import (
    RECOVERY_PREFIX,
    Decision,
    Key,
    TransactionLog,
    TransactionLogs,
)
from eoslog.coordinator.transaction_state import Cause, Span, TransactionMetadata, TransactionState
from eoslog.errors import (
    ConcurrentTransactions,
    EoslogError,
    IllegalState,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
)
from eoslog.model import TopicPartition

GRACE_S = 0.05
"""How long a decided transaction is left to whoever decided it before others join in driving."""
_RECOVERY_TIMEOUT_MS = 60_000


class Resolver:
    """Ends transactions that are due, for whoever meets them. Thread-safe."""

    def __init__(
        self, host: Host, logs: TransactionLogs, driver: MarkerDriver, endings: Endings
    ) -> None:
        """Wire the parts."""
        self._host = host
        self._logs = logs
        self._driver = driver
        self._endings = endings
        self._recovering = threading.local()

    def due(self, clog: TransactionLog, metadata: TransactionMetadata) -> Cause | None:
        """Why an Ongoing transaction is to be aborted now, or None if it is not."""
        if metadata.state is not TransactionState.ONGOING:
            return None
        if metadata.owner is not None and not self._host.process_alive(*metadata.owner):
            return Cause.OWNER_DEAD
        if clog.seconds_open(metadata) * 1000 > metadata.timeout_ms:
            return Cause.TIMED_OUT
        return None

    def abort(
        self, clog: TransactionLog, metadata: TransactionMetadata, cause: Cause,
        extra: dict[TopicPartition, Span] | None = None, *, goes_on: bool = True,
    ) -> bool:  # fmt: skip
        """Abort one transaction, if it still is the one that was looked at.

        Returns:
            Whether this call decided it.
        """
        key = (metadata.producer_id, metadata.producer_epoch)

        def still(current: TransactionMetadata) -> bool:
            same = (current.producer_id, current.producer_epoch) == key
            # Somebody alive may have taken the id over since.
            orphan = cause is not Cause.OWNER_DEAD or current.owner == metadata.owner
            return same and orphan and current.state is metadata.state

        record = self._endings.end(
            clog,
            metadata.transactional_id,
            False,
            may=still,
            cause=cause,
            extra=extra,
            goes_on=goes_on,
        )
        return record is not None

    # -- one open transaction of one partition

    def resolve_blockers(self, log: HostLog, *, grace_s: float = GRACE_S) -> int:
        """Finish what holds back a partition's last stable offset and is due.

        Args:
            log: the partition.
            grace_s: how long a fresh decision is left to its own driver.

        Returns:
            How many transactions are no longer open there.
        """
        if self._host.read_only:
            return 0
        rows = log.open_transactions()
        if not rows and log.stable_end < log.log_end:
            log.repair()  # whoever appended the last marker died before the end was said
        return sum(self.resolve(log, pid, epoch, grace_s) for pid, epoch, _, _ in rows)

    def recover_partition(self, log: HostLog) -> int:
        """The same at the start of a session: nobody that decided anything is still driving it.

        To be called once a partition's log is recovered, before anything is appended to it. A
        transaction that is driven here may open further partitions, whose recovery calls this
        again: those wait for their turn, or their number would be the depth of the stack.
        """
        waiting = getattr(self._recovering, "waiting", None)
        if waiting is not None:
            waiting.append(log)
            return 0
        waiting = self._recovering.waiting = [log]
        try:
            resolved = 0
            while waiting:
                resolved += self.resolve_blockers(waiting.pop(), grace_s=0.0)
            return resolved
        finally:
            self._recovering.waiting = None

    def resolve(self, log: HostLog, producer_id: int, epoch: int, grace_s: float = GRACE_S) -> bool:
        """Finish a transaction of a partition if it is due; whether it is no longer open there."""
        # C first, the partition after it: a marker is published before the COMPLETE that lets a
        # decision be dropped, so what C no longer tells, the partition does.
        self._logs.all()
        return self._resolve(log, (producer_id, epoch), grace_s)

    def _resolve(self, log: HostLog, key: Key, grace_s: float) -> bool:
        """The same where C was folded after the transaction was seen open."""
        producer_id, epoch = key
        span = self._open(log, producer_id, epoch)
        if span is None:
            return True
        tp = TopicPartition(log.topic, log.partition)
        decided = self._logs.decision(key)
        if decided is not None:
            return self._drive(log, *decided, tp, grace_s)
        known = self._logs.of_producer(producer_id)
        if known is not None and known[1].producer_epoch == epoch:
            clog, metadata = known
            if metadata.state.preparing and metadata.decided is not None:
                # The COMPLETE of what came before was lost together with this one's Ongoing.
                self._driver.drive(clog, metadata.decided.key)
                clog.refresh()
                driven = clog.get(metadata.transactional_id)
                if driven is None or driven.state.preparing or driven.producer_epoch != epoch:
                    return False
                metadata = driven
            cause = self.due(clog, metadata)
            if cause is None and metadata.state.expirable:
                cause = Cause.RECOVERY
            if cause is None:
                return False
            self.abort(clog, metadata, cause, {tp: span})
        else:
            self._abort_unknown(key, tp, span)
        return self._open(log, producer_id, epoch) is None

    @staticmethod
    def _open(log: HostLog, producer_id: int, epoch: int) -> Span | None:
        found = open_span(log, producer_id)
        return found[1] if found is not None and found[0] == epoch else None

    def _drive(
        self,
        log: HostLog,
        clog: TransactionLog,
        decision: Decision,
        tp: TopicPartition,
        grace_s: float,
    ) -> bool:
        key = decision.decided.key
        if not decision.complete:
            if self._left_to_its_owner(clog, decision.prepared, grace_s):
                return False
            self._driver.drive(clog, key)
        if self._open(log, *key) is not None:
            # Complete, yet open here: the marker was published and lost, or an abort does not
            # name this partition (its Ongoing was lost).
            clog.make_durable(decision.offset)
            self._driver.mark(clog, key, tp)
        return self._open(log, *key) is None

    def _left_to_its_owner(
        self, clog: TransactionLog, prepared: TransactionMetadata, grace_s: float
    ) -> bool:
        """Whether a decision is so fresh that a living owner is about to drive it itself."""
        assert prepared.decided is not None
        if clog.seconds_decided(prepared.decided.key) >= grace_s:
            return False
        return prepared.owner is not None and self._host.process_alive(*prepared.owner)

    def _abort_unknown(self, key: Key, tp: TopicPartition, span: Span) -> None:
        name = f"{RECOVERY_PREFIX}{key[0]}"
        clog = self._logs.of(name)
        attempts = Attempts("abort of open data of producer", key[0])
        while True:
            end = clog.refresh()
            current = clog.get(name)
            if current is not None and current.state.preparing and current.decided is not None:
                if not self._driver.drive(clog, current.decided.key):
                    return  # an earlier one under this name is stuck; readers come again
                continue
            if clog.decision(key) is not None:
                return
            now = self._host.clock_ms()
            record = TransactionMetadata(name, *key, _RECOVERY_TIMEOUT_MS).prepared(
                False, {tp: span}, now, cause=Cause.RECOVERY
            )
            offset = clog.append(record, end, now)
            if offset is not None:
                self._endings.settle(clog, record, offset)
                return
            attempts.again()

    # -- by hand

    def end_by_hand(
        self, producer_id: int, producer_epoch: int, commit: bool, tp: TopicPartition
    ) -> KafkaError | None:
        """WriteTxnMarkers for one partition; the error it is answered with, or None."""
        try:
            log = self._host.partition(tp.topic, tp.partition)
            found = open_span(log, producer_id)
            if found is None:
                return None
            if found[0] > producer_epoch:
                raise InvalidProducerEpoch(
                    f"{tp}: epoch {producer_epoch} is older than the open {found[0]}"
                )
            self._end_open(log, (producer_id, found[0]), commit)
        except KafkaError as error:
            return error
        return None

    def _end_open(self, log: HostLog, key: Key, commit: bool) -> None:
        self._logs.all()
        decided = self._logs.decision(key)
        if commit != (decided is not None and decided[1].commit):
            known = "no decision to commit" if commit else "a decision to commit"
            raise InvalidTxnState(f"there is {known} epoch {key[1]} of producer {key[0]}")
        named = self._logs.of_producer(key[0])
        if decided is None and named is not None and named[1].producer_epoch == key[1]:
            clog, metadata = named
            if metadata.state is TransactionState.ONGOING:
                self.abort(clog, metadata, Cause.OPERATOR)
        if not self.resolve(log, *key, grace_s=0.0):
            raise ConcurrentTransactions(f"epoch {key[1]} of producer {key[0]} is still open")

    # -- all of them

    def sweep(self, on_error: Callable[[str, EoslogError], None]) -> int:
        """Abort what is due and drive what is decided, in every C partition.

        Then look at what is still open in this process's partitions: whoever recovered one may have
        died, or failed, before all that C does not tell of was ended.

        One that fails does not keep the others waiting: `on_error` hears its name.

        Returns:
            How many transactions were aborted.
        """
        aborted = 0
        for clog in self._logs.all():
            for metadata in clog.values():
                try:
                    if metadata.state.preparing and metadata.decided is not None:
                        if not self._left_to_its_owner(clog, metadata, GRACE_S):
                            self._driver.drive(clog, metadata.decided.key)
                        continue
                    cause = self.due(clog, metadata)
                    if cause is not None:
                        aborted += self.abort(clog, metadata, cause)
                except IllegalState:
                    raise
                except EoslogError as error:
                    on_error(metadata.transactional_id, error)
        self._sweep_logs(on_error)
        return aborted

    def _sweep_logs(self, on_error: Callable[[str, EoslogError], None]) -> None:
        logs = self._host.open_logs()
        held = [log for log in logs if log.last_stable_offset < log.high_watermark]
        seen = [(log, row[:2]) for log in held for row in log.open_transactions()]
        if seen:
            self._logs.all()
        for log, key in seen:
            try:
                self._resolve(log, key, GRACE_S)
            except IllegalState:
                raise
            except EoslogError as error:
                on_error(f"{log.topic}-{log.partition}", error)
