"""A flush of several partitions: one wait for all of them, and each fails alone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog import _core
from eoslog.engine.engine import Engine
from eoslog.engine.parallel_flush import flush_in_parallel
from eoslog.errors import LogPoisoned
from eoslog.storage.fs import files
from eoslog.storage.log.partition_log import PartitionLog
from tests.faults.harness import Child, live
from tests.rows.tools import data

COUNT = 12
NO_FLUSH = {"flush.ms": "600000"}


def prepare(path: Path) -> None:
    with eoslog.open(path) as log:
        log.create_topic("t", COUNT, NO_FLUSH)


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[list[PartitionLog]]:
    """All partitions, with a record each that is not durable."""
    prepare(tmp_path)
    engine = Engine.open(tmp_path)
    yield written(engine)
    files.disarm_failpoints()
    engine.close()


def written(engine: Engine) -> list[PartitionLog]:
    found = [engine.partition("t", number) for number in range(COUNT)]
    for log in found:
        log.append(data(["v"]))
    return found


def ends(logs: list[PartitionLog]) -> list[tuple[PartitionLog, int]]:
    return [(log, log.log_end) for log in logs]


def test_a_flush_makes_every_partition_durable(logs):
    flush_in_parallel(ends(logs))
    assert [log.durable_end for log in logs] == [log.log_end for log in logs] == [1] * COUNT


@pytest.mark.process
def test_a_failed_sync_poisons_its_own_partition_only(tmp_path):
    def body(child: Child, path: Path) -> None:
        engine = Engine.open(path)
        logs = written(engine)
        files.arm_failpoint("fdatasync", "EIO", 2)
        with pytest.raises(LogPoisoned, match="t-1: flush failed"):
            flush_in_parallel(ends(logs))
        child.tell("durable", [log.durable_end for log in logs])
        child.tell("poisoned", [log.core.poisoned for log in logs])
        with pytest.raises(LogPoisoned):
            logs[1].append(data(["w"]))
        engine.close()

    prepare(tmp_path)
    life = live(body, tmp_path).fine()
    assert life.of("durable") == [[1, 0] + [1] * (COUNT - 2)]
    assert life.of("poisoned") == [[False, True] + [False] * (COUNT - 2)]


def test_a_flush_waits_for_a_partition_that_a_thread_flushes(logs):
    steps = logs[3].flusher.lead(1)
    fd = next(steps)
    thread = threading.Thread(target=flush_in_parallel, args=(ends(logs),))
    thread.start()
    logs[0].wait(0, 30, of=eoslog.storage.log.published_end.PublishedEnd.HIGH_WATERMARK)
    assert logs[3].durable_end == 0
    logs[3].core.sync(fd)
    assert list(steps) == []
    thread.join()
    assert [log.durable_end for log in logs] == [1] * COUNT


def test_an_abandoned_flush_makes_nothing_durable_and_frees_its_locks(logs):
    steps = logs[0].flusher.lead(1)
    next(steps)
    steps.close()
    assert logs[0].durable_end == 0
    again = logs[0].flusher.lead(1)
    logs[0].core.sync(next(again))
    assert list(again) == []
    assert logs[0].durable_end == 1


def test_threads_that_flush_the_same_partitions_all_return(logs):
    """Each thread begins at another partition, so that they meet each other's locks."""
    failed: list[BaseException] = []

    def run(shift: int) -> None:
        try:
            for _ in range(20):
                for log in logs:
                    log.append(data(["v"]))
                mine = ends(logs[shift:] + logs[:shift])
                flush_in_parallel(mine)
                assert all(log.durable_end >= end for log, end in mine)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(shift,)) for shift in range(0, COUNT, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert [log.durable_end for log in logs] == [81] * COUNT


@pytest.mark.process
def test_a_forked_child_flushes_several_partitions(logs, tmp_path):
    """It has none of the threads that its parent started."""

    def body(child: Child, path: Path) -> None:
        path.mkdir()
        prepare(path)
        engine = Engine.open(path)
        own = written(engine)
        flush_in_parallel(ends(own))
        child.tell("durable", [log.durable_end for log in own])
        engine.close()

    flush_in_parallel(ends(logs))
    assert live(body, tmp_path / "of the child").fine().of("durable") == [[1] * COUNT]


@pytest.mark.process
def test_no_thread_that_syncs_takes_a_signal(tmp_path):
    """Python's handlers run in its main thread, which the signal must interrupt."""

    def body(child: Child, path: Path) -> None:
        engine = Engine.open(path)
        engine._background.close()  # its threads may start now
        before = set(os.listdir("/proc/self/task"))
        flush_in_parallel(ends(written(engine)))
        for task in set(os.listdir("/proc/self/task")) - before:
            status = Path(f"/proc/self/task/{task}/status").read_text()
            (blocked,) = [line for line in status.splitlines() if line.startswith("SigBlk")]
            child.tell("blocked", bool(int(blocked.split()[1], 16) >> (signal.SIGTERM - 1) & 1))
        engine.close()

    prepare(tmp_path)
    found = live(body, tmp_path).fine().of("blocked")
    assert found and all(found)


def test_a_sync_of_no_file_returns_no_error():
    assert _core.sync_together([]) == []
