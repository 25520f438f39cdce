"""The SQLite files of tables, and files that do not fit."""

from __future__ import annotations

import os
import shutil
import sqlite3
import zlib
from collections import Counter
from contextlib import closing

import pytest

import eoslog
from eoslog.app.tables import restoring
from eoslog.app.tables.sqlite import SQLiteStore
from eoslog.errors import StorageError, TransactionAbortable
from eoslog.storage.fs import files
from tests.app import counting


@pytest.fixture
def log(path):
    """A log whose application has counted 100 words in a table of one partition."""
    with eoslog.open(path, durability="os") as log:
        counting.feed(log, 100, partitions=1)
        counting.run(log, "sqlite", commit_interval=60)  # one transaction
        yield log


def file_of(log):
    return os.path.join(log.path, "eoslog.apps", "counter", "counts-0.sqlite")


def rows_of(path):
    with closing(sqlite3.connect(path)) as base:
        return dict(base.execute("select key, value from eoslog_rows"))


def count_more(log):
    counting.feed(log, 50, partitions=1)
    counting.run(log, "sqlite")
    counting.check(log)
    assert rows_of(file_of(log)) == dict(log.table("counts", "bytes", "bytes"))


def restored(log, caplog):
    return [r.args[2] for r in caplog.records if "restored" in r.getMessage()]


def test_a_file_is_read_from_where_it_was_left(log, caplog):
    caplog.set_level("INFO", "eoslog.app")
    count_more(log)
    assert restored(log, caplog) in ([], [0])


def test_a_file_is_opened_without_waiting_for_more_records(log, monkeypatch):
    """Only the marker of the last transaction follows, which no call returns."""
    monkeypatch.setattr(restoring, "_WAIT_S", 3600)
    count_more(log)


def test_a_process_killed_before_it_applies_leaves_only_its_changes_to_read(log, caplog):
    counting.feed(log, 200, partitions=1)
    before = log.offsets("counts", 0).log_end
    log.close()
    pid = counting.forked(
        lambda: counting.run_to_place(
            log.path, "sqlite", "app.applying", "kill", 1, commit_interval=60
        )
    )
    assert counting.ended(pid) < 0
    caplog.set_level("INFO", "eoslog.app")
    with eoslog.open(log.path) as again:
        assert again.offsets("counts", 0).log_end > before
        count_more(again)
        assert restored(again, caplog) == [len(again.table("counts"))]


@pytest.mark.parametrize("damage", ["other topic", "not a database", "missing", "other record"])
def test_a_file_that_does_not_fit_is_filled_again_from_the_topic(log, caplog, damage):
    path = file_of(log)
    if damage == "other topic":
        with closing(sqlite3.connect(path)) as base, base:
            base.execute("update eoslog_table set topic_id = x'00'")
            base.execute("update eoslog_rows set value = '999'")
    elif damage == "not a database":
        with open(path, "wb") as file:
            file.write(b"x" * 8192)
    elif damage == "missing":
        os.remove(path)
    else:
        with closing(sqlite3.connect(path)) as base, base:
            base.execute("update eoslog_table set last = x'00'")
            base.execute("update eoslog_rows set value = '999'")
    count_more(log)


def test_a_file_that_is_ahead_of_a_restored_log_is_filled_again(log, tmp_path):
    copy = str(tmp_path / "copy")
    log.backup(copy)
    counting.feed(log, 300, partitions=1)
    counting.run(log, "sqlite")
    shutil.copytree(os.path.join(log.path, "eoslog.apps"), os.path.join(copy, "eoslog.apps"))
    with eoslog.open(copy) as restored:
        count_more(restored)


