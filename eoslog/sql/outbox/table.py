"""An outbox table: its rows in the order of publication, and their removal.

Rows are read without locks, in one statement, so in one snapshot. If a transaction committed before
another one began, a snapshot with rows of the second has all rows of the first.

    with a column `transaction`   rows are read by (transaction, id)
    without                       rows are read by id

A transaction gets its id before it commits, and a later one gets a higher id. So both orders put
rows of an earlier transaction first, if ids of rows also rise. Ids of a PostgreSQL sequence with
CACHE 1 and of SQLite do. A row that becomes visible after a row with a higher id is not missed,
because no position is kept: every row that is in the table is still to be published.

`take` compares the rows with what was read, then deletes or marks them, in the transaction that
also inserts the outcome of the log's transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eoslog.errors import ConfigError, OutboxRowRejected
from eoslog.sql.outbox import schema
from eoslog.sql.outbox.columns import FIELDS, OutboxColumns, check_table, found, names_of, quoted
from eoslog.sql.outbox.rows import OutboxRow
from eoslog.sql.session import DatabaseSession

__all__ = ["OutboxTable", "RowsChanged"]

_AT_ONCE = 500  # values in one statement


class RowsChanged(Exception):
    """Rows were updated or deleted since they were read; read them again."""


class OutboxTable:
    """The table of one relay."""

    def __init__(self, table: Any, columns: Any) -> None:
        """Check the names; the table is looked at later.

        Raises:
            ConfigError: if they are not names.
        """
        self.name = check_table(table)
        self._names: Mapping[str, str | None] = names_of(columns)
        self._columns: OutboxColumns | None = None
        self._read = self._select = ""

    @property
    def channel(self) -> str:
        """The channel of PostgreSQL's notifications."""
        return schema.channel_of(self.name)

    def create(self, session: DatabaseSession, *, notify: bool) -> None:
        """Create what does not exist: the table, the one of rows set aside, the trigger."""
        schema.create(session, self.name, self._names, notify=notify)

    def inspect(self, session: DatabaseSession) -> OutboxColumns:
        """Find the columns of the table.

        Raises:
            ConfigError: if the table does not exist, or lacks columns.
        """
        if self._columns is None:
            has = schema.columns_of(session, self.name)
            if not has:
                raise ConfigError(
                    f"table {self.name}: the table does not exist in {session.database}; create it "
                    "with relay.create()"
                )
            columns = found(self.name, self._names, has)
            self._prepare(columns, has)
            self._columns = columns
        return self._columns

    def _prepare(self, columns: OutboxColumns, has: Mapping[str, str]) -> None:
        names = [getattr(columns, field) for field in FIELDS]
        fields = ", ".join(
            "NULL" if name is None else schema.as_content(quoted(name), has[name]) for name in names
        )
        unpublished = f"{quoted(columns.published)} IS NULL" if columns.published else "1 = 1"
        order = quoted(columns.id)
        if columns.transaction is not None:
            order = f"{quoted(columns.transaction)} NULLS FIRST, {order}"
        self._select = f"SELECT {fields} FROM {quoted(self.name)} WHERE {unpublished}"
        self._read = f"{self._select} ORDER BY {order}"

    def read(self, session: DatabaseSession, limit: int) -> list[OutboxRow]:
        """Return the next rows to publish, in their order."""
        self.inspect(session)
        try:
            rows = session.execute(f"{self._read} LIMIT {limit}").rows
        except Exception:
            self._columns = None
            session.rollback()
            self.inspect(session)  # raises if the table has other columns now
            raise
        finally:
            session.rollback()
        return [OutboxRow(*row) for row in rows]

    def waiting(self, session: DatabaseSession) -> int:
        """Return the number of rows that are not published."""
        self.inspect(session)
        try:
            [(count,)] = session.execute(f"SELECT count(*) FROM ({self._select}) AS rows").rows
        finally:
            session.rollback()
        return int(count)

    def take(self, session: DatabaseSession, rows: Sequence[OutboxRow]) -> None:
        """Delete or mark rows in the open transaction.

        Raises:
            RowsChanged: if a row has another content than when it was read, or is gone.
            OutboxRowRejected: if two rows have the same id.
        """
        for first in range(0, len(rows), _AT_ONCE):
            self._take(session, rows[first : first + _AT_ONCE])

    def _take(self, session: DatabaseSession, rows: Sequence[OutboxRow]) -> None:
        columns = self.inspect(session)
        ids = [row.id for row in rows]
        at = f"{quoted(columns.id)} IN ({', '.join('?' * len(ids))})"
        lock = " FOR UPDATE" if session.dialect.name == "postgresql" else ""
        now = [
            OutboxRow(*row) for row in session.execute(f"{self._select} AND {at}{lock}", ids).rows
        ]
        seen: set[Any] = set()
        for row in now:
            if row.id in seen:
                raise OutboxRowRejected(
                    f"table {self.name}, row {row.id}: two rows have this id; make the column "
                    f"{columns.id} unique",
                    row.id,
                )
            seen.add(row.id)
        known = {row.id: row for row in now}
        changed = [
            row.id for row in rows if known.get(row.id) != row and not row.same(known.get(row.id))
        ]
        if changed:
            raise RowsChanged(f"table {self.name}: rows {changed[:5]} changed since they were read")
        if columns.published is None:
            session.execute(f"DELETE FROM {quoted(self.name)} WHERE {at}", ids)
        else:
            mark = f"{quoted(columns.published)} = CURRENT_TIMESTAMP"
            session.execute(f"UPDATE {quoted(self.name)} SET {mark} WHERE {at}", ids)

    def set_aside(self, session: DatabaseSession, row: OutboxRow, error: str) -> None:
        """Copy a row and its error to the table of rows set aside."""
        columns = self.inspect(session)
        schema.set_aside(session, self.name, columns.id, row.id, error)

    def aside(self, session: DatabaseSession) -> int:
        """Return the number of rows set aside."""
        return schema.count_aside(session, self.name)
