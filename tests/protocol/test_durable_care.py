"""What cleaning, repair and recovery in Kafka's way ask of the disk, and who may do it at a time.

As in `test_durable_steps.py`: one sync too few is a promise that a power cut breaks.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog._core import build_marker
from eoslog.errors import LockTimeout, StorageError
from eoslog.model import AppendOrigin
from eoslog.storage import files, kafka_recovery
from eoslog.storage.cleaner import clean_partition
from eoslog.storage.log_checker import repair
from eoslog.storage.log_cut import keep_offsets, keep_producer_ids
from eoslog.storage.segment_swap import finish_renames
from eoslog.storage.session import CONTROL_FILE, Session
from tests.faults.harness import Child, start
from tests.protocol.test_durable_steps import ROLLING, syncs
from tests.storage.helpers import batch, opened

NOW = 1_700_000_000_000


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    files.disarm_failpoints()


def test_a_copy_in_place(tmp_path: Path) -> None:
    name = str(tmp_path / "file")
    files.write_file(name, b"x" * 100)
    with syncs(0, 2):  # the copy, its new name
        files.replace_by_copy(name, 50)
    assert os.path.getsize(name) == 50


def test_cleaning_a_partition(tmp_path: Path) -> None:
    with opened(str(tmp_path), **ROLLING) as log:
        for _ in range(3):
            log.append(batch(1, size=800, timestamp=NOW))
        log.flush()
        # Two segments, each: its indexes, its bytes; the names of its swap files, that the old ones
        # are gone, and then its own.
        with syncs(4, 8):
            cleaned = clean_partition(log, 0, NOW, force=True)
        assert cleaned is not None


def test_cleaning_flushes_what_it_looks_at_in_an_os_directory_too(tmp_path: Path) -> None:
    """A marker that speaks for records that go must not be lost before they are."""
    with opened(str(tmp_path), strict=False, **ROLLING) as log:
        for _ in range(3):
            log.append(batch(1, size=800, timestamp=NOW))
        clean_partition(log, 0, NOW)
        assert log.durable_end == log.log_end


def test_finishing_a_swap(tmp_path: Path) -> None:
    with opened(str(tmp_path), **ROLLING) as log:
        log.append(batch(1, size=800))
    name = str(tmp_path / "t-0" / f"{0:020}.log")
    os.rename(name, name + ".swap")
    with syncs(0, 2):  # that the old ones are gone; the new name
        finish_renames(str(tmp_path / "t-0"))
    with syncs(0, 0):
        finish_renames(str(tmp_path / "t-0"))


def test_the_indexes_that_a_recovery_point_leaves_behind(tmp_path: Path) -> None:
    with opened(str(tmp_path), **ROLLING) as log:
        data = batch(1, producer_id=1, sequence=0, transactional=True, size=800)
        log.append(data, expect=[(log, log.log_end)])
        log.append(build_marker(1, 1, False, timestamp=1), origin=AppendOrigin.COORDINATOR)
        log.append(batch(1, size=800))
        log.flush()
        with syncs(3, 1):  # offset, time and abort index of the sealed segment; their names
            log.flusher.sync_indexes(0, log.log_end)
        with syncs(0, 0):
            log.flusher.sync_indexes(log.log_end, log.log_end)


def test_a_partition_whose_segments_are_gone_gets_a_new_one(tmp_path: Path) -> None:
    with opened(str(tmp_path)):
        pass
    shutil.rmtree(tmp_path / "t-0")
    (tmp_path / "t-0").mkdir()
    # The session, the segment; the names of its files when they are made, and at the end.
    with syncs(3, 2), opened(str(tmp_path)):
        pass


def damaged(place: Path) -> None:
    """A closed directory whose partition t-0 ends with bytes that are no batch."""
    with eoslog.open(place) as log:
        log.create_topic("t")
        log.engine.partition("t", 0).append(batch(1))
    with open(place / "t-0" / f"{0:020}.log", "ab") as file:
        file.write(batch(1)[:-1] + b"?")


def test_a_repair_that_cuts(tmp_path: Path) -> None:
    damaged(tmp_path)
    # The log and its two indexes; the partition's names, the recovery points, the directory's names.
    with syncs(3, 3):
        assert repair(str(tmp_path), "cut").bytes_cut > 0


def test_a_repair_that_keeps_producer_ids(tmp_path: Path) -> None:
    with eoslog.open(tmp_path) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.send("t", b"x").result(10)
    files.remove(str(tmp_path / "__cluster_metadata-0" / "00000000000000000000.log"))
    with syncs(1, 1):  # the log, and its name: it is new
        keep_producer_ids(str(tmp_path))
    with syncs(0, 0):
        assert keep_producer_ids(str(tmp_path))[1] == []


def test_a_repair_that_keeps_offsets(tmp_path: Path) -> None:
    damaged(tmp_path)
    with syncs(1, 1):  # the log, and its name: it may be new
        (base, _, end), _ = keep_offsets(str(tmp_path / "t-0"), (0, 0, 0), 9)
    assert (base, end) == (0, 9)


def test_nobody_repairs_a_directory_that_is_open(tmp_path: Path) -> None:
    damaged(tmp_path)
    with eoslog.open(tmp_path), pytest.raises(LockTimeout, match="open"):
        repair(str(tmp_path), "cut")


def test_recovery_in_kafkas_way(tmp_path: Path) -> None:
    damaged(tmp_path)
    with syncs(2, 2):  # both indexes; the log that was cut, the names
        assert kafka_recovery.recover(str(tmp_path / "t-0")).bytes_cut > 0


def holds(child: Child, path: Path) -> None:
    """Have the directory open and do nothing."""
    session = Session(str(path))
    child.tell("open", session.process_number)
    signal.pause()


def test_a_control_file_is_not_made_anew_under_somebody_who_has_it_open(tmp_path: Path) -> None:
    holder = start(holds, tmp_path)
    try:
        holder.heard("open")
        os.truncate(tmp_path / CONTROL_FILE, 100)
        with pytest.raises(StorageError, match="while others have it open"):
            Session(str(tmp_path))
    finally:
        holder.kill()
    Session(str(tmp_path)).close()
