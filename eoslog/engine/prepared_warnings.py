"""Warnings about prepared transactions that block readers.

Readers with `read_committed` wait for an inline transaction, and only its token ends it. If that
takes longer than a minute, each process with the partition open logs one WARNING. It names the
token and the command that decides the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from eoslog.coordinator.transactions.coordinator import TransactionCoordinator
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
