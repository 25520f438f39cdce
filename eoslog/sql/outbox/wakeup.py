"""Waits until a table may have new rows.

PostgreSQL notifies about inserts, if the table has the trigger of `create`. SQLite has a number
that changes with each commit of another connection (`PRAGMA data_version`). A wait is never longer
than its argument, so a notification that is lost costs only time.
"""

from __future__ import annotations

import select
import threading
import time
from typing import Any

from eoslog.shown_paths import get_logger
from eoslog.sql.database import Database
from eoslog.sql.session import DatabaseSession

__all__ = ["ChangeWaiter"]

logger = get_logger("eoslog.sql")

_LOOK_S = 0.02
_SLICE_S = 0.2
"""How often a wait for a notification checks whether the relay is closed."""


class ChangeWaiter:
    """A connection that learns of commits. Used by one thread."""

    def __init__(self, database: Database, channel: str, closed: threading.Event) -> None:
        """Wait for commits; `closed` ends a wait."""
        self._database = database
        self._channel = channel
        self._closed = closed
        self._session: DatabaseSession | None = None
        self._seen: Any = None

    def arm(self) -> None:
        """Make the next wait return for a commit after this call."""
        try:
            if self._session is not None and self._session.replaced():
                self.close()
            if self._session is None:
                self._session = self._open()
            if self._session.dialect.name == "postgresql":
                self._drain(self._session.connection)
            else:
                self._seen = self._version()
        except Exception as error:  # the relay polls; its own statements report what is wrong
            logger.debug("outbox: no notifications: %s", error)
            self.close()

    def wait(self, seconds: float) -> None:
        """Wait for a commit."""
        deadline = time.monotonic() + seconds
        try:
            while self._session is not None and not self._closed.is_set():
                left = deadline - time.monotonic()
                if left <= 0 or self._changed(left):
                    return
        except Exception as error:
            logger.debug("outbox: no notifications: %s", error)
            self.close()
        self._closed.wait(max(0.0, deadline - time.monotonic()))

    def _open(self) -> DatabaseSession:
        session = self._database._connect()
        if session.dialect.name == "postgresql":
            try:
                session.connection.autocommit = True
                session.execute(f'LISTEN "{self._channel}"')
            except BaseException:
                session.close()
                raise
        return session

    def _changed(self, left: float) -> bool:
        assert self._session is not None
        if self._session.dialect.name == "postgresql":
            connection = self._session.connection
            ready, _, _ = select.select([connection.fileno()], [], [], min(left, _SLICE_S))
            return bool(ready) and self._drain(connection)
        if self._version() != self._seen:
            return True
        self._closed.wait(min(left, _LOOK_S))
        return False

    def _version(self) -> Any:
        assert self._session is not None
        return self._session.execute("PRAGMA data_version").rows[0][0]

    @staticmethod
    def _drain(connection: Any) -> bool:
        """Take the notifications that have come, and return whether there was one."""
        found = False
        connection.pgconn.consume_input()
        while connection.pgconn.notifies() is not None:
            found = True
        return found

    def close(self) -> None:
        """Close the connection."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
