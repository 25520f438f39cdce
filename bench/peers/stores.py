"""Other stores in a directory: lmdb, sqlite, RocksDB, Arrow IPC and Parquet.

Each stores a record under its offset, with complete key and value. Writers end as durable as
the store can: lmdb syncs at commit, sqlite runs WAL with `synchronous=full`, RocksDB syncs its
log, files get an fsync. Readers return every record's offset, key and value; their files are
warm.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import data
from bench.contest import Contender

_OFFSET = struct.Struct(">q")
KEY = data.KEY_SIZE


def _counted(count: int) -> Any:
    def check(_state: Any, seen: Any) -> None:
        assert seen == count

    return check


# --- lmdb -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _lmdb(place: Path) -> Iterator[Any]:
    import lmdb

    with data.folder(place) as path, lmdb.open(str(path / "lmdb"), map_size=2 << 30) as base:
        yield base


def _lmdb_put(base: Any, count: int, start: int = 0) -> None:
    with base.begin(write=True) as transaction:
        put = transaction.put
        for at, (key, value) in enumerate(
            zip(data.keys(count), data.values(count), strict=True), start
        ):
            put(_OFFSET.pack(at), key + value, append=True)


def lmdb_writer(place: Path, count: int) -> Contender:
    """All records in one durable transaction."""
    import lmdb  # noqa: F401

    def check(base: Any, _result: Any) -> None:
        with base.begin() as transaction:
            found = data.checksum(value[KEY:] for _, value in transaction.cursor())
        assert found == data.expected(count)

    return Contender(
        "lmdb", lambda base: _lmdb_put(base, count), lambda: _lmdb(place), check, count
    )


def lmdb_cursor(place: Path, count: int, stack: contextlib.ExitStack) -> Contender:
    """A cursor over all records, each decoded into offset, key and value.

    The values are kept.
    """
    base = stack.enter_context(_lmdb(place))
    _lmdb_put(base, count)

    def run(_state: Any) -> list[bytes]:
        kept: list[bytes] = []
        unpack = _OFFSET.unpack
        with base.begin() as transaction:
            for packed, record in transaction.cursor():
                unpack(packed)
                record[:KEY]
                kept.append(record[KEY:])
        return kept

    def check(_state: Any, kept: list[bytes]) -> None:
        assert data.checksum(kept) == data.expected(count)

    return Contender("lmdb cursor", run, check=check, units=count)


def lmdb_bare_cursor(place: Path, count: int, stack: contextlib.ExitStack) -> Contender:
    """The cursor alone: nothing is taken apart, nothing kept."""
    base = stack.enter_context(_lmdb(place))
    _lmdb_put(base, count)

    def run(_state: Any) -> int:
        seen = 0
        with base.begin() as transaction:
            for _offset, _record in transaction.cursor():
                seen += 1
        return seen

    def check(_state: Any, seen: int) -> None:
        assert seen == count

    return Contender("lmdb cursor, bare", run, check=check, units=count)


# --- sqlite ---------------------------------------------------------------------------------------


def sqlite_at(path: Path) -> sqlite3.Connection:
    """A table of records in this file, WAL, synchronous=full."""
    base = sqlite3.connect(path, timeout=60, isolation_level=None)
    base.execute("pragma journal_mode=wal")
    base.execute("pragma synchronous=full")
    base.execute("create table if not exists t (offset integer primary key, key blob, value blob)")
    return base


@contextlib.contextmanager
def sqlite(place: Path) -> Iterator[sqlite3.Connection]:
    """A new table of records, removed in the end."""
    with data.folder(place) as path, contextlib.closing(sqlite_at(path / "base.db")) as base:
        yield base


def _sqlite_put(base: sqlite3.Connection, count: int) -> None:
    base.execute("begin")
    base.executemany(
        "insert into t (key, value) values (?, ?)",
        zip(data.keys(count), data.values(count), strict=True),
    )
    base.execute("commit")


def sqlite_writer(place: Path, count: int) -> Contender:
    """All records in one durable transaction."""

    def check(base: sqlite3.Connection, _result: Any) -> None:
        found = data.checksum(value for (value,) in base.execute("select value from t"))
        assert found == data.expected(count)

    return Contender(
        "sqlite", lambda base: _sqlite_put(base, count), lambda: sqlite(place), check, count
    )


def sqlite_reader(place: Path, count: int, stack: contextlib.ExitStack) -> Contender:
    """A select of everything, in order."""
    base = stack.enter_context(sqlite(place))
    _sqlite_put(base, count)

    def run(_state: Any) -> int:
        seen = 0
        for _offset, _key, _value in base.execute("select * from t order by offset"):
            seen += 1
        return seen

    return Contender("sqlite", run, check=_counted(count), units=count)


# --- RocksDB --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _rocksdb(place: Path) -> Iterator[Any]:
    import rocksdict

    with data.folder(place) as path:
        base = rocksdict.Rdict(str(path / "rocks"), rocksdict.Options(raw_mode=True))
        yield base
        base.close()


def _rocksdb_put(base: Any, count: int) -> None:
    import rocksdict

    options = rocksdict.WriteOptions()
    options.sync = True
    step = 10_000
    for at in range(0, count, step):
        some = slice(at, min(count, at + step))
        batch = rocksdict.WriteBatch(raw_mode=True)
        for offset, (key, value) in enumerate(
            zip(data.keys(count)[some], data.values(count)[some], strict=True), at
        ):
            batch.put(_OFFSET.pack(offset), key + value)
        base.write(batch, options)


def rocksdb_writer(place: Path, count: int) -> Contender:
    """Batches of 10,000 with a synced log."""
    import rocksdict  # noqa: F401

    def check(base: Any, _result: Any) -> None:
        assert data.checksum(v[KEY:] for _, v in base.items()) == data.expected(count)

    return Contender(
        "rocksdict", lambda base: _rocksdb_put(base, count), lambda: _rocksdb(place), check, count
    )


def rocksdb_reader(place: Path, count: int, stack: contextlib.ExitStack) -> Contender:
    """An iterator over everything, its blocks cached."""
    base = stack.enter_context(_rocksdb(place))
    _rocksdb_put(base, count)

    def run(_state: Any) -> int:
        seen = 0
        for _offset, _record in base.items():
            seen += 1
        return seen

    return Contender("rocksdict", run, check=_counted(count), units=count)


# --- files of columns -----------------------------------------------------------------------------


def columns(count: int) -> Any:
    """The records as an Arrow table of offset, key and value."""
    import pyarrow as pa

    return pa.table({
        "offset": pa.array(range(count), pa.int64()),
        "key": pa.array(data.keys(count), pa.binary()),
        "value": pa.array(data.values(count), pa.binary()),
    })  # fmt: skip


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _write_ipc(table: Any, path: Path) -> None:
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=65536)


def _write_parquet(table: Any, path: Path) -> None:
    from pyarrow import parquet

    parquet.write_table(table, path, compression="none", use_dictionary=False)


_WRITERS = {"Arrow IPC": _write_ipc, "Parquet": _write_parquet}


def file_writer(kind: str, place: Path, count: int) -> Contender:
    """Lists of bytes to an Arrow table to a file to the disk."""
    import pyarrow  # noqa: F401

    def run(path: Path) -> None:
        _WRITERS[kind](columns(count), path / "file")
        _sync(path / "file")

    def check(path: Path, _result: Any) -> None:
        assert _values_of(kind, path / "file") == data.expected(count)

    return Contender(kind, run, lambda: data.folder(place), check, count)


def _values_of(kind: str, path: Path) -> tuple[int, int]:
    return data.checksum(_read(kind, path).column("value").to_pylist())


def _read(kind: str, path: Path) -> Any:
    if kind == "Parquet":
        from pyarrow import parquet

        return parquet.read_table(path, columns=["offset", "value"], use_threads=False)
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all().select(["offset", "value"])


def file_reader(kind: str, place: Path, count: int, stack: contextlib.ExitStack) -> Contender:
    """Offset and value as Arrow columns.

    Arrow IPC is mapped, so it copies and checks nothing.
    """
    path = stack.enter_context(data.folder(place)) / "file"
    _WRITERS[kind](columns(count), path)

    def check(_state: Any, table: Any) -> None:
        assert table.num_rows == count
        assert _values_of(kind, path) == data.expected(count)

    return Contender(kind, lambda _: _read(kind, path), check=check, units=count)
