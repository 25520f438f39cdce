"""Cleaning, repair and recovery as Kafka sync each of their steps.

As in `test_durable_steps.py`: one sync too few is a promise that a power loss breaks.
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
from eoslog.storage.broker import recovery as kafka_recovery
from eoslog.storage.check import damage, index_rebuild, skipping
from eoslog.storage.check.truncation import keep_offsets, keep_producer_ids
from eoslog.storage.compaction.cleaner import clean_partition
from eoslog.storage.directory.session import CONTROL_FILE, Session
from eoslog.storage.fs import files
from eoslog.storage.segment import kept_copies
from eoslog.storage.segment.replacement import finish_renames
from tests.faults.harness import Child, start
from tests.protocol.test_durable_steps import ROLLING, syncs
from tests.storage.helpers import batch, opened

NOW = 1_700_000_000_000


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    files.disarm_failpoints()


def test_replacing_a_file_by_a_copy_syncs_the_copy_and_its_name(tmp_path: Path) -> None:
    name = str(tmp_path / "file")
    files.write_file(name, b"x" * 100)
    with syncs(0, 2):  # the copy, its new name
        files.replace_by_copy(name, 50)
    assert os.path.getsize(name) == 50


def test_a_parquet_file_is_synced_before_its_name_and_the_name_too(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.produce("t", "1")
        scan = log.scan("t")
        with syncs(0, 2):  # the file, its name
            assert scan.to_parquet(tmp_path / "t.parquet") == 1


def test_cleaning_a_partition_syncs_each_of_its_steps(tmp_path: Path) -> None:
    with opened(str(tmp_path), **ROLLING) as log:
        for _ in range(3):
            log.append(batch(1, size=800, timestamp=NOW))
        log.flush()
        # Two segments, each: its indexes, its bytes; the names of its swap files, that the old ones
        # are gone, and then its own.
        with syncs(4, 10):
            cleaned = clean_partition(log, 0, NOW, force=True)
        assert cleaned is not None


def test_cleaning_flushes_the_log_first_in_an_os_directory_too(tmp_path: Path) -> None:
    """A marker that speaks for records that go must not be lost before they are."""
    with opened(str(tmp_path), strict=False, **ROLLING) as log:
        for _ in range(3):
            log.append(batch(1, size=800, timestamp=NOW))
        clean_partition(log, 0, NOW)
        assert log.durable_end == log.log_end


def test_finishing_a_swap_syncs_the_names(tmp_path: Path) -> None:
    with opened(str(tmp_path), **ROLLING) as log:
        log.append(batch(1, size=800))
    name = str(tmp_path / "t-0" / f"{0:020}.log")
    os.rename(name, name + ".swap")
    with syncs(0, 2):  # that the old ones are gone; the new name
        finish_renames(str(tmp_path / "t-0"))
    with syncs(0, 0):
        finish_renames(str(tmp_path / "t-0"))


def test_segments_sealed_before_a_new_recovery_point_are_synced_with_it(tmp_path: Path) -> None:
    with opened(str(tmp_path), **ROLLING) as log:
        data = batch(1, producer_id=1, sequence=0, transactional=True, size=800)
        log.append(data, expect=[(log, log.log_end)])
        log.append(build_marker(1, 1, False, timestamp=1), origin=AppendOrigin.COORDINATOR)
        log.append(batch(1, size=800))
        log.flush()
        with syncs(4, 1):  # log, offset, time and abort index of the sealed segment; their names
            log.flusher.sync_sealed(0, log.log_end)
        with syncs(0, 0):
            log.flusher.sync_sealed(log.log_end, log.log_end)


def test_recreating_the_segment_of_an_empty_directory_syncs_its_files(tmp_path: Path) -> None:
    with opened(str(tmp_path)):
        pass
    shutil.rmtree(tmp_path / "t-0")
    (tmp_path / "t-0").mkdir()
    # The session, the segment; the names of its files when they are made, and at the end.
    with syncs(3, 2), opened(str(tmp_path)):
        pass


def end_damaged(place: Path) -> None:
    """A closed directory whose partition t-0 ends with bytes that are not a batch."""
    with eoslog.open(place) as log:
        log.create_topic("t")
        log._engine.partition("t", 0).append(batch(1))
    with open(place / "t-0" / f"{0:020}.log", "ab") as file:
        file.write(batch(1)[:-1] + b"?")


def test_a_repair_that_cuts_syncs_the_cut_its_copy_and_the_checkpoints(tmp_path: Path) -> None:
    end_damaged(tmp_path)
    # The log and its two indexes; the copy and its name, the partition's names before the cut and
    # after it, two copies of the recovery points, each with its name.
    with syncs(3, 8):
        assert eoslog.repair(tmp_path, "cut").bytes_cut > 0


def test_keeping_a_copy_for_a_repair_syncs_the_copy_once(tmp_path: Path) -> None:
    end_damaged(tmp_path)
    with syncs(0, 2):  # the copy, its name
        assert kept_copies.keep(str(tmp_path / "t-0"), 0, 5, None, 1) is not None
    with syncs(0, 0):
        assert kept_copies.keep(str(tmp_path / "t-0"), 0, 5, None, 1) is not None


def test_a_skip_syncs_each_of_its_steps(tmp_path: Path) -> None:
    end_damaged(tmp_path)
    place = str(tmp_path / "t-0")
    # The copy, its name; that the derived files are gone; the segment and its name; two indexes,
    # each with its name.
    with syncs(0, 9):
        skipping.skip(place, damage.find(place, 0), 4096, 1)


def test_filling_a_missing_segment_syncs_each_of_its_steps(tmp_path: Path) -> None:
    with eoslog.open(tmp_path) as log:
        log.create_topic("t")
        for value in (b"1", b"2", b"3"):
            with log.producer() as producer:
                producer.send("t", value).result(60)
            log._engine.partition("t", 0).roll()
    place = str(tmp_path / "t-0")
    files.remove(f"{place}/{1:020}.log")
    gaps = damage.find(place, 0, None, 0)
    assert [(gap.first, gap.last) for gap in gaps] == [(1, 1)]
    with syncs(2, 4):  # the segment, its name; two indexes, each with its name
        skipping.fill(place, gaps, 4096)


def test_a_rebuild_syncs_the_removal_of_a_damaged_snapshot(tmp_path: Path) -> None:
    end_damaged(tmp_path)
    eoslog.repair(tmp_path, "skip")
    (tmp_path / "t-0" / f"{1:020}.snapshot").write_bytes(b"?")
    with syncs(0, 1):
        assert index_rebuild.rebuild(str(tmp_path / "t-0"), 4096)[0]


def test_keeping_producer_ids_in_a_repair_syncs_the_metadata_log(tmp_path: Path) -> None:
    with eoslog.open(tmp_path) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.send("t", b"x").result(60)
    files.remove(str(tmp_path / "__cluster_metadata-0" / "00000000000000000000.log"))
    with syncs(1, 1):  # the log, and its name: it is new
        keep_producer_ids(str(tmp_path))
    with syncs(0, 0):
        assert keep_producer_ids(str(tmp_path))[1] == []


def test_keeping_offsets_in_a_repair_syncs_the_log(tmp_path: Path) -> None:
    end_damaged(tmp_path)
    with syncs(1, 1):  # the log, and its name: it may be new
        (base, _, end), _ = keep_offsets(str(tmp_path / "t-0"), (0, 0, 0), 9)
    assert (base, end) == (0, 9)


def test_a_repair_of_an_open_directory_is_rejected(tmp_path: Path) -> None:
    end_damaged(tmp_path)
    with eoslog.open(tmp_path), pytest.raises(LockTimeout, match="open"):
        eoslog.repair(tmp_path, "cut")


def test_recovery_as_kafka_syncs_the_cut_and_both_indexes(tmp_path: Path) -> None:
    end_damaged(tmp_path)
    with syncs(2, 2):  # both indexes; the log that was cut, the names
        assert kafka_recovery.recover(str(tmp_path / "t-0")).bytes_cut > 0


def holds(child: Child, path: Path) -> None:
    """Have the directory open and do nothing."""
    session = Session(str(path))
    child.tell("open", session.process_number)
    signal.pause()


def test_a_control_file_in_use_by_another_process_is_not_recreated(tmp_path: Path) -> None:
    holder = start(holds, tmp_path)
    try:
        holder.heard("open")
        os.truncate(tmp_path / CONTROL_FILE, 100)
        with pytest.raises(StorageError, match="while other processes have the log open"):
            Session(str(tmp_path))
    finally:
        holder.kill()
    Session(str(tmp_path)).close()
