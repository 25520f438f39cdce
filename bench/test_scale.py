"""Costs that must not grow with the directory.

They are the LSO with many open transactions, opening, and restarting.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import eoslog
from bench import data, probe
from bench.contest import Contender, Contest, scaled
from eoslog import _core
from eoslog.model import AppendOrigin
from tests.faults.harness import Child, live, start

_TIME_MS = 1_700_000_000_000

# --- the last stable offset -----------------------------------------------------------------------

MANY = 1_000_000
STEPS = 200
_ENTRY = np.dtype(
    [("id", ">i8"), ("epoch", ">i2"), ("last_sequence", ">i4"), ("last_offset", ">i8"),
     ("delta", ">i4"), ("time", ">i8"), ("coordinator", ">i4"), ("first", ">i8")]
)  # fmt: skip
"""An entry of a producer snapshot (docs/reference/file-format.md)."""


class Ends:
    """A partition with many open transactions, one per producer, begun in order."""

    def __init__(self, log: eoslog.Log, count: int) -> None:
        self.partition, other = (log._engine.partition(data.TOPIC, number) for number in range(2))
        self._known = [(other, 0)]  # represents the coordinator's record that lists the partition
        self.partition.configure(replace(self.partition.settings, max_message_bytes=64 << 20))
        filler = _core.build_batch([(_TIME_MS, None, b"", ())] * min(count, 100_000))
        for _ in range(max(1, count // 100_000)):
            self.partition.append(filler)
        entries = np.zeros(count, _ENTRY)
        entries["id"] = entries["first"] = entries["last_offset"] = range(count)
        entries["time"], entries["coordinator"] = _TIME_MS, -1
        self.partition.core.load(0, entries.tobytes())
        self.partition.fold()
        self._oldest, self._next = 0, count
        self._data = _core.build_batch([(_TIME_MS, None, b"v", ())])
        self._firsts = list(range(count))

    def step(self) -> int:
        """A transaction begins, the oldest ends: the LSO moves to the next oldest."""
        batch = bytearray(self._data)
        _core.stamp_batches(
            batch,
            producer_id=self._next,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        result = self.partition.append(batch, expect=self._known)
        self._firsts.append(result.base_offset)
        marker = _core.build_marker(self._oldest, 1, True, timestamp=_TIME_MS)
        self.partition.append(marker, origin=AppendOrigin.COORDINATOR)
        self._next += 1
        self._oldest += 1
        return self.partition.last_stable_offset

    def steps(self, _state: Any) -> int:
        for _ in range(STEPS):
            found = self.step()
        return found

    def check(self, _state: Any, found: int) -> None:
        assert found == self._firsts[self._oldest]


def test_lso_with_open_transactions(contest: Contest, place: Path) -> None:
    with data.fresh_log(place, "os", 2) as one, data.fresh_log(place, "os", 2) as many:
        few, all_of_them = Ends(one, 1), Ends(many, MANY)
        contest(
            Contender("1,000,000 open", all_of_them.steps, check=all_of_them.check),
            Contender("1 open", few.steps, check=few.check),
            units=STEPS, unit="ends",
        )  # fmt: skip


# --- opening --------------------------------------------------------------------------------------

PARTITIONS = scaled(500, 10_000)
SEGMENTS, AT_A_TIME = 10, 500


def make_many(child: Child, path: Path) -> None:
    """A topic of which every partition has SEGMENTS segments of one batch each.

    In several openings: what is not flushed keeps a descriptor, and a close flushes all.
    """
    batch = bytes(_core.build_batch([(_TIME_MS, b"key", b"v" * 60, ())]))
    with eoslog.open(path, durability="os") as log:
        log.create_topic(data.TOPIC, PARTITIONS, {"segment.bytes": 200})
    for first in range(0, PARTITIONS, AT_A_TIME):
        with eoslog.open(path) as log:
            for number in range(first, min(first + AT_A_TIME, PARTITIONS)):
                partition = log._engine.partition(data.TOPIC, number)
                for _ in range(SEGMENTS):
                    partition.append(batch)
    found = len(list(path.glob(f"{data.TOPIC}-*/*.log")))
    assert found == PARTITIONS * SEGMENTS, found


def forget(path: Path) -> None:
    """Drop the files' pages from the page cache."""
    for file in path.rglob("*"):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def test_open_of_many_partitions(contest: Contest, place: Path) -> None:
    path = place / "log"
    start(make_many, path).end(timeout=1800).fine()

    @contextlib.contextmanager
    def opening(*, cold: bool) -> Iterator[contextlib.ExitStack]:
        if cold:
            os.sync()
            forget(path)
        with contextlib.ExitStack() as stack:
            yield stack

    def lazily(stack: contextlib.ExitStack) -> eoslog.Log:
        return stack.enter_context(eoslog.open(path))

    def fully(stack: contextlib.ExitStack) -> eoslog.Log:
        log = lazily(stack)
        for number in range(PARTITIONS):
            log._engine.partition(data.TOPIC, number)
        return log

    def check(_stack: Any, log: eoslog.Log) -> None:
        for number in range(PARTITIONS):
            found = log.offsets(data.TOPIC, number)
            assert (found.log_start, found.log_end) == (0, SEGMENTS)

    contest(
        Contender("all, cold", fully, lambda: opening(cold=True), check),
        Contender("all, warm", fully, lambda: opening(cold=False), check),
        Contender("lazily, cold", lazily, lambda: opening(cold=True), check),
        units=PARTITIONS, unit="partitions", rounds=5,
    )  # fmt: skip


