"""Warnings about transactions that block readers.

Readers with `read_committed` wait for an inline transaction, and only its token ends it. If that
takes longer than a minute, each process with the partition open logs one WARNING. It names the
token and the command that decides the transaction.

A read-only log without writers is a fixed view, which ends no transaction. If readers stop at one
that a writer would end, the fixed view logs one WARNING about it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from eoslog.coordinator.transactions.coordinator import TransactionCoordinator
from eoslog.coordinator.transactions.prepared_records import STAGED_PREFIX, TransactionKey
from eoslog.errors import EoslogError
from eoslog.shown_paths import get_logger
from eoslog.storage.log.partition_log import PartitionLog

logger = get_logger("eoslog.transactions")

WARN_AFTER_S = 60.0
LOOK_EVERY_S = 15.0


class PreparedWarnings:
    """Looks at the open partitions of a process.

    Not thread-safe: one task calls `look`.
    """

    def __init__(
        self,
        logs: Callable[[], Iterable[PartitionLog]],
        transactions: TransactionCoordinator,
        clock_ms: Callable[[], int],
    ) -> None:
        """Begin without warnings.

        Args:
            logs: returns the open partitions.
            transactions: the coordinator.
            clock_ms: returns the wall clock time in ms.
        """
        self._logs = logs
        self._transactions = transactions
        self._clock_ms = clock_ms
        self._warned: set[str] = set()

    def look(self) -> None:
        """Warn about each transaction that blocks readers for too long, once."""
        seen: set[str] = set()
        blocked = [log for log in self._logs() if log.stable_end < log.log_end]
        if blocked:
            self._transactions.logs.all()  # reads what other processes have written
        for log in blocked:
            try:
                self._check_log(log, seen)
            except EoslogError:
                continue  # it is deleted or damaged: each call that needs it reports that
        self._warned &= seen

    def _check_log(self, log: PartitionLog, seen: set[str]) -> None:
        for producer_id, epoch, first, _ in log.open_transactions():
            found = self._transactions.logs.of_producer(producer_id)
            entry = None if found is None else found[0].prepared((producer_id, epoch))
            if found is None or entry is None or not entry.pending:
                continue
            token = self._transactions.prepared.index.token_of(entry, found[0])
            seen.add(token)
            waited = (self._clock_ms() - entry.prepared_at_ms) / 1000
            if token in self._warned or waited < WARN_AFTER_S:
                continue
            self._warned.add(token)
            logger.warning(
                "%s: readers wait at offset %d for the prepared transaction %s of transactional id "
                "%r for %.0f s; decide it with `eoslog txn resolve %s commit` or `abort`",
                log.name, first, token, entry.transactional_id, waited, token,
            )  # fmt: skip


class FixedViewWarnings:
    """Looks at each partition that a fixed view opens. Thread-safe."""

    def __init__(
        self, transactions: TransactionCoordinator, clock_ms: Callable[[], int], *, clean: bool
    ) -> None:
        """Begin without warnings.

        Args:
            transactions: the coordinator.
            clock_ms: returns the wall clock time in ms.
            clean: whether the last session closed cleanly.
        """
        self._transactions = transactions
        self._clock_ms = clock_ms
        self._named: set[TransactionKey] = set()
        # After a clean close, finding them would read all decisions at each opening.
        self._staged_unchecked = not clean

    def look(self, log: PartitionLog) -> None:
        """Warn about the transaction at which readers of this partition stop.

        The first call also looks for committed staged transactions that are not delivered.
        """
        rows = log.open_transactions()  # by first offset: the first one stops readers
        if not rows and not self._staged_unchecked:
            return
        try:
            self._transactions.logs.all()
            if rows:
                self._check(log, *rows[0][:3])
            if self._staged_unchecked:
                self._staged_unchecked = False
                self._check_deliveries()
        except EoslogError as error:
            at = f", which stops readers of {log.name} at offset {rows[0][2]}" if rows else ""
            logger.warning("no decision about a transaction can be read%s: %s", at, error)

    def _check(self, log: PartitionLog, producer_id: int, epoch: int, first: int) -> None:
        logs, key = self._transactions.logs, (producer_id, epoch)
        found = logs.of_producer(producer_id)
        name = None if found is None else found[1].transactional_id
        entry = None if found is None else found[0].prepared(key)
        if entry is not None and entry.pending:
            return  # its token ends it
        if logs.decision(key) is not None:
            state = "is decided, but lacks its marker"
        elif name is not None and name.startswith(STAGED_PREFIX):
            state = "delivers a staged transaction"
        else:
            state = "was not ended"
        level = logging.INFO if key in self._named else logging.WARNING  # in other partitions
        self._named.add(key)
        logger.log(
            level, "%s: readers stop at offset %d, before a transaction of %s that %s; a process "
            "that has the log open for writing ends it within seconds", log.name, first,
            f"producer id {producer_id}" if name is None else repr(name), state,
        )  # fmt: skip

    def _check_deliveries(self) -> None:
        now_ms = self._clock_ms()
        left = [
            token
            for token, entry in self._transactions.prepared.index.undelivered()
            if entry.deliver_at_ms <= now_ms
        ]
        if left:
            logger.warning(
                "committed staged transactions that are not delivered, so that readers do not see "
                "them: %d, the first of which is %s; a process that has the log open for writing "
                "delivers them within seconds", len(left), left[0],
            )  # fmt: skip