@pytest.mark.parametrize("at_ms", [1000, 1 << 43], ids=["past", "future"])
def test_a_file_of_an_owner_killed_at_another_time_is_filled_again(log, at_ms):
    """The times are long ago, and by a clock that was set back since."""
    with closing(sqlite3.connect(file_of(log))) as base, base:
        base.execute("insert into eoslog_rows values (x'00', x'00', 0)")
        header = (*next(base.execute("select * from eoslog_table"))[:7], at_ms, 0)
        crc = zlib.crc32(repr(header).encode())
        base.execute("update eoslog_table set owner = 0, at_ms = ?, crc = ?", (at_ms, crc))
    count_more(log)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_file_of_an_owner_that_ended_has_no_key_that_others_have_deleted(log, guarantee):
    """Compaction has removed the tombstone, so reading on does not delete the key."""

    def change(value):
        with log.producer() as producer:
            producer.produce("counts", value, "other")

    log.alter_topic("counts", {"delete.retention.ms": 0})
    change("1")
    counting.feed(log, 50, partitions=1)
    counting.run(log, "sqlite", processing_guarantee=guarantee)
    assert b"other" in rows_of(file_of(log))
    change(None)
    while b"other" in {record.key for record in log.read("counts")}:
        log.clean("counts", roll=True)
    count_more(log)


@pytest.mark.parametrize(
    "statement",
    [
        "update eoslog_table set applied = applied + 1",
        "update eoslog_table set owner = 1, at_ms = at_ms + 1",
        "alter table eoslog_rows rename column value to valve",
        "drop table eoslog_table",
    ],
)
def test_a_file_with_a_damaged_header_is_filled_again(log, statement):
    with closing(sqlite3.connect(file_of(log))) as base, base:
        base.execute("update eoslog_rows set value = x'39'")
        base.execute(statement)
    count_more(log)


def test_a_file_without_its_rows_is_filled_again(log):
    with closing(sqlite3.connect(file_of(log))) as base, base:
        base.execute("drop table eoslog_rows")
    count_more(log)


@pytest.mark.parametrize(
    "statement",
    [
        "update eoslog_rows set value = x'39'",
        "update eoslog_rows set value = 9",
        "update eoslog_rows set key = key || x'00'",
        "update eoslog_rows set key = x'00' || key",
    ],
)
def test_a_damaged_row_ends_the_run_and_the_next_run_fills_the_file(log, statement):
    before = list(log.read("counts"))
    with closing(sqlite3.connect(file_of(log))) as base, base:
        base.execute(statement)
    with pytest.raises(eoslog.EoslogError, match="a row is damaged"):
        count_more(log)
    assert list(log.read("counts")) == before
    count_more(log)


def test_a_damaged_row_ends_an_iteration(tmp_path):
    store = SQLiteStore(str(tmp_path / "t-0.sqlite"), "t", b"id", 0)
    assert store.apply({b"a": b"1", b"b": b"2"}, 2, b"b")
    store._execute("update eoslog_rows set key = x'00' where key = x'61'")
    with pytest.raises(StorageError, match="a row is damaged; start the application again"):
        list(store)
    store.close()