# --- restarting -----------------------------------------------------------------------------------

SEGMENT = 16 << 20
PER_BATCH = 8_000
KEPT, UNFLUSHED = 30, 90
"""Batches of about 1 MiB that were flushed, and that were not, when the process was killed."""


def write_and_close(child: Child, path: Path, batch: bytes, durability: str) -> None:
    with eoslog.open(path, durability=durability) as log:
        log.create_topic(data.TOPIC, 1, {"segment.bytes": SEGMENT, "flush.ms": 3_600_000})
        partition = log._engine.partition(data.TOPIC, 0)
        for _ in range(KEPT):
            partition.append(batch)


def write_and_die(child: Child, path: Path, batch: bytes) -> None:
    log = eoslog.open(path)
    partition = log._engine.partition(data.TOPIC, 0)
    for _ in range(UNFLUSHED):
        partition.append(batch)
    os.kill(os.getpid(), signal.SIGKILL)


def restart(contest: Contest, place: Path, durability: str) -> None:
    batch = data.batches(PER_BATCH, PER_BATCH)[0]
    records = PER_BATCH * (KEPT + UNFLUSHED)
    size = UNFLUSHED * len(batch)

    @contextlib.contextmanager
    def killed() -> Iterator[tuple[Path, contextlib.ExitStack]]:
        with data.folder(place) as folder, contextlib.ExitStack() as stack:
            path = folder / "log"
            live(write_and_close, path, batch, durability).fine()
            assert live(write_and_die, path, batch).killed
            yield path, stack

    def run(state: tuple[Path, contextlib.ExitStack]) -> eoslog.Log:
        path, stack = state
        log = stack.enter_context(eoslog.open(path))
        log._engine.partition(data.TOPIC, 0)
        return log

    def check(_state: Any, log: eoslog.Log) -> None:
        data.assert_durable(log, records)
        total = data.expected(PER_BATCH)[1] * (KEPT + UNFLUSHED)
        assert data.scanned(log) == (records, total)

    @contextlib.contextmanager
    def mapped() -> Iterator[memoryview]:
        with data.folder(place) as folder, (folder / "file").open("w+b") as file:
            for _ in range(UNFLUSHED):
                file.write(batch)
            file.flush()
            view = mmap.mmap(file.fileno(), 0)
            found = memoryview(view)
            yield found
            found.release()
            view.close()

    def crc(view: memoryview) -> int:
        return _core.crc32c(view)

    def check_crc(view: memoryview, found: int) -> None:
        assert found == _core.crc32c(bytes(view))

    @contextlib.contextmanager
    def cold() -> Iterator[memoryview]:
        """A strict directory must see what is on the disk, not what is in memory."""
        with data.folder(place) as folder:
            path = folder / "file"
            with path.open("wb") as file:
                for _ in range(UNFLUSHED):
                    file.write(batch)
                file.flush()
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            with path.open("rb") as file:
                view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
                view.madvise(mmap.MADV_SEQUENTIAL)
                found = memoryview(view)
                yield found
                found.release()
                view.close()

    peer = (
        Contender("crc32c", crc, mapped, check_crc)
        if durability == "os"
        else Contender("crc32c from the disk", crc, cold, check_crc)
    )
    contest(
        Contender("restart", run, killed, check), peer,
        units=size / 1e6, unit="MB", disk=True, rounds=5,
    )  # fmt: skip


def test_restart_in_os(contest: Contest, place: Path) -> None:
    restart(contest, place, "os")


def test_restart_in_strict(contest: Contest, place: Path) -> None:
    restart(contest, place, "strict")


# --- memory ---------------------------------------------------------------------------------------

SCANNED = scaled(1 << 30, 10 << 30)
IDS = 20_000


def test_memory_of_a_scan(contest: Contest, place: Path) -> None:
    batch = data.batches(PER_BATCH, PER_BATCH)[0]
    times = SCANNED // len(batch)
    path = place / "log"

    def fill(child: Child) -> None:
        with eoslog.open(path, durability="os") as log:
            log.create_topic(data.TOPIC)
            partition = log._engine.partition(data.TOPIC, 0)
            for _ in range(times):
                partition.append(batch)

    live(fill).fine()

    def measure() -> dict[str, list[float]]:
        grown, rows = probe.of("scan", path)
        assert rows == times * PER_BATCH
        return {"": [grown]}

    contest.note(measure, unit="bytes")
    shutil.rmtree(path)


def name_ids(child: Child, path: Path, count: int) -> None:
    with eoslog.open(path, durability="os") as log:
        log.create_topic(data.TOPIC)
        for i in range(count):
            log._engine.transactions.init_producer_id(f"transactional-id-{i:06d}", 60_000)


def test_memory_of_transactional_ids(contest: Contest, place: Path) -> None:
    """In a process that opens the directory, compared with a directory with one id."""

    def grown(count: int) -> int:
        path = place / f"log-{count}"
        live(name_ids, path, count).fine()
        found, ids = probe.of("ids", path)
        assert ids == count
        return found

    def measure() -> dict[str, list[float]]:
        return {"": [(grown(IDS) - grown(1)) / IDS]}

    contest.note(measure, unit="bytes")
