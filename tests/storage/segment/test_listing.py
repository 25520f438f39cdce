"""Segment listings by name never show the middle of a cleaner's swap."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet

import pytest

import eoslog
from eoslog.errors import CorruptRecord, LockTimeout, OffsetOutOfRange, StorageError
from eoslog.storage.fs import files
from eoslog.storage.segment import listing as settled_listing
from eoslog.storage.segment import segment_files
from eoslog.storage.segment.listing import settled_segments

CLEANER = "import sys, eoslog\nwith eoslog.open(sys.argv[1]) as log: log.clean('t')"


def fill(path):
    """A compacted topic with keys that are there once, which no cleaning may take."""
    with eoslog.open(path) as log:
        settings = {"cleanup.policy": "compact", "segment.bytes": 20_000}
        log.create_topic("t", 1, settings | {"min.cleanable.dirty.ratio": 0.0})
        with log.producer() as producer:
            for n in range(1500):
                producer.produce("t", bytes(30), b"same%d" % (n % 7))
                producer.produce("t", bytes(50), b"once%d" % n)
                if n % 20 == 0:
                    producer.flush()
        return {record.key for record in log.read("t")}


def cleaner(path, point, action):
    """Start a cleaner that is suspended or killed at a failpoint."""
    environment = {**os.environ, "EOSLOG_FAILPOINTS": f"{point}={action}"}
    child = subprocess.Popen([sys.executable, "-c", CLEANER, path], env=environment)
    if action == "stop":
        os.waitpid(child.pid, os.WUNTRACED)
    else:
        assert child.wait(300) == -signal.SIGKILL
    return child


def keys(path):
    return {record.key for record in eoslog.read_segments(f"{path}/t-0").records()}


@pytest.mark.process
@pytest.mark.parametrize("point", ["clean.old.renamed", "clean.old.durable"])
def test_read_segments_waits_for_the_end_of_a_swap(tmp_path, point):
    path = str(tmp_path)
    expected = fill(path)
    child = cleaner(path, point, "stop")
    with ThreadPoolExecutor() as pool:
        try:
            read = pool.submit(keys, path)
            with pytest.raises(NotYet):
                read.result(0.3)
        finally:
            os.kill(child.pid, signal.SIGCONT)
        assert child.wait(300) == 0
        assert read.result(60) == expected


@pytest.mark.process
def test_read_segments_continues_in_the_segments_that_a_cleaner_swapped_in(tmp_path):
    path = str(tmp_path)
    expected = fill(path)
    rows = eoslog.read_segments(f"{path}/t-0").records()
    child = cleaner(path, "clean.old.renamed", "stop")
    with ThreadPoolExecutor() as pool:
        try:
            read = pool.submit(list, rows)
            with pytest.raises(NotYet):
                read.result(0.3)
        finally:
            os.kill(child.pid, signal.SIGCONT)
        assert child.wait(300) == 0
        seen = read.result(60)
    assert {record.key for record in seen} == expected
    offsets = [record.offset for record in seen]
    assert offsets == sorted(set(offsets))


@pytest.mark.process
def test_segment_range_retries_in_the_segments_that_a_cleaner_swapped_in(tmp_path, monkeypatch):
    path = str(tmp_path)
    fill(path)
    real, calls = segment_files.feed_transactions, []

    def feed(fold, segments, *rest):
        calls.append(len(segments))
        if len(calls) > 1:
            return real(fold, segments, *rest)
        child = cleaner(path, "clean.old.renamed", "stop")
        try:
            return real(fold, segments, *rest)
        finally:
            os.kill(child.pid, signal.SIGCONT)
            assert child.wait(300) == 0

    monkeypatch.setattr(segment_files, "feed_transactions", feed)
    found = eoslog.segment_range(f"{path}/t-0")
    assert len(calls) == 2
    assert found == eoslog.segment_range(f"{path}/t-0")


def test_read_segments_raises_if_the_next_segment_was_deleted(tmp_path):
    path = str(tmp_path)
    fill(path)
    segments = segment_files.list_segments(f"{path}/t-0")
    rows = eoslog.read_segments(f"{path}/t-0").records()
    next(rows)
    for segment in segments[:-1]:
        os.remove(segment.path)
    with pytest.raises(OffsetOutOfRange, match="was deleted"):
        list(rows)


def test_read_segments_raises_for_a_listed_file_that_never_existed(tmp_path):
    (tmp_path / f"{0:020d}.log").symlink_to(tmp_path / "gone")
    with pytest.raises(StorageError, match="No such file"):
        eoslog.read_segments(str(tmp_path))


@pytest.mark.process
def test_read_segments_times_out_on_a_dead_swap_until_a_log_open_ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr(settled_listing, "LOCK_TIMEOUT_S", 0.1)
    path = str(tmp_path)
    expected = fill(path)
    cleaner(path, "clean.old.durable", "kill")
    with pytest.raises(
        LockTimeout, match=r"\.log\.swap\) has not finished .* If it was killed, open the log"
    ) as caught:
        keys(path)
    assert caught.value.retriable
    with eoslog.open(path) as log:
        assert {record.key for record in log.read("t")} == expected
    assert keys(path) == expected


@pytest.mark.parametrize("torn", [1, 2])
def test_listings_during_a_swap_are_repeated_until_they_are_complete(tmp_path, monkeypatch, torn):
    """A name that changes during a listing may be missing from it.

    This holds for the old segment and for the new one's `.swap`, before and after the rename.
    """
    for base in (0, 10, 20):
        (tmp_path / f"{base:020d}.log").touch()
    whole = files.names(str(tmp_path))
    seen = iter([whole[2:]] * torn)
    real = files.names
    monkeypatch.setattr(files, "names", lambda path: next(seen, None) or real(path))
    assert [one.base_offset for one in settled_segments(str(tmp_path))] == [0, 10, 20]


def test_old_segments_are_listed_while_a_cleaner_writes_a_new_one(tmp_path):
    for name in (f"{0:020d}.log", f"{0:020d}.log.swap", f"{5:020d}.log.cleaned"):
        (tmp_path / name).touch()
    assert [one.base_offset for one in settled_segments(str(tmp_path))] == [0]


def test_read_segments_raises_if_records_are_deleted_after_their_range(tmp_path):
    """The log start is above the range then."""
    path = str(tmp_path)
    with eoslog.open(path) as log:
        log.create_topic("t", config={"segment.bytes": 20_000})
        with log.producer() as producer:
            for _ in range(30):
                producer.produce("t", bytes(5_000))
                producer.flush()
        for isolation in ("read_committed", "read_uncommitted"):
            found = eoslog.segment_range(f"{path}/t-0", isolation=isolation)
            log.delete_records({eoslog.TopicPartition("t", 0): found.start + 10})
            rows = eoslog.read_segments(f"{path}/t-0", within=found).records()
            with pytest.raises(OffsetOutOfRange, match=f"offset {found.start} was deleted"):
                next(rows)
        found = eoslog.segment_range(f"{path}/t-0")
        os.remove(segment_files.list_segments(f"{path}/t-0")[0].path)
        rows = eoslog.read_segments(f"{path}/t-0", within=found).records()
        with pytest.raises(CorruptRecord, match="no deletion is recorded"):
            next(rows)


@pytest.mark.process
@pytest.mark.parametrize("point", ["clean.swap.durable", "clean.old.renamed"])
def test_check_waits_for_the_end_of_a_swap(tmp_path, point):
    path = str(tmp_path)
    fill(path)
    with eoslog.open(path) as log, ThreadPoolExecutor() as pool:
        assert log.check().ok
        child = cleaner(path, point, "stop")
        try:
            found = pool.submit(log.check)
            with pytest.raises(NotYet):
                found.result(0.3)
        finally:
            os.kill(child.pid, signal.SIGCONT)
        assert child.wait(300) == 0
        assert found.result(60).problems == []


@pytest.mark.process
def test_check_reports_the_swap_of_a_dead_cleaner(tmp_path):
    path = str(tmp_path)
    fill(path)
    with eoslog.open(path) as log:
        assert log.check().ok
        cleaner(path, "clean.swap.durable", "kill")
        (problem,) = log.check().problems
        assert "a segment swap is incomplete" in problem.message
        log.clean("t")
        assert log.check().ok