def test_field_A_a_flipped_bit_of_a_page_header_never_hides_a_row(tmp_path):
    path, page = tmp_path / "t-0.sqlite", 4096
    changes = {b"key %03d" % number: b"v" * 30 for number in range(300)}

    def opened():
        return SQLiteStore(str(path), "t", b"id", 0)

    with closing(opened()) as store:
        assert store.apply(changes, len(changes), max(changes))
    data = path.read_bytes()
    outcomes = Counter()
    for begin in range(page, len(data), page):
        for bit in range(8 * 3, 8 * 8):  # the number of cells, and where they are
            damaged = bytearray(data)
            damaged[begin + bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            asked = sorted(changes) if bit % 2 else [*changes][::25]
            with closing(opened()) as store:
                try:
                    if store.applied < 0:
                        outcomes["filled again"] += 1
                    elif bit % 3:
                        assert {key: store.get(key) for key in asked} == dict.fromkeys(
                            asked, b"v" * 30
                        ), (begin, bit)
                        outcomes["found"] += 1
                    else:
                        assert list(iter(store)) == sorted(changes), (begin, bit)  # not len()
                        outcomes["listed"] += 1
                except StorageError:
                    outcomes["refused"] += 1
    assert min(outcomes[name] for name in ("found", "listed", "refused")) > 5, outcomes


def test_a_topic_that_was_created_again_has_none_of_the_old_rows(log):
    log.delete_topic("counts")
    log.delete_topic("words")
    log.delete_topic("news")
    counting.feed(log, 30, partitions=1)
    counting.run(log, "sqlite")
    counting.check(log)
    assert rows_of(file_of(log)) == dict(log.table("counts", "bytes", "bytes"))


def test_a_file_has_no_rows_of_deleted_records(log):
    log.alter_topic("counts", {"cleanup.policy": "compact,delete"})
    before = len(rows_of(file_of(log)))
    log.delete_records({eoslog.TopicPartition("counts", 0): 3})
    counting.feed(log, 1, partitions=1)
    counting.run(log, "sqlite")
    rows = rows_of(file_of(log))
    assert 0 < len(rows) < before
    assert rows == dict(log.table("counts", "bytes", "bytes"))


def test_an_owner_that_was_replaced_cannot_apply(tmp_path):
    path, identity = str(tmp_path / "t-0.sqlite"), ("t", b"id", 0)
    old = SQLiteStore(path, *identity)
    assert old.apply({b"a": b"1"}, 5, b"a")
    old.check_owner()
    new = SQLiteStore(path, *identity)
    assert (new.applied, new.get(b"a")) == (5, b"1")
    with pytest.raises(TransactionAbortable, match="another worker"):
        old.check_owner()
    assert not old.apply({b"a": b"0"}, 6, b"a")
    assert new.apply({b"a": b"2", b"b": b"3"}, 9, b"b")
    assert not old.apply({b"a": b"9"}, 7, b"a")
    assert (old.get(b"a"), sorted(old), len(old)) == (b"2", [b"a", b"b"], 2)
    new.check_owner()
    old.close()
    new.close()


def test_an_owner_that_was_replaced_cannot_empty_the_file(tmp_path):
    """It was suspended after it had found the file too old."""
    path, identity = str(tmp_path / "t-0.sqlite"), ("t", b"id", 0)
    with closing(SQLiteStore(path, *identity)) as old:
        with closing(SQLiteStore(path, *identity)) as new:
            assert new.apply({b"a": b"1"}, 5, b"a")
            with pytest.raises(TransactionAbortable, match="another worker"):
                old.start_again()
            assert (new.get(b"a"), len(new)) == (b"1", 1)
            new.check_owner()


def test_an_owner_of_a_deleted_topic_changes_no_file_of_a_new_one(tmp_path):
    """Both have applied nothing yet."""
    path = str(tmp_path / "t-0.sqlite")
    with closing(SQLiteStore(path, "t", b"old", 0)) as old:
        with closing(SQLiteStore(path, "t", b"new", 0)) as new:
            assert not old.apply({b"a": b"0"}, 1, b"a")
            assert new.get(b"a") is None
            assert new.apply({b"b": b"1"}, 1, b"b")


def test_an_owner_that_was_replaced_does_not_settle_the_file(tmp_path):
    """It may lack changes of the new one, if that one is killed."""
    path, identity = str(tmp_path / "t-0.sqlite"), ("t", b"id", 0)
    old = SQLiteStore(path, *identity)
    assert old.apply({b"a": b"1"}, 5, b"a")
    with closing(SQLiteStore(path, *identity)):
        old.settle()
        old.close()
    with closing(SQLiteStore(path, *identity)) as last:
        assert not last.settled
        last.settle()
    with closing(SQLiteStore(path, *identity)) as again:
        assert again.settled


def test_a_file_that_is_emptied_under_a_task_spoils_no_result(log, monkeypatch):
    """An earlier owner empties it during a call of the task."""
    counting.feed(log, 50, partitions=1)
    path, done = file_of(log), []

    def empty():
        if not done:
            done.append(True)
            SQLiteStore(path, "counts", b"of a topic that was deleted", 0).close()

    counting.application(log, "sqlite", empty).run(until="caught_up")
    counting.check(log)


def test_rows_and_their_offset_are_one_transaction(tmp_path, disarmed):
    store = SQLiteStore(str(tmp_path / "t-0.sqlite"), "t", b"id", 0)
    assert store.apply({b"a": b"1"}, 5, b"a")
    files.arm_failpoint("app.sqlite", "interrupt")
    with pytest.raises(KeyboardInterrupt):
        store.apply({b"a": b"2"}, 7, b"a")
    assert (store.applied, store.get(b"a")) == (5, b"1")
    assert store.apply({b"a": None}, 8, b"a")
    assert store.get(b"a") is None
    store.close()
