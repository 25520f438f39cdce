"""Notes of running records, which the next owner of a partition reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import eoslog
from eoslog.app.running_notes import RunningNotes, task_number
from eoslog.errors import StorageError

WORK = task_number("work")


def test_a_note_outlives_its_owner(tmp_path: Path):
    notes = RunningNotes(str(tmp_path))
    assert notes.claim("orders", 3) is None
    notes.clear("orders", 3)
    notes.begin("orders", 3, WORK, 7, 9)
    assert notes.running() == [("orders", 3, WORK, 7)]
    note = RunningNotes(str(tmp_path)).claim("orders", 3)
    assert note is not None
    assert (note.first, note.last, note.task) == (7, 9, WORK)
    assert RunningNotes(str(tmp_path)).claim("orders", 2) is None


def test_a_note_of_offset_0_is_a_note(tmp_path: Path):
    notes = RunningNotes(str(tmp_path))
    notes.claim("orders", 0)
    notes.clear("orders", 0)
    notes.begin("orders", 0, WORK, 0, 0)
    assert RunningNotes(str(tmp_path)).claim("orders", 0) is not None


def test_a_record_that_is_done_leaves_no_note(tmp_path: Path):
    notes = RunningNotes(str(tmp_path))
    notes.claim("orders", 0)
    notes.clear("orders", 0)
    notes.end(notes.begin("orders", 0, WORK, 7, 7))
    assert notes.running() == []
    assert RunningNotes(str(tmp_path)).claim("orders", 0) is None


def test_an_earlier_owner_does_not_end_the_note_of_the_next(tmp_path: Path):
    earlier, later = RunningNotes(str(tmp_path)), RunningNotes(str(tmp_path))
    begun = []
    for notes in (earlier, later):
        notes.claim("orders", 0)
        notes.clear("orders", 0)
        begun.append(notes.begin("orders", 0, WORK, 7, 7))
    earlier.end(begun[0])
    assert RunningNotes(str(tmp_path)).claim("orders", 0) is not None


def test_an_earlier_owner_does_not_change_the_note_of_the_next(tmp_path: Path):
    """The next one would count an exit in a record that it did not run."""
    earlier, later = RunningNotes(str(tmp_path)), RunningNotes(str(tmp_path))
    for notes in (earlier, later):
        notes.claim("orders", 0)
        notes.clear("orders", 0)
    earlier.begin("orders", 0, WORK, 3, 3)
    assert RunningNotes(str(tmp_path)).claim("orders", 0) is None
    later.begin("orders", 0, WORK, 7, 7)
    earlier.begin("orders", 0, WORK, 3, 3)
    note = RunningNotes(str(tmp_path)).claim("orders", 0)
    assert note is not None
    assert note.first == 7


def test_a_note_of_an_earlier_boot_does_not_count(tmp_path: Path):
    notes = RunningNotes(str(tmp_path))
    notes.claim("orders", 0)
    notes.clear("orders", 0)
    notes.begin("orders", 0, WORK, 7, 7)
    path = tmp_path / "orders.running"
    stored = bytearray(path.read_bytes())
    stored[32] ^= 1  # the number of the boot
    path.write_bytes(stored)
    assert RunningNotes(str(tmp_path)).claim("orders", 0) is None


def test_more_partitions_extend_the_file_under_its_readers(tmp_path: Path):
    notes, other = RunningNotes(str(tmp_path)), RunningNotes(str(tmp_path))
    begun = {}
    for partition in (0, 100):
        notes.claim("orders", partition)
        notes.clear("orders", partition)
        begun[partition] = notes.begin("orders", partition, WORK, partition, partition)
    assert [other.claim("orders", n) is None for n in (0, 1, 100)] == [False, True, False]
    notes.end(begun[0])
    assert RunningNotes(str(tmp_path)).claim("orders", 0) is None


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    with pytest.raises(StorageError, match=r"orders\.running"):
        RunningNotes(str(tmp_path / "missing")).claim("orders", 0)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path):
    (tmp_path / "orders.running").mkdir()
    with pytest.raises(StorageError, match=r"^\[21\] Is a directory \(.*orders.running\)$"):
        RunningNotes(str(tmp_path)).claim("orders", 0)


@pytest.mark.parametrize(("mode", "files"), [(0o700, 0o600), (0o770, 0o660)])
def test_all_files_of_an_application_have_the_permissions_of_the_log(
    tmp_path: Path, mode: int, files: int
):
    umask = os.umask(0o022)
    try:
        with eoslog.open(tmp_path / "log", mode=mode, durability="os") as log:
            app = eoslog.App(log, "shop")
            rows = app.table("rows", store="sqlite")
            app.task("in", tables=[rows])(lambda record, ctx: rows.update({"a": 1}))
            app.create_topics()
            with log.producer() as producer:
                producer.produce("in", b"1")
            app.step()
            found = {path: path.stat().st_mode & 0o777 for path in tmp_path.rglob("shop/*")}
            assert len(found) >= 3
            assert set(found.values()) == {files}, found
            app.close()
    finally:
        os.umask(umask)
