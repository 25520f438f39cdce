"""Readers have so many files open in a process; what is let go is opened again, and nobody notices."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from eoslog.storage import read_files, segments
from eoslog.storage.partition_log import PartitionLog
from tests.storage.helpers import batch, opened, payloads

SEGMENTS = 150


def look(segment: segments.Segment) -> object:
    """Read its first bytes."""
    return segment.view(0, 1, 1 << 16, lambda: None)


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """As many as a process has whose `ulimit -n` is 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    read_files._owners.clear()  # those of other tests
    gc.collect()
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield read_files.most_open()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    """One batch of one record a segment."""
    with opened(str(tmp_path), segment_bytes=200) as log:
        for number in range(SEGMENTS):
            log.append(batch(1, size=90, timestamp=number))
            log.flush()
        yield log


def read_descriptors(log: PartitionLog) -> int:
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{fd}")
            flags = Path(f"/proc/self/fdinfo/{fd}").read_text().split("flags:")[1].split()[0]
        except FileNotFoundError:
            continue  # what listed them
        count += name.startswith(log.path + "/") and not int(flags, 8) & os.O_RDWR
    return count


def test_a_reader_of_many_segments_has_some_of_them_open(
    log: PartitionLog, few_descriptors: int
) -> None:
    assert few_descriptors == 32 < SEGMENTS
    for _ in range(2):
        assert [offset for offset, _ in payloads(log)] == list(range(SEGMENTS))
        assert 16 < read_descriptors(log) <= few_descriptors


def test_what_is_read_again_and_again_stays_open(log: PartitionLog, few_descriptors: int) -> None:
    often = log.segment(0)
    look(often)
    file = often.file
    for base in range(1, SEGMENTS):
        look(log.segment(base))
        look(often)
    assert often.file is file is not None
    assert log.segment(1).file is None


def test_a_file_that_is_let_go_while_somebody_reads_it_closes_behind_him(
    log: PartitionLog, few_descriptors: int
) -> None:
    first = log.segment(0)
    held = first._open()
    for base in range(1, SEGMENTS):
        look(log.segment(base))
    assert first.file is None
    name = os.readlink(f"/proc/self/fd/{held.fd}")
    assert name == first.path()
    fd = held.fd
    del held
    assert not os.path.exists(f"/proc/self/fd/{fd}") or os.readlink(f"/proc/self/fd/{fd}") != name


def test_a_segment_that_is_forgotten_is_open_no_longer(log: PartitionLog) -> None:
    payloads(log)
    before = read_descriptors(log)
    assert before == SEGMENTS
    log.delete_records(100)
    assert read_descriptors(log) == before - 100


def test_files_of_which_each_is_read_again_make_room_for_a_new_one(
    log: PartitionLog, few_descriptors: int
) -> None:
    for base in range(few_descriptors):
        look(log.segment(base))
        look(log.segment(base))
    newest = log.segment(few_descriptors)
    look(newest)
    assert newest.file is not None
    assert read_descriptors(log) == few_descriptors


def test_mapped_files_take_a_quarter_of_the_descriptors(
    tmp_path: Path, few_descriptors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapping has a descriptor of its own."""
    monkeypatch.setattr(segments, "REMAP_SIZE", 1)
    with opened(str(tmp_path), segment_bytes=200) as log:
        for number in range(SEGMENTS):
            log.append(batch(1, size=90, timestamp=number))
        log.flush()
        assert len(payloads(log)) == SEGMENTS
        assert few_descriptors < read_descriptors(log) <= 256 // 4
