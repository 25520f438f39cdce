"""The outcome rows of a database that can be deleted.

A row C can be deleted when the log has the decision on disk, and has decided a later transaction of
the same producer. Rows are deleted in batches, inside transactions that commit anyway.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from eoslog.errors import EoslogError
from eoslog.model import Outcome
from eoslog.shown_paths import get_logger
from eoslog.sql.outcomes import OutcomeRow, forget
from eoslog.sql.schema import Tables
from eoslog.sql.session import DatabaseSession

__all__ = ["OutcomeBook", "owner_of"]

logger = get_logger("eoslog.sql")

_BATCH = 64


def owner_of(token: str) -> tuple[str, int]:
    """Return the producer id and the epoch in a token."""
    owner, epoch, _ = token.rsplit(":", 2)
    return owner, int(epoch)


class OutcomeBook:
    """Tokens whose rows can be deleted. Thread-safe."""

    def __init__(self, tables: Tables) -> None:
        """Start without tokens."""
        self._tables = tables
        self._lock = threading.Lock()
        self._done: list[str] = []
        self._last: dict[str, str] = {}  # by producer; these rows stay

    def decided(self, token: str) -> None:
        """Note that the log has the decision on disk, so older rows can go."""
        owner, epoch = owner_of(token)
        with self._lock:
            last = self._last.setdefault(owner, token)
            if last == token:
                return
            older = last
            if epoch > owner_of(last)[1]:
                self._last[owner] = token
            else:
                older = token
            self._done.append(older)

    @contextlib.contextmanager
    def forgetting(self, session: DatabaseSession, *, all_rows: bool = False) -> Iterator[None]:
        """Delete rows in the transaction that the block commits, if there are enough."""
        with self._lock:
            tokens: list[str] = []
            if len(self._done) >= _BATCH or all_rows:
                tokens, self._done = self._done, []
        try:
            forget(session, self._tables, tokens)
            yield
        except BaseException:
            with self._lock:
                self._done += tokens
            raise

    @property
    def waiting(self) -> bool:
        """Whether there are tokens."""
        return bool(self._done)

    def flush(self, session: DatabaseSession) -> None:
        """Delete the rows of all tokens."""
        session.begin()
        with self.forgetting(session, all_rows=True):
            session.check_mark()
            session.commit()

    def sweep(self, rows: Sequence[OutcomeRow], log: Any) -> None:
        """Find rows of this log, inserted by earlier processes, whose decisions it has."""
        for token, _, _ in rows:
            if log.outcome(token) is Outcome.COMMIT:
                try:
                    log.resolve(token, Outcome.COMMIT)  # returns when the decision is on disk
                except EoslogError as error:
                    logger.info(
                        "token %s: outcome row kept, not complete in the log: %s", token, error
                    )
                else:
                    self.decided(token)
