"""A process keeps a bounded number of files open and reopens closed ones.

Each test that lowers `ulimit -n` runs in a process that has no other files open.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from eoslog.storage.fs import file_cache as read_files
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.log.retention import delete_records
from eoslog.storage.segment import segment as segments
from tests.descriptors import opened_files
from tests.storage.helpers import batch, opened, payloads

SEGMENTS = 150
FEW_DESCRIPTORS = 256
MOST_OPEN = FEW_DESCRIPTORS // 8


def look(segment: segments.Segment) -> object:
    """Read its first bytes."""
    return segment.view(0, 1, 1 << 16, lambda: None)


@contextmanager
def log_of_many_segments(path: Path) -> Iterator[PartitionLog]:
    """One batch of one record a segment."""
    with opened(str(path), segment_bytes=200) as log:
        for number in range(SEGMENTS):
            log.append(batch(1, size=90, timestamp=number))
            log.flush()
        yield log


def with_few_descriptors(check: Callable[[PartitionLog], None], path: Path) -> None:
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (FEW_DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    with log_of_many_segments(path) as log:
        check(log)


def run_alone(check: Callable[[PartitionLog], None], path: Path) -> None:
    """Run a check in a process of its own; its traceback goes to stderr."""
    child = multiprocessing.get_context("spawn").Process(
        target=with_few_descriptors, args=(check, path)
    )
    child.start()
    child.join()
    assert child.exitcode == 0


def read_descriptors(log: PartitionLog) -> int:
    place, files = os.path.realpath(log.path), opened_files(log.path)
    return sum(name != place and not flags & os.O_RDWR for name, flags in files)


def read_every_segment(log: PartitionLog) -> None:
    assert read_files.most_open() == MOST_OPEN < SEGMENTS
    for _ in range(2):
        assert [offset for offset, _ in payloads(log)] == list(range(SEGMENTS))
        assert 16 < read_descriptors(log) <= MOST_OPEN


def test_a_reader_of_many_segments_keeps_a_bounded_number_of_files_open(tmp_path: Path) -> None:
    run_alone(read_every_segment, tmp_path)


def read_one_segment_repeatedly(log: PartitionLog) -> None:
    often = log.segment(0)
    look(often)
    file = often.file
    for base in range(1, SEGMENTS):
        look(log.segment(base))
        look(often)
    assert often.file is file is not None
    assert log.segment(1).file is None


def test_a_file_that_is_read_repeatedly_stays_open(tmp_path: Path) -> None:
    run_alone(read_one_segment_repeatedly, tmp_path)


def hold_a_file_and_read_the_others(log: PartitionLog) -> None:
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


def test_a_file_evicted_during_a_read_closes_after_the_read(tmp_path: Path) -> None:
    run_alone(hold_a_file_and_read_the_others, tmp_path)


def test_a_removed_segment_closes_its_file(tmp_path: Path) -> None:
    with log_of_many_segments(tmp_path) as log:
        payloads(log)
        before = read_descriptors(log)
        assert before == SEGMENTS
        delete_records(log, 100)
        assert read_descriptors(log) == before - 100


def read_each_segment_twice(log: PartitionLog) -> None:
    for base in range(MOST_OPEN):
        look(log.segment(base))
        look(log.segment(base))
    newest = log.segment(MOST_OPEN)
    look(newest)
    assert newest.file is not None
    assert read_descriptors(log) == MOST_OPEN


def test_files_that_are_all_read_repeatedly_make_room_for_a_new_one(tmp_path: Path) -> None:
    run_alone(read_each_segment_twice, tmp_path)


def read_mapped_segments(log: PartitionLog) -> None:
    segments.REMAP_SIZE = 1
    assert len(payloads(log)) == SEGMENTS
    assert read_files.most_open() < read_descriptors(log) <= FEW_DESCRIPTORS // 4


def test_mapped_files_take_a_quarter_of_the_descriptors(tmp_path: Path) -> None:
    """A mapping has a descriptor of its own."""
    run_alone(read_mapped_segments, tmp_path)
