"""Refusal of a log that is an older copy than its database.

A restored log assigns the producer ids and epochs of its lost transactions again, so a new
transaction can get the token of a lost one. The row C of the lost one would then decide the new one
to commit, although the database has not committed it. A row C of this log whose token the log does
not know shows that:

    recent               outcomes are kept for `outcome.retention.ms`; half of it leaves room for
                         clocks that differ
    of a future token    the log has not assigned the producer id yet, or has not reached the epoch
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from eoslog.engine.engine import Engine
from eoslog.errors import DatabaseError
from eoslog.sql.outcome_book import owner_of
from eoslog.sql.outcomes import OutcomeRow

__all__ = ["is_future", "refuse_older_log"]


def refuse_older_log(log: Any, rows: Iterable[OutcomeRow], database: str, table: str) -> None:
    """Compare the commits of a database with its log.

    Args:
        log: the open log.
        rows: rows C of this log in the database.
        database: the text of the database for the message.
        table: the table of the rows.

    Raises:
        DatabaseError: if the log has lost a transaction that the database has committed.
    """
    for row in rows:
        if log.outcome(row.token) is None and _is_lost(log._engine, row):
            raise DatabaseError(
                f"{database}: it has committed token {row.token}, which the log {log.path} does "
                "not know, so the log is an older copy; restore a newer one, or produce the "
                f"records of its rows again and delete the row from {table}; `eoslog audit --db` "
                "lists all differences; if outcome.retention.ms was smaller before, or is smaller "
                "in another process, the log is not older: just delete the row"
            )


def _is_lost(engine: Engine, row: OutcomeRow) -> bool:
    retention = engine.config.outcome_retention_ms
    if retention < 0 or row.at_ms > engine.clock_ms() - retention // 2:
        return True
    return is_future(engine, row.token)


def is_future(engine: Engine, token: str) -> bool:
    """Whether the log can assign an unknown token to a transaction that begins later."""
    owner, epoch = owner_of(token)
    producer_id = int(owner.rpartition(":")[2])
    known = engine.transactions.logs.of_producer(producer_id)
    if known is not None:
        return epoch >= known[1].producer_epoch
    engine.metadata.refresh()  # other processes allocate producer ids too
    return producer_id >= engine.metadata.next_producer_id
