"""A store in an SQLite file, in the folder of the application.

The file never has changes that the log does not have: they are written after the transaction has
committed, together with `applied`, the offset after them in the table's topic. A crash leaves a
file without the last changes, and the next owner reads the topic from `applied`.

Each opening writes the number of its owner into the header, and every change has the condition that
the number is still there. So an owner that was suspended, and was replaced, changes nothing when it
continues. Before the log's transaction commits, the owner checks its number: if it was replaced,
its tasks may have read other rows. Commits need no sync: SQLite in WAL mode loses the last ones at
a power loss, and their `applied` with them.

A file is filled again from the beginning of the topic if it is of another topic, or ahead of it (a
restored backup), or if its last changes are so old that compaction may have removed tombstones. It
is also filled again if the log start has moved, because rows do not have their offsets: retention
or `delete_records` may have deleted the records of some.

SQLite has no checksums, and what a task reads decides what it writes to the log. So the header and
each row have one. A key that is not found verifies the rows next to it, because a damaged key is
one of them. A damaged page can also hide rows. So an index has each key a second time, in other
pages. A damaged or hidden row raises an error, and the next opening fills the file again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import sqlite3
import time
import zlib
from collections.abc import Iterator
from typing import Any

from eoslog.app.tables.partition import Changes
from eoslog.errors import StorageError, TransactionAbortable
from eoslog.shown_paths import get_logger
from eoslog.storage.fs import files

__all__ = ["SQLiteStore"]

logger = get_logger("eoslog.app")

_VERSION = 5
_BUSY_S = 10.0
_SETTLED = 1
"""In place of an owner that has applied all its changes, and has ended."""
_SCHEMA = (
    "create table eoslog_table (version integer, topic blob, topic_id blob, "
    "partition integer, log_start integer, applied integer, last blob, at_ms integer, "
    "owner integer, crc integer)",
    "create table eoslog_rows (key blob primary key, value blob not null, "
    "crc integer not null) without rowid",
)  # fmt: skip
_CREATE_COPY = "create index if not exists eoslog_keys on eoslog_rows (key)"
_COPY = "eoslog_rows indexed by eoslog_keys"
_HEADER = (
    "select version, topic, topic_id, partition, log_start, applied, last, at_ms, owner, crc "
    "from eoslog_table"
)
_ROWS = "eoslog_rows indexed by sqlite_autoindex_eoslog_rows_1"
_ROW = f"select key, value, crc from {_ROWS}"
_NEIGHBOURS = (
    f"{_ROW} where key < ? order by key desc limit 1", f"{_ROW} where key > ? order by key limit 1",
)  # fmt: skip
_KEYS = f"select (select total(1) from {_ROWS}), (select total(1) from {_COPY})"
"""For `count(*)` alone, SQLite ignores `indexed by`."""
_KEYS_OF = (
    f"select (select count(*) from {_ROWS} where key = ?1), "
    f"(select count(*) from {_COPY} where key = ?1)"
)  # fmt: skip
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_OTHER_SCHEMA = sqlite3.SQLITE_ERROR
"""No such table or column, while a file is opened: it is damaged, or of another version."""


class SQLiteStore:
    """The committed rows of one partition, in an SQLite file.

    Attributes:
        applied: the offset in the table's topic up to which the rows contain the changes.
        last: the mark of the record before that offset.
        at_ms: when the rows were changed last, in ms since the epoch.
        settled: whether the last owner has applied all its changes.
    """

    def __init__(
        self, path: str, topic: str, topic_id: bytes, partition: int, log_start: int = 0
    ) -> None:
        """Open the file, and empty it if it is of another partition or log start.

        Raises:
            StorageError: if the file cannot be used.
        """
        self._path = path
        self._identity = (_VERSION, topic.encode(), topic_id, partition, log_start)
        self._owner = secrets.randbelow(1 << 62) + 2
        try:
            self._open()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the names in a schema
            if isinstance(error, sqlite3.Error) and _code(error) not in (*_DAMAGED, _OTHER_SCHEMA):
                raise self._failed(error) from error
            logger.warning("%s: damaged, reading the table from its topic: %s", path, error)
            self._remove()
            try:
                self._open()
            except sqlite3.Error as again:
                raise self._failed(again) from again

    def _open(self) -> None:
        files.close(files.open_file(self._path, create=True))  # with the permissions of the log
        connection = sqlite3.connect(
            self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            self._connection = connection
            connection.text_factory = bytes  # a damaged type may say text
            self._execute("pragma journal_mode=wal")
            self._execute("pragma synchronous=normal")
            with self._transaction():
                if self._execute("select 1 from sqlite_master").fetchone() is None:
                    for statement in _SCHEMA:
                        self._execute(statement)
                self._execute(f"{_ROW} limit 0")  # raises if the table or a column is missing
                found = self._execute(_HEADER).fetchall()
                if [row[: len(self._identity)] for row in found] != [
                    self._identity
                ] or not _verified(found[0]):
                    if found:
                        logger.warning(
                            "%s: of another table or topic, or from before records were deleted, "
                            "or damaged; reading the table from its topic",
                            self._path,
                        )
                    self._start()
                self._execute(f"select key from {_COPY} limit 0")
                before = self._read_applied()
                self.settled = before == _SETTLED
                self._set(self.applied, self.last, self.at_ms, self._owner, before)
        except BaseException:
            connection.close()
            raise

    def _start(self) -> None:
        self._execute(_CREATE_COPY)
        self._execute("delete from eoslog_rows")
        self._execute("delete from eoslog_table")
        header = (*self._identity, -1, None, 0, self._owner)
        self._execute(
            "insert into eoslog_table values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *header,
            _crc_of(header),
        )

    def _read_applied(self) -> int:
        """Read the header, and return the owner in it."""
        [header] = self._execute(_HEADER)
        if not _verified(header):
            raise self._spoilt("the header is damaged")
        *_, self.applied, self.last, self.at_ms, owner, _ = header
        return int(owner)

    def _set(self, applied: int, last: bytes | None, at_ms: int, owner: int, expected: int) -> int:
        """Change the header unless it has another owner; count the changes."""
        header = (*self._identity, applied, last, at_ms, owner)
        return self._execute(
            "update eoslog_table set applied = ?, last = ?, at_ms = ?, owner = ?, crc = ? "
            "where owner = ?",
            *header[len(self._identity) :], _crc_of(header), expected,
        ).rowcount  # fmt: skip

    def _owned(self) -> bool:
        return self._execute("select owner from eoslog_table").fetchall() == [(self._owner,)]

    def check_owner(self) -> None:
        """See `Store.check_owner`."""
        try:
            if not self._owned():
                raise self._replaced()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _replaced(self) -> TransactionAbortable:
        return TransactionAbortable(
            f"{self._path}: another worker has taken over the rows; they are read again"
        )

    def start_again(self) -> None:
        """Delete all rows, because they are not those of the topic.

        Raises:
            TransactionAbortable: if another owner has taken over the rows.
            StorageError: if the file cannot be used.
        """
        try:
            with self._transaction():
                if not self._owned():
                    raise self._replaced()
                self._start()
            self._read_applied()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    # Rows.

    def get(self, key: bytes) -> bytes | None:
        """See `Store.get`."""
        try:
            found = self._execute(f"{_ROW} where key = ?", key).fetchone()
            if found is not None:
                return self._verified_row(found)[1]
            for neighbours in _NEIGHBOURS:
                for row in self._execute(neighbours, key):
                    self._verified_row(row)
            self._count(_KEYS_OF, key)
        except sqlite3.Error as error:
            raise self._failed(error) from error
        return None

    def __iter__(self) -> Iterator[bytes]:
        try:
            self._count(_KEYS)
            before = None
            for row in self._execute(f"{_ROW} order by key"):
                key, _ = self._verified_row(row)
                if before is not None and key <= before:
                    raise self._spoilt("the rows are not in the order of their keys")
                yield key
                before = key
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def __len__(self) -> int:
        try:
            return self._count(_KEYS)
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _count(self, sql: str, *values: Any) -> int:
        """Return a number of rows. One statement counts them and their keys in the index."""
        rows, keys = self._execute(sql, *values).fetchone()
        if rows != keys:
            raise self._spoilt(f"it has {rows} rows and {keys} keys")
        return int(rows)

    def apply(self, changes: Changes, applied: int, last: bytes | None) -> bool:
        """See `Store.apply`."""
        deleted = [(key,) for key, value in changes.items() if value is None]
        stored = [
            (key, value, _row_crc(key, value))
            for key, value in changes.items()
            if value is not None
        ]
        mark = None if last is None else mark_of(last, changes[last])
        now_ms = round(time.time() * 1000)
        try:
            with self._transaction():
                moved = self._set(applied, mark, now_ms, self._owner, self._owner)
                if moved:
                    self._connection.executemany(
                        "insert into eoslog_rows values (?, ?, ?) on conflict (key) do update "
                        "set value = excluded.value, crc = excluded.crc",
                        stored,
                    )
                    self._connection.executemany("delete from eoslog_rows where key = ?", deleted)
                files.failpoint("app.sqlite")
            if not moved:
                return False
        except sqlite3.Error as error:
            raise self._failed(error) from error
        self.applied, self.last, self.at_ms = applied, mark, now_ms
        return True

    def settle(self) -> None:
        """See `Store.settle`."""
        with contextlib.suppress(sqlite3.Error):
            self._set(self.applied, self.last, self.at_ms, _SETTLED, self._owner)

    def close(self) -> None:
        """See `Store.close`."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    # SQLite.

    def _execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        return self._connection.execute(sql, values)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._execute("begin immediate")
        try:
            yield
            self._execute("commit")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._execute("rollback")
            raise

    def _remove(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            if files.exists(self._path + suffix):
                files.remove(self._path + suffix)

    def _verified_row(self, row: tuple[Any, Any, Any]) -> tuple[bytes, bytes]:
        key, value, crc = row
        if isinstance(key, bytes) and isinstance(value, bytes) and crc == _row_crc(key, value):
            return key, value
        raise self._spoilt("a row is damaged")

    def _spoilt(self, why: str) -> StorageError:
        """Let the next opening fill the file again, and return an error."""
        with contextlib.suppress(sqlite3.Error):  # no owner can change this header
            self._execute("update eoslog_table set crc = null, owner = 0")
        return StorageError(
            f"{why}; start the application again: it fills the file from its topic", path=self._path
        )

    def _failed(self, error: sqlite3.Error) -> StorageError:
        if _code(error) in _BUSY:
            why = (
                f"another process has locked the file for {_BUSY_S:g} s; continue or end the "
                "process that is stopped"
            )
        else:
            why = f"{error}; end the application, and delete the file: it is filled from its topic"
        return StorageError(why, path=self._path)


def mark_of(key: bytes, value: bytes | None) -> bytes:
    """Return what identifies the last record that was applied."""
    digest = hashlib.blake2b(key, digest_size=16)
    digest.update(b"\0" if value is None else b"\1" + value)
    return digest.digest()


def _crc_of(header: tuple[Any, ...]) -> int:
    return zlib.crc32(repr(header).encode())


def _verified(header: tuple[Any, ...]) -> bool:
    *fields, crc = header
    return bool(crc == _crc_of(tuple(fields)))


def _row_crc(key: bytes, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(key))


def path_in(folder: str, topic: str, partition: int) -> str:
    """Return the path of a partition's file."""
    return os.path.join(folder, f"{topic}-{partition}.sqlite")


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
