"""Reads of a preallocated file, while processes append, roll and close."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog.connector import byte_ranges
from eoslog.connector.byte_ranges import PartitionFiles, windows
from eoslog.errors import CorruptRecord
from eoslog.storage.segment import segment_files
from eoslog.storage.segment.segment_files import SegmentFiles

LARGE = 40  # batches of 512 KiB: more than is copied


@pytest.fixture
def log(tmp_path: Path) -> Iterator[eoslog.Log]:
    with eoslog.open(tmp_path / "log") as opened:
        opened.create_topic("t", config={"preallocate": True, "segment.bytes": 64 << 20})
        yield opened


def produce(log: eoslog.Log, *values: bytes) -> None:
    with log.producer(linger_ms=0, compression_type="none") as producer:
        for value in values:
            producer.produce("t", value)
            producer.flush()


def folder(log: eoslog.Log) -> str:
    return os.path.join(log.path, "t-0")


def file_of(log: eoslog.Log) -> str:
    return os.path.join(folder(log), f"{0:020d}.log")


READER = """
import eoslog, os, sys, time
place, begun, closed = sys.argv[1:]
rows = 0
for piece in eoslog.read_segments(place, isolation="read_uncommitted", batch_rows=1):
    if not rows:
        open(begun, "w").close()
        while not os.path.exists(closed):
            time.sleep(0.01)
    rows += piece.num_rows
print(rows)
"""


@pytest.mark.process
def test_a_reader_survives_that_the_zeros_of_a_large_file_are_cut(
    log: eoslog.Log, tmp_path: Path
) -> None:
    produce(log, *[bytes([i]) * (1 << 19) for i in range(LARGE)])
    assert os.path.getsize(file_of(log)) > segment_files._LARGEST_COPY
    begun, closed = tmp_path / "begun", tmp_path / "closed"
    command = [sys.executable, "-c", READER, folder(log), str(begun), str(closed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        while not begun.exists():
            assert reader.poll() is None
            time.sleep(0.01)
        log.close()
        closed.touch()
        out, _ = reader.communicate(timeout=60)
    assert (reader.returncode, out.strip()) == (0, str(LARGE))


def test_the_zeros_of_a_large_file_are_not_mapped(log: eoslog.Log) -> None:
    produce(log, *[bytes([i]) * (1 << 19) for i in range(LARGE)])
    end = log._engine.partition("t", 0).core.end_position
    segment = SegmentFiles(file_of(log), 0)
    assert len(segment.data) == end < os.path.getsize(file_of(log))
    assert len(list(segment.batches())) == LARGE


def test_zeros_over_batches_of_a_large_file_are_damage(log: eoslog.Log) -> None:
    produce(log, *[bytes([i]) * (1 << 19) for i in range(LARGE)])
    path = file_of(log)
    starts = [batch.position for batch in SegmentFiles(path, 0).batches()]
    with open(path, "r+b") as file:
        file.seek(starts[20])
        file.write(bytes(4096))
    with pytest.raises(CorruptRecord):
        list(SegmentFiles(path, 0).batches())
    with pytest.raises(CorruptRecord):
        list(PartitionFiles(folder(log)).batches(0, 0))


@pytest.mark.parametrize("change", ["append", "close"])
def test_a_change_after_zeros_were_read_raises_nothing(
    log: eoslog.Log, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    produce(log, b"v")
    real, changed = byte_ranges.os_pread, list[bool]()

    def late(fd: int, size: int, position: int) -> bytearray:
        data = real(fd, size, position)
        if position and not changed and not data.strip(b"\0"):
            changed.append(True)
            produce(log, b"w") if change == "append" else log.close()
            data[100] = 1  # the page with the header was read before, this one after
        return data

    monkeypatch.setattr(byte_ranges, "os_pread", late)
    found = list(PartitionFiles(folder(log)).batches(0, 0))
    assert changed
    assert len(found) == (2 if change == "append" else 1)


def test_a_walk_ends_where_the_zeros_were_cut_since(log: eoslog.Log) -> None:
    produce(log, *[b"v" * 1000] * 20)
    path, end = file_of(log), log._engine.partition("t", 0).core.end_position
    walk = windows(path, 0, None)
    assert next(walk)[0] == 0
    os.truncate(path, end)
    assert list(itertools.islice(walk, 5)) == []
    with pytest.raises(CorruptRecord, match="expected"):
        list(windows(path, 0, end + 1))


def test_a_check_takes_zeros_after_a_clean_close_for_damage(log: eoslog.Log) -> None:
    produce(log, b"v")
    path = file_of(log)
    log.close()
    assert eoslog.check(log.path).problems == []
    os.truncate(path, os.path.getsize(path) + 5000)
    problems = eoslog.check(log.path).problems
    assert any("5000 bytes" in problem.message for problem in problems)
    with eoslog.open(log.path) as again, pytest.raises(CorruptRecord):
        list(again.scan("t"))
