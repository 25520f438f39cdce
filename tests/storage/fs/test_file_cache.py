"""A process keeps a bounded number of files open and reopens closed ones."""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from eoslog.storage.fs import file_cache as read_files
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.log.retention import delete_records
from eoslog.storage.segment import segment as segments
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
        count += name.startswith(os.path.realpath(log.path) + "/") and not int(flags, 8) & os.O_RDWR
    return count


def test_a_reader_of_many_segments_keeps_a_bounded_number_of_files_open(
    log: PartitionLog, few_descriptors: int
) -> None:
    assert few_descriptors == 32 < SEGMENTS
    for _ in range(2):
        assert [offset for offset, _ in payloads(log)] == list(range(SEGMENTS))
        assert 16 < read_descriptors(log) <= few_descriptors


def test_a_file_that_is_read_repeatedly_stays_open(log: PartitionLog, few_descriptors: int) -> None:
    often = log.segment(0)
    look(often)
    file = often.file
    for base in range(1, SEGMENTS):
        look(log.segment(base))
        look(often)
    assert often.file is file is not None
    assert log.segment(1).file is None


def test_a_file_evicted_during_a_read_closes_after_the_read(
    log: PartitionLog, few_descriptors: int
) -> None:
    first = log.segment(0)
    held = first.opened()
    for base in range(1, SEGMENTS):
        look(log.segment(base))
    assert first.file is None
    name = os.readlink(f"/proc/self/fd/{held.fd}")
    assert name == os.path.realpath(first.path())
    fd = held.fd
    del held
    assert not os.path.exists(f"/proc/self/fd/{fd}") or os.readlink(f"/proc/self/fd/{fd}") != name


def test_a_removed_segment_closes_its_file(log: PartitionLog) -> None:
    payloads(log)
    before = read_descriptors(log)
    assert before == SEGMENTS
    delete_records(log, 100)
    assert read_descriptors(log) == before - 100


def test_files_that_are_all_read_repeatedly_make_room_for_a_new_one(
    log: PartitionLog, few_descriptors: int
) -> None:
    for base in range(few_descriptors):
        look(log.segment(base))
        look(log.segment(base))
    newest = log.segment(few_descriptors)
    look(newest)
    assert newest.file is not None
    assert read_descriptors(log) == few_descriptors


def count_mapped_files(path: str) -> None:
    """Read many segments through mappings, in a process that has no other files open."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    segments.REMAP_SIZE = 1
    with opened(path, segment_bytes=200) as log:
        for number in range(SEGMENTS):
            log.append(batch(1, size=90, timestamp=number))
        log.flush()
        assert len(payloads(log)) == SEGMENTS
        assert read_files.most_open() < read_descriptors(log) <= 256 // 4


def test_mapped_files_take_a_quarter_of_the_descriptors(tmp_path: Path) -> None:
    """A mapping has a descriptor of its own."""
    child = multiprocessing.get_context("spawn").Process(
        target=count_mapped_files, args=(str(tmp_path),)
    )
    child.start()
    child.join()
    assert child.exitcode == 0
