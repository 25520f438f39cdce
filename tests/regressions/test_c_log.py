"""Group C: log, indexes, recovery, disk."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import _core
from eoslog.errors import EoslogError, StorageError
from eoslog.storage.format import checkpoints
from eoslog.storage.log.retention import apply_retention
from tests.storage.helpers import batch

EIO = 5


def fill(log: Any, count: int = 60, topic: str = "small") -> Any:
    part = log._engine.partition(topic, 0)
    for number in range(count):
        part.append(batch(1, size=60, timestamp=1000 + number))
    part.flush()
    return part


def offsets(log: Any, topic: str = "small") -> list[int]:
    part = log._engine.partition(topic, 0)
    return [r[0] for b in part.batches(part.log_start, part.log_end) for r in b.records()]


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_R47_a_failed_write_of_log_or_index_reuses_no_offset(log: Any, nth: int) -> None:
    part = fill(log, 45)
    _core.arm_fault("pwrite", nth, EIO)
    failed = 0
    for number in range(60):
        try:
            part.append(batch(1, size=60, timestamp=2000 + number))
        except StorageError:
            failed += 1
    _core.disarm_faults()
    assert failed == (nth < 3), "the third is of a snapshot, which an append does not depend on"
    found = offsets(log)
    assert found == list(range(len(found))) and part.log_end == len(found)
    assert log.check(full=True).ok


def test_R50_damaged_directory_properties_are_rejected_and_kept(
    directory: Path,
) -> None:
    with eoslog.open(directory) as log:
        log.create_topic("t")
    path = directory / "meta.properties"
    good = path.read_bytes()
    for bad in (bytes(len(good)), b"", b"\n"):
        path.write_bytes(bad)
        with pytest.raises(EoslogError, match="meta.properties"):
            eoslog.open(directory)
        assert path.read_bytes() == bad, "nothing made anew over it"
    path.write_bytes(good)
    with eoslog.open(directory) as log:
        assert log.topics() == ["t"]


def test_R52_a_recovery_point_beyond_the_end_is_never_silently_trusted(directory: Path) -> None:
    with eoslog.open(directory) as log:
        log.create_topic("small", config={"segment.bytes": 2000, "segment.index.bytes": 4096})
        fill(log)
        end = log.offsets("small", 0).log_end
    name = str(directory / "recovery-point-offset-checkpoint")
    points = checkpoints.read_offsets(name)
    points["small", 0] = end + 100
    checkpoints.write_offsets(name, points)
    (directory / ".kafka_cleanshutdown").unlink()
    try:
        with eoslog.open(directory) as log:
            assert offsets(log) == list(range(end))
    except EoslogError as error:
        assert str(end) in str(error) or "small-0" in str(error)


def test_R56_an_offset_that_no_index_entry_can_hold_stops_the_scan(tmp_path: Path) -> None:
    memory = os.memfd_create("control")
    os.ftruncate(memory, 1 << 20)
    control = _core.ControlFile(memory)
    control.map_chunks(1)
    for far, reason in ((2**31 - 1, None), (2**31, "too far")):
        path = tmp_path / f"{far}.log"
        path.write_bytes(_core.build_batch([(0, None, b"v", ())], base_offset=far))
        fd = os.open(path, os.O_RDONLY)
        partition = _core.Partition(control, 0, -1, 0, str(tmp_path))
        partition.load(0, b"")
        partition.use_segment(0, fd)
        found = partition.scan_segment(path.stat().st_size, True)[5]
        assert (found is None) if reason is None else reason in found
        partition.use_segment(0, -1)
        os.close(fd)


def test_R57_many_threads_can_read_unopened_segments_simultaneously(directory: Path) -> None:
    with eoslog.open(directory) as log:
        log.create_topic("small", config={"segment.bytes": 2000, "segment.index.bytes": 4096})
        fill(log, 120)
        expected = offsets(log)
    with eoslog.open(directory) as log:
        part = log._engine.partition("small", 0)
        start, found, errors = threading.Barrier(24), [], []

        def read(at: int) -> None:
            start.wait()
            try:
                found.append([r[0] for b in part.batches(at, part.log_end) for r in b.records()])
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=read, args=(n * 5,)) for n in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors
    assert sorted(found, key=len) == sorted((expected[n * 5 :] for n in range(24)), key=len)


@pytest.mark.slow
def test_R58_simultaneous_retention_flushes_and_appends_end_cleanly(directory: Path) -> None:
    with eoslog.open(directory) as log:
        log.create_topic(
            "small",
            config={"segment.bytes": 2000, "segment.index.bytes": 4096, "retention.bytes": 4000},
        )
        part = log._engine.partition("small", 0)
        stop, errors = threading.Event(), []

        def again(run: Any) -> None:
            try:
                while not stop.is_set():
                    run()
            except Exception as error:
                errors.append(error)

        threads = [
            threading.Thread(target=again, args=(run,))
            for run in (part.flush, lambda: apply_retention(part, 10**15), part.fold)
        ]
        for thread in threads:
            thread.start()
        for number in range(1000):
            part.append(batch(1, size=100, timestamp=number))
        stop.set()
        for thread in threads:
            thread.join()
        assert not errors
        kept = offsets(log)
        assert kept == list(range(part.log_start, 1000))
    assert (directory / ".kafka_cleanshutdown").exists()
    with eoslog.open(directory) as log:
        assert offsets(log)[-1] == 999 and log.check(full=True).ok


def test_R59_appends_continue_during_a_flush_of_another_process(log: Any) -> None:
    part = log._engine.partition("t", 0)
    fd, at = log._engine.session.append_lock(part.slot)
    other = os.open(f"{log.path}/eoslog.lock-{part.slot % 64:02d}", os.O_RDWR)
    try:
        assert _core.try_lock(other, at + 1), (
            "the flush lock, as a flusher of another process has it"
        )
        for number in range(10):
            assert part.append(batch(1), timeout=60).base_offset == number
    finally:
        os.close(other)


@pytest.mark.process
@pytest.mark.parametrize("nth", range(1, 9))
def test_R63_a_topic_exists_completely_or_not_after_a_killed_creation(
    directory: Path, nth: int
) -> None:
    script = (
        "import sys, os, eoslog; from eoslog import _core\n"
        "log = eoslog.open(sys.argv[1]); log.create_topic('kept')\n"
        "calls, plain = [0], _core.os_sync\n"
        "def sync(fd, **how):\n"
        "    calls[0] += 1\n"
        "    if calls[0] == int(sys.argv[2]):\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return plain(fd, **how)\n"
        "_core.os_sync = sync\n"
        "for n in range(9): log.create_topic(f't{n}', 2); print(n, flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(directory), str(nth)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    made = [int(line) for line in done.stdout.split()]
    assert done.returncode == -9, done.stderr
    with eoslog.open(directory) as log:
        assert {"kept", *(f"t{n}" for n in made)} <= set(log.topics())
        for name in log.topics():
            with log.producer() as producer:
                producer.send(name, "v").result(30)
        assert log.check().ok


def test_R65_every_derived_file_is_rebuilt_as_it_was(directory: Path) -> None:
    with eoslog.open(directory) as log:
        log.create_topic("small", config={"segment.bytes": 2000, "segment.index.bytes": 4096})
        fill(log)
    derived = sorted(
        p for p in (directory / "small-0").iterdir() if p.suffix in (".index", ".timeindex")
    )
    before = {p.name: p.read_bytes() for p in derived[:-2]}  # the active segment's end may differ
    for path in [*derived, *(directory / "small-0").glob("*.snapshot")]:
        path.unlink()
    (directory / ".kafka_cleanshutdown").unlink()
    (directory / "recovery-point-offset-checkpoint").unlink()
    with eoslog.open(directory) as log:
        assert offsets(log) == list(range(60))
    assert {name: (directory / "small-0" / name).read_bytes() for name in before} == before
