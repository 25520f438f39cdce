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

from eoslog.errors import ConfigError, EoslogError, OutboxRowRejected
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
        self._has: Mapping[str, str] = {}
        self._select = self._ids = self._order = ""

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
            ConfigError: if the table does not exist, or lacks columns, or has a column `published`
                that is not NULL in new rows.
        """
        if self._columns is None:
            has = schema.columns_of(session, self.name)
            if not has:
                raise ConfigError(
                    f"table {self.name}: the table does not exist in {session.database}; create it "
                    "with relay.create()"
                )
            columns = found(self.name, self._names, has)
            self._check_published(session, columns.published)
            self._prepare(columns, has)
            self._has = has
            self._columns = columns
        return self._columns

    def _check_published(self, session: DatabaseSession, column: str | None) -> None:
        why = column and schema.why_never_null(session, self.name, column)
        if why:
            raise ConfigError(
                f"table {self.name}: the column {column!r} {why}, so new rows would count as "
                "published; pass a column that is NULL until a row is published, or none, so that "
                "rows are deleted"
            )

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
        self._ids = f"SELECT {quoted(columns.id)} FROM {quoted(self.name)} WHERE {unpublished}"
        self._order = f" ORDER BY {order}"

    def read(self, session: DatabaseSession, limit: int) -> list[OutboxRow]:
        """Return the next rows to publish, in their order."""
        self.inspect(session)
        try:
            return self._rows(session, f"{self._order} LIMIT {limit}")
        except Exception:
            session.rollback()
            if not self._altered(session):
                raise
            self.inspect(session)  # raises if columns are missing
            return self._rows(session, f"{self._order} LIMIT {limit}")
        finally:
            session.rollback()

    def _altered(self, session: DatabaseSession) -> bool:
        """Whether the table has other columns than those inspected; forget these then."""
        altered = schema.columns_of(session, self.name) != self._has
        if altered:
            self._columns = None
        return altered

    def _rows(
        self, session: DatabaseSession, which: str, values: Sequence[Any] = ()
    ) -> list[OutboxRow]:
        """Return rows; of those that the driver cannot read, only the id and the error."""
        try:
            found = session.execute(f"{self._select}{which}", values).rows
        except Exception as error:
            if not session.dialect.undecodable(error):
                raise
            ids = session.execute(f"{self._ids}{which}", values).rows
            return [row for (key,) in ids for row in self._row(session, key)]
        return [OutboxRow(*row) for row in found]

    def _row(self, session: DatabaseSession, key: Any) -> list[OutboxRow]:
        at = f" AND {quoted(self.inspect(session).id)} = ?"
        try:
            found = session.execute(f"{self._select}{at}", (key,)).rows
        except Exception as error:
            if not session.dialect.undecodable(error):
                raise
            return [OutboxRow(key, None, None, unreadable=str(error))]
        return [OutboxRow(*row) for row in found]

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
            RowsChanged: if a row has another content than when it was read, or is gone, or if the
                table has other columns.
            OutboxRowRejected: if two rows have one id, or ids that the database considers equal.
        """
        for first in range(0, len(rows), _AT_ONCE):
            self._take(session, rows[first : first + _AT_ONCE])

    def _take(self, session: DatabaseSession, rows: Sequence[OutboxRow]) -> None:
        columns = self.inspect(session)
        ids = [row.id for row in rows]
        at = f"{quoted(columns.id)} IN ({', '.join('?' * len(ids))})"
        if self._altered(session):
            raise RowsChanged(f"table {self.name}: its columns changed since its rows were read")
        lock = " FOR UPDATE" if session.dialect.name == "postgresql" else ""
        now = self._rows(session, f" AND {at}{lock}", ids)
        if lock and self._altered(session):  # not before the lock only: a row may have a new one
            raise RowsChanged(f"table {self.name}: its columns changed since its rows were read")
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
        wanted = set(ids)
        others = [key for key in known if key not in wanted]
        if others:  # by the collation of the column: the statement would take them too
            raise OutboxRowRejected(
                f"table {self.name}, row {others[0]}: the database considers its id equal to that "
                f"of another row; make the column {columns.id} unique",
                others[0],
            )
        changed = [
            row.id for row in rows if known.get(row.id) != row and not row.same(known.get(row.id))
        ]
        if changed:
            raise RowsChanged(f"table {self.name}: rows {changed[:5]} changed since they were read")
        if columns.published is None:
            what, sql = "delete", f"DELETE FROM {quoted(self.name)}"
        else:
            mark = f"{quoted(columns.published)} = CURRENT_TIMESTAMP"
            what, sql = "mark", f"UPDATE {quoted(self.name)} SET {mark}"
        try:
            taken = session.execute(f"{sql} WHERE {at}", ids).changed
        except EoslogError:
            raise
        except Exception as error:  # of a trigger, a view, a foreign key, or the column's type
            raise self._stay(what, ids, str(error)) from error
        if taken > len(ids):  # a row with one of the ids has become visible since
            raise RowsChanged(f"table {self.name}: more rows have the ids of those that were read")
        left = session.execute(f"{self._ids} AND {at}", ids).rows
        if left:  # a rule or a trigger has ignored it
            raise self._stay(what, [key for (key,) in left], "it ignored the statement")

    def _stay(self, what: str, ids: Sequence[Any], why: str) -> ConfigError:
        """The error for rows that the database keeps: they would be published again."""
        return ConfigError(
            f"table {self.name}: the database does not let the relay {what} rows, the first one "
            f"has the id {ids[0]} ({why}); remove the trigger, rule or constraint that prevents it"
        )

    def set_aside(self, session: DatabaseSession, row: OutboxRow, error: str) -> None:
        """Copy a row and its error to the table of rows set aside."""
        columns = self.inspect(session)
        schema.set_aside(session, self.name, columns.id, row.id, error)

    def aside(self, session: DatabaseSession) -> int:
        """Return the number of rows set aside."""
        return schema.count_aside(session, self.name)
