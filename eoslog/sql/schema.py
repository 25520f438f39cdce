"""The tables of eoslog in a database.

    meta      the random id of the database, and the version of the tables
    outcome   the decision of each prepared transaction that the database takes part in
    offsets   the next offset to read of each consumer group and partition

Tables are created in one transaction, which excludes other processes that create them.

The pages of SQLite have no checksums: a changed byte can turn a decision, or make a row invisible
to a look-up. So SQLite gets a second copy of the decisions and offsets, in an index. Before a row,
or its absence, decides, `find` looks it up in both copies, and `check_inserted` looks for one key.
An audit compares them completely (`check`). The first use adds the copies to the tables of an
earlier version.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator
from typing import Any

from eoslog._util.arguments import shown
from eoslog.errors import ConfigError, DatabaseError, EoslogError
from eoslog.sql.dialect import Dialect
from eoslog.sql.session import DatabaseSession

__all__ = ["Tables"]

VERSION = "1"
_ID, _VERSION = "database_id", "schema_version"
_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_SQLITE_COLUMNS = (
    "token TEXT, decision CHAR(1), at TEXT",
    "consumer TEXT, topic TEXT, topic_id TEXT, partition INTEGER, next_offset BIGINT, "
    "leader_epoch INTEGER, generation INTEGER, updated TEXT",
)


class Tables:
    """The names of the tables, and their creation."""

    def __init__(self, prefix: Any) -> None:
        """Check the prefix of the names.

        Raises:
            ConfigError: if names with the prefix are not valid.
        """
        if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
            raise ConfigError(
                "prefix: expected at most 40 letters, digits and _, not a digit first, got "
                f"{shown(prefix)}"
            )
        if prefix.lower().startswith("sqlite_"):
            raise ConfigError(
                f"prefix: SQLite reserves names that begin with sqlite_, got {shown(prefix)}; "
                "choose another prefix"
            )
        self.prefix = prefix
        self.meta = f"{prefix}meta"
        self.outcome = f"{prefix}outcome"
        self.offsets = f"{prefix}offsets"

    def read_id(self, session: DatabaseSession) -> str | None:
        """Return the id of the database; None if the tables do not exist.

        Raises:
            DatabaseError: if the tables have another version.
        """
        try:
            with self.reading(session):
                found = session.execute(f"SELECT key, value FROM {self.meta}").rows
        except DatabaseError as error:
            if error.__cause__ is None or not session.dialect.missing_table(error.__cause__):
                raise
            return None
        finally:
            session.rollback()
        values = {_text(key): _text(value) for key, value in found}
        if values.get(_VERSION) != VERSION or _ID not in values:
            raise DatabaseError(
                f"{session.database}: the tables {self.prefix}* have schema version "
                f"{values.get(_VERSION)}, expected {VERSION}; use the eoslog that created them, or "
                "another prefix"
            )
        return values[_ID]

    def check_id(self, session: DatabaseSession, database_id: str) -> None:
        """Check that the session is one of the database with this id.

        Raises:
            ConfigError: if it is one to another database.
        """
        with self.reading(session):
            if session.execute(f"SELECT 1 WHERE {self.holds()}", (database_id,)).rows:
                return
        raise ConfigError(
            f"{session.database}: the connection is one to another database than the tables "
            f"{self.prefix}* of id {database_id}; roll back, and pass a connection to the same "
            "database"
        )

    def complete(self, session: DatabaseSession) -> bool:
        """Whether the tables have their copies; an earlier version created none."""
        if session.dialect.name != "sqlite":
            return True
        sql = "SELECT count(*) FROM sqlite_master WHERE type = 'index' AND name IN (?, ?)"
        try:
            return bool(
                session.execute(sql, (_copy(self.outcome), _copy(self.offsets))).rows[0][0] == 2
            )
        finally:
            session.rollback()

    def create(self, session: DatabaseSession) -> None:
        """Create the tables and copies that do not exist, and the id of the database.

        Raises:
            DatabaseError: if a table of which a copy is to be made is damaged.
        """
        session.begin()
        try:
            session.lock_schema(self.prefix)
            for statement in self._statements(session.dialect):
                session.execute(statement)
            for table, statement in self._copy_statements(session.dialect):
                self.check(session, table)
                session.execute(statement)
            add = f"INSERT INTO {self.meta} (key, value) VALUES (?, ?) ON CONFLICT DO NOTHING"
            session.execute(add, (_VERSION, VERSION))
            session.execute(add, (_ID, uuid.uuid4().hex))
            session.check_mark()
            session.commit()
        except BaseException:
            session.rollback()
            raise

    @contextlib.contextmanager
    def reading(self, session: DatabaseSession) -> Iterator[None]:
        """Read the tables, whose values only eoslog writes.

        Raises:
            DatabaseError: if a table or a value is not as eoslog wrote it.
            ConfigError: if a connection of the program has no such table.
        """
        try:
            yield
        except Exception as error:
            dialect = session.dialect
            if isinstance(error, EoslogError) or not (
                isinstance(error, ValueError)
                or dialect.undecodable(error)
                or dialect.missing_table(error)
            ):
                raise
            if session.given and dialect.missing_table(error):
                raise ConfigError(
                    f"{session.database}: the connection has no tables {self.prefix}* ({error}), "
                    "so it is one to another database or schema; pass a connection to the same one"
                ) from error
            if dialect.missing_table(error):
                cause = str(error).partition("\n")[0]
                raise DatabaseError(
                    f"{session.database}: the tables {self.prefix}* were not found ({cause}), so "
                    "they were removed or renamed, or a statement of the program changed the "
                    "schema (search_path); undo that, or restore them from a backup"
                ) from error
            raise DatabaseError(
                f"{session.database}: the tables {self.prefix}* are damaged ({error}); restore the "
                "database from a backup"
            ) from error

    def find(
        self, session: DatabaseSession, table: str, column: str, key: str, values: tuple[Any, ...]
    ) -> Any:
        """Return a value of the row with a primary key, None if there is no row.

        Args:
            session: the session.
            table: the table.
            column: the column of the value.
            key: the SQL condition of the primary key.
            values: the values of the condition.

        Raises:
            DatabaseError: if the copies of a file without checksums differ.
        """
        copies = self._sources(session, table)
        sql = " UNION ALL ".join(
            f"SELECT {number}, {column} FROM {table}{copy} WHERE {key}"
            for number, copy in enumerate(copies)
        )  # one statement, so that it reads one state of the database
        rows = session.execute(sql, values * len(copies)).rows
        found = [value for _, value in rows]
        if rows != [(number, found[0]) for number in range(len(copies) if found else 0)]:
            raise _damaged(session, table, f"the copies of the row {values} differ")
        return found[0] if found else None

    def newest_commits(
        self, session: DatabaseSession, log_id: str, limit: int
    ) -> list[tuple[Any, ...]]:
        """Return (token, decision, at) of the newest rows C of one log.

        Raises:
            DatabaseError: if the copies of a file without checksums differ. All rows are counted,
                and the returned ones are looked up.
        """
        table = self.outcome
        owner = f"{log_id}:"
        of_log = f"decision = 'C' AND substr(token, 1, {len(owner)}) = ?"
        newest = f"{table} WHERE {of_log} ORDER BY at DESC LIMIT {limit}"
        if session.dialect.name != "sqlite":
            return session.execute(f"SELECT token, decision, at FROM {newest}", (owner,)).rows
        copy = self._sources(session, table)[1]
        counts = session.execute(
            " UNION ALL ".join(
                f"SELECT {number}, count(*), total({of_log}) FROM {table}{source}"
                for number, source in enumerate((" NOT INDEXED", copy))
            ),
            (owner, owner),
        ).rows
        rows = session.execute(
            f"SELECT token, decision, at, EXISTS (SELECT 1 FROM {table}{copy} WHERE token = "
            "newest.token AND decision = newest.decision AND rowid = newest.number) FROM (SELECT "
            "token, decision, at, rowid AS number FROM "
            f"{newest.replace(' WHERE', ' NOT INDEXED WHERE', 1)}) AS newest",
            (owner,),
        ).rows
        if counts[0][1:] != counts[1][1:] or not all(row[3] for row in rows):
            raise _damaged(session, table, "the copies of its rows differ")
        return [row[:3] for row in rows]

    def check(self, session: DatabaseSession, table: str) -> None:
        """Check a complete table of a file without checksums: 6 s for a million rows.

        Raises:
            DatabaseError: if the table is damaged.
        """
        if session.dialect.name != "sqlite":
            return
        rows = session.execute(f"PRAGMA integrity_check({table})").rows
        if [_text(text) for (text,) in rows] != ["ok"]:
            raise _damaged(session, table, _text(rows[0][0]))

    def check_inserted(self, session: DatabaseSession, table: str, **key: Any) -> None:
        """Check in the copy that a table had no row of the key of a row just inserted.

        The insertion has looked into the index of the primary key. If that is damaged, it may have
        found no row although there is one. `check` would read the whole table.

        Raises:
            DatabaseError: if the table is damaged, or the copy was removed.
        """
        if session.dialect.name != "sqlite":
            return
        where = " AND ".join(f"{column} = ?" for column in key)
        sql = f"SELECT count(*) FROM {table}{self._sources(session, table)[1]} WHERE {where}"
        count = session.execute(sql, tuple(key.values())).rows[0][0]
        if count != 1:
            raise _damaged(session, table, f"{count} rows of the key {[*key.values()]}")

    def _sources(self, session: DatabaseSession, table: str) -> tuple[str, ...]:
        """The SQL that chooses each copy of the rows: first the table, then the index.

        Raises:
            DatabaseError: if the columns of a file without checksums have other types. Then a
                look-up converts its values, and finds a row in neither copy.
        """
        if session.dialect.name != "sqlite":
            return ("",)
        rows = session.execute(f"SELECT name, type FROM pragma_table_info('{table}')").rows
        found = ", ".join(f"{_text(name)} {_text(kind)}" for name, kind in rows)
        if found != _SQLITE_COLUMNS[table == self.offsets]:
            raise _damaged(session, table, f"it has the columns {found}")
        return f" INDEXED BY sqlite_autoindex_{table}_1", f" INDEXED BY {_copy(table)}"

    def _statements(self, dialect: Dialect) -> tuple[str, ...]:
        time = f"{dialect.timestamp} NOT NULL DEFAULT CURRENT_TIMESTAMP"
        return (
            f"CREATE TABLE IF NOT EXISTS {self.meta} (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
            f"CREATE TABLE IF NOT EXISTS {self.outcome} (token TEXT PRIMARY KEY, "
            f"decision CHAR(1) NOT NULL CHECK (decision IN ('C', 'A')), at {time})",
            f"CREATE TABLE IF NOT EXISTS {self.offsets} (consumer TEXT NOT NULL, "
            "topic TEXT NOT NULL, topic_id TEXT NOT NULL, partition INTEGER NOT NULL, "
            "next_offset BIGINT NOT NULL, leader_epoch INTEGER NOT NULL, "
            f"generation INTEGER NOT NULL, updated {time}, "
            "PRIMARY KEY (consumer, topic_id, partition))",
        )

    def _copy_statements(self, dialect: Dialect) -> tuple[tuple[str, str], ...]:
        """The tables with the statements that create their copies."""
        if dialect.name != "sqlite":
            return ()
        columns = {
            self.outcome: "token, decision",
            self.offsets: "consumer, topic_id, partition, next_offset, leader_epoch, generation, "
            "topic",
        }
        return tuple(
            (table, f"CREATE INDEX IF NOT EXISTS {_copy(table)} ON {table} ({names})")
            for table, names in columns.items()
        )

    def holds(self) -> str:
        """The SQL condition that the tables have an id, which is the value of its mark."""
        return f"EXISTS (SELECT 1 FROM {self.meta} WHERE key = '{_ID}' AND value = ?)"


def _copy(table: str) -> str:
    """The name of the index that is the copy of a table."""
    return f"{table}_copy"


def _damaged(session: DatabaseSession, table: str, how: str) -> DatabaseError:
    return DatabaseError(
        f"{session.database}: the table {table} is damaged ({how}); restore the database from a "
        "backup, and compare it with the log by `eoslog audit`"
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
