"""A store in an SQLite file, in the folder of the application.

The file never has changes that the log does not have: they are written after the transaction has
committed, together with `applied`, the offset after them in the table's topic. A crash leaves a
file without the last changes, and the next owner reads the topic from `applied`.

`applied` changes by compare-and-set. So an owner that was stopped, and was replaced, sets nothing
back when it continues. Commits need no sync: SQLite in WAL mode loses the last ones at a power
loss, and their `applied` with them.

A file is filled again from the beginning of the topic if it is of another topic, or ahead of it (a
restored backup), or if its last changes are so old that compaction may have removed tombstones.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

from eoslog.app.tables.partition import Changes
from eoslog.errors import StorageError
from eoslog.shown_paths import get_logger
from eoslog.storage.fs import files

__all__ = ["SQLiteStore"]

logger = get_logger("eoslog.app")

_VERSION = 1
_BUSY_S = 10.0
_SCHEMA = (
    "create table if not exists eoslog_table (version integer, topic text, topic_id blob, "
    "partition integer, applied integer, last blob, at_ms integer, settled integer)",
    "create table if not exists eoslog_rows (key blob primary key, value blob not null) "
    "without rowid",
)  # fmt: skip
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class SQLiteStore:
    """The committed rows of one partition, in an SQLite file.

    Attributes:
        applied: the offset in the table's topic up to which the rows contain the changes.
        last: the mark of the record before that offset.
        at_ms: when the rows were changed last, in ms since the epoch.
        settled: whether the file was closed after all changes were applied.
    """

    def __init__(self, path: str, topic: str, topic_id: bytes, partition: int) -> None:
        """Open the file, and create or fill it again if it is not of this partition.

        Raises:
            StorageError: if the file cannot be used.
        """
        self._path = path
        self._identity = (_VERSION, topic, topic_id, partition)
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            if _code(error) not in _DAMAGED:
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
            self._execute("pragma journal_mode=wal")
            self._execute("pragma synchronous=normal")
            with self._transaction():
                for statement in _SCHEMA:
                    self._execute(statement)
                found = self._execute("select * from eoslog_table").fetchall()
                if [row[:4] for row in found] != [self._identity]:
                    if found:
                        logger.warning(
                            "%s: has another table or topic, reading the table from its topic",
                            self._path,
                        )
                    self._start()
            self._read_applied()
            self._execute("update eoslog_table set settled = 0")
        except BaseException:
            connection.close()
            raise

    def _start(self) -> None:
        self._execute("delete from eoslog_rows")
        self._execute("delete from eoslog_table")
        self._execute(
            "insert into eoslog_table values (?, ?, ?, ?, -1, null, 0, 0)", *self._identity
        )

    def _read_applied(self) -> None:
        [(self.applied, self.last, self.at_ms, settled)] = self._execute(
            "select applied, last, at_ms, settled from eoslog_table"
        )
        self.settled = bool(settled)

    def start_again(self) -> None:
        """Delete all rows, because they are not those of the topic."""
        try:
            with self._transaction():
                self._start()
            self._read_applied()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    # Rows.

    def get(self, key: bytes) -> bytes | None:
        """See `Store.get`."""
        try:
            found = self._execute("select value from eoslog_rows where key = ?", key).fetchone()
        except sqlite3.Error as error:
            raise self._failed(error) from error
        return None if found is None else found[0]

    def __iter__(self) -> Iterator[bytes]:
        try:
            for (key,) in self._execute("select key from eoslog_rows"):
                yield key
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def __len__(self) -> int:
        try:
            return int(self._execute("select count(*) from eoslog_rows").fetchone()[0])
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def apply(self, changes: Changes, applied: int, last: bytes | None) -> bool:
        """See `Store.apply`."""
        deleted = [(key,) for key, value in changes.items() if value is None]
        stored = [(key, value) for key, value in changes.items() if value is not None]
        mark = None if last is None else mark_of(last, changes[last])
        try:
            with self._transaction():
                moved = self._execute(
                    "update eoslog_table set applied = ?, last = ?, at_ms = ? where applied = ?",
                    applied, mark, round(time.time() * 1000), self.applied,
                )  # fmt: skip
                if moved.rowcount:
                    self._connection.executemany(
                        "insert or replace into eoslog_rows values (?, ?)", stored
                    )
                    self._connection.executemany("delete from eoslog_rows where key = ?", deleted)
                files.failpoint("app.sqlite")
        except sqlite3.Error as error:
            raise self._failed(error) from error
        if not moved.rowcount:
            self._read_applied()
            return False
        self.applied, self.last = applied, mark
        return True

    def settle(self) -> None:
        """See `Store.settle`."""
        with contextlib.suppress(sqlite3.Error):
            self._execute("update eoslog_table set settled = 1 where applied = ?", self.applied)

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


def path_in(folder: str, topic: str, partition: int) -> str:
    """Return the path of a partition's file."""
    return os.path.join(folder, f"{topic}-{partition}.sqlite")


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
