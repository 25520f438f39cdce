"""Decisions to commit that are kept until every participant has followed them.

A coordinator of two-phase commit prepares a staged transaction without records, to be delivered at
`HELD_UNTIL_MS`. Once it is decided to commit, it waits for that time, so its outcome does not
expire. `release` ends this, when no participant needs the outcome any more. So a token that the log
does not know was not committed (presumed abort).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from eoslog.coordinator.retry import again
from eoslog.coordinator.transactions.prepared import PreparedTransactions
from eoslog.coordinator.transactions.prepared_records import PreparedEntry, entry_row
from eoslog.coordinator.transactions.state import TransactionState

__all__ = ["HELD_UNTIL_MS", "held", "release"]

HELD_UNTIL_MS = 253_402_300_799_999
"""The end of the year 9999."""


def held(prepared: PreparedTransactions, resolver: str) -> list[tuple[str, PreparedEntry]]:
    """Return the held commits of a resolver."""
    return [
        (token, entry)
        for token, entry in prepared.index.undelivered()
        if entry.resolver == resolver and entry.deliver_at_ms == HELD_UNTIL_MS
    ]


def release(
    prepared: PreparedTransactions,
    token: str,
    change: Callable[[bytes | None], bytes | None],
    now_ms: int,
) -> None:
    """Replace the value of a held commit; without one, the outcome may expire.

    Args:
        prepared: the prepared transactions of the directory.
        token: a transaction that is decided to commit; nothing happens if it is released already.
        change: returns the new value for the current one; None if no participant is left.
        now_ms: the time of the record.

    Raises:
        UnknownToken: if the directory knows no such transaction.

    Durability:
        The record is published, not durable: a lost one is written again by the next recovery.
    """
    attempts = None
    while True:
        clog, entry = prepared.index.find(token)
        if entry.state is not TransactionState.PREPARE_COMMIT:
            return
        meta = change(entry.meta)
        if meta == entry.meta:
            return
        new = entry.delivered() if meta is None else replace(entry, meta=meta)
        end = clog.refresh()
        unchanged = clog.prepared(entry.key) == entry
        if unchanged and clog.append_rows([entry_row(new)], end, now_ms) is not None:
            clog.refresh()
            return
        attempts = again(attempts, "release of", token)
