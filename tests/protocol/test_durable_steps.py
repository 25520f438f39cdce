"""Each step that must be durable makes the expected number of syncs.

One sync too few is a promise that a power loss breaks. Each test names the syncs in a comment, files by
fdatasync or fsync, directories by fsync.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import eoslog
from eoslog import _core
from eoslog._core import build_marker
from eoslog.errors import LogPoisoned
from eoslog.model import AppendOrigin
from eoslog.storage.directory.directory import built_aside
from eoslog.storage.directory.session import POISON_FILE, Session
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from eoslog.storage.log.loader import make_directory
from eoslog.storage.log.retention import delete_records
from eoslog.storage.segment import seals
from eoslog.storage.segment.carried_batches import write_missing
from eoslog.storage.segment.producer_snapshots import write_snapshot
from eoslog.storage.segment.segment import SNAPSHOT, file_name, file_path
from tests.storage.helpers import batch, opened

ROLLING = {"segment_bytes": 1000, "index_interval_bytes": 200}


@contextmanager
def syncs(fdatasync: int, fsync: int) -> Iterator[None]:
    """The block asks the disk exactly so often."""
    for call in ("fdatasync", "fsync"):
        _core.fault_count(call, reset=True)
    yield
    assert (_core.fault_count("fdatasync"), _core.fault_count("fsync")) == (fdatasync, fsync)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    files.disarm_failpoints()


def test_a_new_session_syncs_the_control_file(tmp_path: Path) -> None:
    with syncs(1, 2):  # the control file, its name, the new session number
        session = Session(str(tmp_path))
    session.close()
    with syncs(1, 0):  # the session number
        session = Session(str(tmp_path))
    session.close()


def test_a_snapshot_that_contradicts_a_seal_syncs_the_changed_seal_first(tmp_path: Path) -> None:
    with opened(str(tmp_path), **ROLLING) as log:
        log.append(batch(1))
        log.roll()
        path, end = str(tmp_path / log.name), log.log_end
    with syncs(1, 1):  # that the seal says nothing of it any more; the snapshot's content
        write_snapshot(path, end, bytes(46))
    with syncs(0, 0):  # it is there already
        write_snapshot(path, end, bytes(46))
    seal = seals.read(path, end)
    assert seal is not None
    assert not seals.refutes_snapshot(seal, (Path(path) / file_name(end, SNAPSHOT)).read_bytes())


def test_a_session_after_a_clean_one_syncs_the_removal_of_the_mark(tmp_path: Path) -> None:
    Session(str(tmp_path)).close()
    checkpoints.write_clean_shutdown(str(tmp_path))
    with syncs(1, 1):  # that the mark is gone, the session number
        session = Session(str(tmp_path))
    session.close()


def test_more_slots_sync_the_longer_control_file(tmp_path: Path) -> None:
    session = Session(str(tmp_path))
    with syncs(0, 1):  # the control file, longer
        session.ensure_slot(6000)
    with syncs(0, 0):
        session.ensure_slot(6000)
    session.close()


def test_small_files_are_synced_with_their_names_if_durable(tmp_path: Path) -> None:
    name = str(tmp_path / "file")
    with syncs(0, 2):  # the new file, its name
        files.write_atomically(name, b"x")
    with syncs(0, 0):
        files.write_file(name, b"y")
    with syncs(1, 0):
        files.write_file(name, b"y", durable=True)
    with syncs(0, 1):
        files.make_dir(str(tmp_path / "folder"))
    with syncs(0, 1):  # whoever made it may have died before it was durable
        files.make_dir(str(tmp_path / "folder"))
    with syncs(0, 1):
        files.fsync_dir(str(tmp_path))


def test_a_directory_built_aside_is_synced_before_its_rename(tmp_path: Path) -> None:
    with syncs(1, 3), built_aside(str(tmp_path / "new"), ".aside"):
        pass  # the folder in its parent, its mark, what is in it, its name


def test_a_new_partition_syncs_its_directory_and_files(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.path = str(tmp_path / "u-0")
        with syncs(0, 2):  # the folder in its parent, the files in the folder
            make_directory(log)


def test_appending_syncs_nothing_and_flushing_syncs_the_segment(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        with syncs(0, 0):
            log.append(batch(1))
        with syncs(1, 1):  # the segment, and its name: it is new
            log.flush()
        log.append(batch(1))
        with syncs(1, 0):
            log.flush()
        with syncs(0, 0):
            log.flush()


def test_carried_batches_are_synced_where_recovery_writes_them(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(1))
        path, size = str(tmp_path / log.name), log.core.end_position
    with syncs(1, 1):  # the segment, the names that remain
        write_missing(path, 0, size, batch(1))


def test_a_roll_syncs_the_files_of_the_next_segment(tmp_path: Path) -> None:
    with opened(str(tmp_path), **ROLLING) as log:
        log.append(batch(1, size=800))
        with syncs(1, 1):  # the next segment's files, before they get their names; its snapshot
            log.append(batch(1, size=800))


def test_retention_syncs_a_snapshot_before_it_deletes(tmp_path: Path) -> None:
    with opened(str(tmp_path), **ROLLING) as log:
        while len(log.segments.bases()) < 3:
            log.append(batch(1, size=300))
            log.flush()
        files.remove(file_path(log.path, log.segments.bases()[1], SNAPSHOT))
        with syncs(1, 1):  # the snapshot at the new start, its name before the deletion
            delete_records(log, log.segments.bases()[1])


def test_a_block_of_producer_ids_is_synced_in_an_os_directory(tmp_path: Path) -> None:
    with eoslog.open(tmp_path, durability="os") as log:
        log.create_topic("t")
        with syncs(1, 1), log.producer() as producer:  # the metadata log, its name: it is new
            producer.send("t", b"x").result(60)
        with syncs(1, 0):
            log._engine.metadata.reserve_producer_ids(5000)


def test_a_new_abort_index_syncs_its_name(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.append(
            batch(1, producer_id=1, sequence=0, transactional=True), expect=[(log, log.log_end)]
        )
        with syncs(0, 1):  # the name of the new file
            log.append(build_marker(1, 1, False, timestamp=1), origin=AppendOrigin.COORDINATOR)


def test_a_failed_flush_syncs_its_poison_mark(tmp_path: Path) -> None:
    with opened(str(tmp_path)) as log:
        log.append(batch(1))
        files.arm_failpoint("fdatasync", "EIO")
        with syncs(1, 1), pytest.raises(LogPoisoned):  # the one that fails, the mark of it
            log.flush()
        assert (tmp_path / POISON_FILE).read_bytes() == b"\nt 0\n"


def test_recovery_of_an_unclean_partition_syncs_segments_and_indexes(tmp_path: Path) -> None:
    with opened(str(tmp_path), **ROLLING) as log:
        for _ in range(3):
            log.append(batch(1, size=800))
        last = log.segments.bases()[-1]
    session = Session(str(tmp_path))
    session.close()
    assert last == 2
    # The session, three segments, the index files that recovery made longer; the folder.
    with syncs(7, 1), opened(str(tmp_path), **ROLLING):
        pass


def test_recovery_that_finishes_a_swap_syncs_the_names(tmp_path: Path) -> None:
    with opened(str(tmp_path), **ROLLING) as log:
        log.append(batch(1, size=800))
    name = tmp_path / "t-0" / "00000000000000000000.log"
    os.rename(name, str(name) + ".swap")
    # And that the old ones are gone, and the new name.
    with syncs(3, 3), opened(str(tmp_path), **ROLLING) as log:
        assert log.log_end == 1
