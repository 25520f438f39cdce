"""Finds prepared transactions, by their tokens and by their states.

A token names a transaction: `<cluster id>:<producer id>:<epoch>:<number of the C partition>`.
"""

from __future__ import annotations

from dataclasses import replace

from eoslog.coordinator.transactions.log import TransactionLog, TransactionLogs
from eoslog.coordinator.transactions.prepared_records import INLINE, PreparedEntry, TransactionKey
from eoslog.coordinator.transactions.state import TransactionMetadata
from eoslog.errors import UnknownToken

__all__ = ["PreparedIndex", "ended_elsewhere", "waits_for_decision"]


class PreparedIndex:
    """Finds the prepared transactions of a directory. Thread-safe."""

    def __init__(self, logs: TransactionLogs, cluster_id: str) -> None:
        """Keep the coordinator's logs.

        Args:
            logs: the coordinator's logs.
            cluster_id: the id of the directory; tokens begin with it.
        """
        self._logs = logs
        self._cluster_id = cluster_id

    def token_of(self, entry: PreparedEntry, clog: TransactionLog) -> str:
        """Return the token of a transaction in a C partition."""
        return f"{self._cluster_id}:{entry.key[0]}:{entry.key[1]}:{clog.log.partition}"

    def find(self, token: str) -> tuple[TransactionLog, PreparedEntry]:
        """Return the record of a token, and its C partition.

        Raises:
            UnknownToken: if this directory has no such transaction.
        """
        clog, key = self._place(token)
        clog.refresh()
        entry = self.newest(clog, key)
        if entry is None:
            raise UnknownToken(
                f"token {token!r}: this log knows no such prepared transaction; it never existed, "
                "or its outcome is older than outcome.retention.ms"
            )
        return clog, entry

    @staticmethod
    def newest(clog: TransactionLog, key: TransactionKey) -> PreparedEntry | None:
        """Return the newest record of a transaction; see `ended_elsewhere`."""
        entry, current = clog.prepared_and_id(key)
        return None if entry is None else ended_elsewhere(entry, current)

    def _place(self, token: str) -> tuple[TransactionLog, TransactionKey]:
        parts = token.rsplit(":", 3) if isinstance(token, str) else []
        try:
            cluster_id, (producer_id, epoch, number) = parts[0], map(int, parts[1:])
        except (IndexError, ValueError):
            raise UnknownToken(
                f"token {token!r}: expected the token of a prepared transaction, such as "
                f"'{self._cluster_id}:12:0:3'; log.pending() lists them"
            ) from None
        if cluster_id != self._cluster_id:
            raise UnknownToken(
                f"token {token!r}: it is of the log {cluster_id!r}, this one is "
                f"{self._cluster_id!r}; open the directory that made it"
            )
        clog = self._logs.existing(number)
        if clog is None:
            raise UnknownToken(
                f"token {token!r}: this log has no transaction in partition {number}; check the "
                "token, log.pending() lists what is undecided"
            )
        return clog, (producer_id, epoch)

    def pending(self) -> list[tuple[str, PreparedEntry]]:
        """Return (token, record) of each undecided transaction, the oldest first."""
        found = [
            (self.token_of(entry, clog), entry)
            for clog in self._logs.all()
            for entry in clog.prepared_entries(pending=True)
            if ended_elsewhere(entry, clog.get(entry.transactional_id)).pending
        ]
        return sorted(found, key=lambda pair: (pair[1].prepared_at_ms, pair[1].key))

    def known(self) -> list[tuple[str, PreparedEntry]]:
        """Return (token, record) of each transaction whose outcome is not forgotten."""
        found = []
        for clog in self._logs.all():
            clog.refresh()
            for entry in clog.prepared_entries(pending=False):
                now = ended_elsewhere(entry, clog.get(entry.transactional_id))
                found.append((self.token_of(entry, clog), now))
        return found

    def inline_tokens(self) -> dict[str, str]:
        """Return the token of each id with an undecided inline transaction."""
        return {
            entry.transactional_id: token for token, entry in self.pending() if entry.mode == INLINE
        }

    def totals(self) -> tuple[int, int]:
        """Return the number of transactions without an end, and their payload in bytes."""
        totals = [clog.prepared_totals() for clog in self._logs.all()]
        return sum(count for count, _ in totals), sum(size for _, size in totals)

    def undelivered(self) -> list[tuple[str, PreparedEntry]]:
        """Return the staged transactions that are decided to commit and not delivered."""
        return [
            (self.token_of(entry, clog), entry)
            for clog in self._logs.all()
            for entry in clog.prepared_entries(pending=True)
            if not entry.pending
        ]

    def decided(self) -> list[tuple[str, PreparedEntry]]:
        """Return the transactions that are decided, as far as their outcomes are kept."""
        return [
            (self.token_of(entry, clog), entry)
            for clog in self._logs.all()
            for entry in clog.prepared_entries(pending=False)
            if not ended_elsewhere(entry, clog.get(entry.transactional_id)).pending
        ]

    def of_id(self, transactional_id: str) -> list[tuple[str, PreparedEntry]]:
        """Return the undecided transactions that a transactional id has prepared."""
        found = [
            (self.token_of(entry, clog), entry)
            for clog in self._logs.all()
            for entry in clog.prepared_of(transactional_id)
            if ended_elsewhere(entry, clog.get(transactional_id)).pending
        ]
        return sorted(found, key=lambda pair: (pair[1].prepared_at_ms, pair[1].key))

    def news(self) -> list[tuple[str, PreparedEntry]]:
        """Return the transactions that have changed since the last call."""
        found = []
        for clog in self._logs.all():
            for key in clog.take_changed():
                entry = self.newest(clog, key)
                if entry is not None:
                    found.append((self.token_of(entry, clog), entry))
        return found


def waits_for_decision(entry: PreparedEntry, current: TransactionMetadata | None) -> bool:
    """Return whether the id of an inline transaction says that it is undecided."""
    return (
        entry.pending
        and current is not None
        and current.state.undecided
        and entry.key == (current.producer_id, current.producer_epoch)
    )


def ended_elsewhere(entry: PreparedEntry, current: TransactionMetadata | None) -> PreparedEntry:
    """Return the entry as a Kafka broker may have left it.

    A broker knows no prepared transactions. Its init of the id aborts an inline one, and writes
    only the id's own record.
    """
    if entry.mode != INLINE or not entry.pending or waits_for_decision(entry, current):
        return entry
    decided = None if current is None else current.decided
    committed = decided is not None and decided.commit and decided.key == entry.key
    if current is None:
        return entry.decided(committed, entry.prepared_at_ms)
    ended = replace(entry, offset=current.offset)
    return ended.decided(committed, current.last_update_timestamp)
