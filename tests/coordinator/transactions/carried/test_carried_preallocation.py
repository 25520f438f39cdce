"""Carried commits in preallocated logs.

`__transaction_state` (C) ends in zeros, and is the only file that such a commit flushes. A process
is killed. Then a power loss leaves any part of what no flush has covered.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import eoslog
from eoslog import errors
from eoslog.coordinator.transactions.records import decode_carried
from eoslog.engine.engine import Engine
from eoslog.storage.directory.session import CONTROL_FILE
from eoslog.storage.log.partition_log import PartitionLog
from tests.coordinator.transactions.carried.carried_images import Killed, late_world, without_zeros
from tests.coordinator.transactions.carried.test_carried_recovery import (
    A0_VALUES,
    A1_VALUES,
    roll_between,
    transactions,
    values,
)
from tests.coordinator.transactions.test_engine import RealWorld
from tests.coordinator.world import A0, A1, B0, Writer
from tests.reference import codec

pytestmark = pytest.mark.process
PAGE, SECTOR, CHUNK = 4096, 512, 1 << 16


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, because hundreds of images are opened."""
    memory = Path("/dev/shm")
    path = (memory if memory.is_dir() else tmp_path.parent) / f"{tmp_path.name}-{os.getpid()}"
    path.mkdir()
    yield path
    shutil.rmtree(path)


def state_logs(path: Path) -> list[Path]:
    """The segments of C that have batches."""
    found = sorted(path.glob("__transaction_state-*/*.log"))
    return [file for file in found if file.stat().st_size]


def assert_closed(path: Path) -> None:
    """No segment has zeros after a clean close."""
    for file in path.glob("*/*.log"):
        data = file.read_bytes()
        assert len(without_zeros(data)) == len(data), file


# -- a decision that is torn


def decide(path: Path, fill: int) -> list[PartitionLog]:
    """Commit one record, fill C up to about a byte, and commit about 24 KiB."""
    world = late_world(path)
    writer = Writer(world, "t")
    writer.write(A0, b"0")
    writer.commit()
    clog = world.engine.transaction_partition("t")
    while clog.core.end_position < fill:
        writer.write(A1, b"aborted")
        writer.abort()
    for tp in (A0, A1):
        world.log(tp).flush()
    clog.flush()
    writer.write(A0, os.urandom(12_000))
    writer.write(A1, os.urandom(12_000))
    writer.commit()
    assert not world.log(A0).flushed_end == world.log(A0).high_watermark
    return [world.log(A0), world.log(A1)]


class Decision:
    """The bytes of C, with the last decision that carries data."""

    def __init__(self, killed: Killed) -> None:
        self.killed = killed
        (self.file,) = state_logs(killed.path)
        self.size = self.file.stat().st_size
        data = without_zeros(self.file.read_bytes())
        *_, last = (b for b in codec.iter_batches(data) if _carries(b))
        self.begin, self.end = last.position, last.position + last.size
        self.data = data[: self.end]

    def torn(self, size: int, kept: Callable[[int], bool]) -> bytes:
        """C in a file of some bytes, with some sectors of the decision."""
        out = bytearray(self.data[: self.begin].ljust(size, b"\0"))
        for sector in range(self.begin // SECTOR * SECTOR, min(self.end, size), SECTOR):
            at = max(sector, self.begin)
            if kept(sector):
                part = self.data[at : min(sector + SECTOR, size)]
                out[at : at + len(part)] = part
        return bytes(out)


def _carries(batch: codec.RefBatch) -> bool:
    return any(decode_carried(r.value) for r in batch.records if r.value is not None)


def masks(begin: int, end: int, seed: int) -> Iterator[Callable[[int], bool]]:
    """Sectors that a power loss leaves of [begin, end): none, all, and parts."""
    rng = random.Random(seed)
    pages = range(begin // PAGE, (end - 1) // PAGE + 1)
    yield lambda _: False
    yield lambda _: True
    for page in pages:
        yield lambda sector, page=page: sector // PAGE != page  # type: ignore[misc]
        yield lambda sector, page=page: sector // PAGE == page  # type: ignore[misc]
        yield lambda sector, page=page: sector // PAGE < page  # type: ignore[misc]
    for _ in range(20):
        chosen = {sector for sector in range(0, end, SECTOR) if rng.random() < 0.9}
        yield chosen.__contains__


@pytest.mark.slow
@pytest.mark.parametrize("fill", [3000, CHUNK - 2000])
def test_a_decision_torn_in_zeros_is_none_and_leaves_no_byte(place: Path, fill: int) -> None:
    """The second one is larger than what is left of the zeros: the file grows too."""
    killed = Killed(place / "d", partial(decide, fill=fill))
    decision = Decision(killed)
    sizes = {decision.size}
    if decision.end > CHUNK:
        sizes |= {CHUNK, CHUNK + PAGE, decision.end}
    assert (len(sizes) > 1) is (fill > 3000)
    outcomes = set()
    for size, kept in itertools.product(sorted(sizes), masks(decision.begin, decision.end, fill)):
        data = decision.torn(size, kept)
        whole = data[: decision.end] == decision.data
        with killed.image(killed.cut()) as image:
            state = image / decision.file.relative_to(killed.path)
            state.write_bytes(data)
            (image / CONTROL_FILE).unlink()  # it is older: it was not flushed either
            for _ in range(2):
                found = values(image, A0, A1)
                assert [len(of) for of in found] == [1 + whole, whole], (size, whole)
            end = decision.end if whole else decision.begin
            assert state.read_bytes()[:end] == decision.data[:end]
            assert_closed(image)
            world = RealWorld(image, background=False)
            writer = Writer(world, "t")
            writer.write(A0, b"next")
            writer.commit()
            world.close()
            assert values(image, A0)[0] == [*found[0], b"next"]
        outcomes.add(whole)
    assert outcomes == {True, False}


@pytest.mark.parametrize("begin", ["at", "below"])
def test_zeros_over_a_durable_decision_are_damage(place: Path, begin: str) -> None:
    """The slot of C shows that a flush had covered it; no half is shown."""
    killed = Killed(place / "d", partial(decide, fill=3000))
    decision = Decision(killed)
    at = decision.begin + (0 if begin == "at" else 100)
    with killed.image(killed.cut()) as image:
        state = image / decision.file.relative_to(killed.path)
        state.write_bytes(decision.data[:at].ljust(decision.size, b"\0"))
        before = state.read_bytes()
        for _ in range(2):
            with pytest.raises(errors.CorruptRecord, match="below the flushed offset"):
                values(image, A0, A1)
            assert state.read_bytes() == before
        eoslog.repair(image, "cut")
        assert [len(found) for found in values(image, A0, A1)] == [1, 0]


# -- rolls of C


COMMITS = 24


def roll_often(path: Path) -> list[PartitionLog]:
    """Commit about 30 KiB each time, without a flush of the data: C rolls twice."""
    world = late_world(path)
    writer = Writer(world, "t")
    for number in range(COMMITS):
        for tp in (A0, A1, B0):
            writer.write(tp, b"%02d" % number + os.urandom(10_000))
        writer.commit()
    return [world.log(A0), world.log(A1), world.log(B0)]


@pytest.mark.slow
@pytest.mark.parametrize("control", [True, False])
@pytest.mark.parametrize("zeros", [(), (0,), (1,), (0, 1)])
def test_decisions_of_all_segments_count_though_a_roll_cut_no_zeros(
    place: Path, zeros: tuple[int, ...], control: bool
) -> None:
    """A power loss has undone what some rolls have cut."""
    killed = Killed(place / "d", roll_often)
    assert all(part.flushed == 0 for part in killed.parts.values())
    with killed.image(killed.cut()) as image:
        logs = state_logs(image)
        assert len(logs) == 3
        for number in zeros:
            os.truncate(logs[number], (logs[number].stat().st_size // CHUNK + 1) * CHUNK)
        if not control:
            (image / CONTROL_FILE).unlink()  # it is older
        for _ in range(2):
            found = values(image, A0, A1, B0)
            assert [[int(v[:2]) for v in of] for of in found] == [list(range(COMMITS))] * 3
        assert_closed(image)


# -- data partitions that are preallocated too


@pytest.mark.slow
@pytest.mark.parametrize("size", [CHUNK, CHUNK - 1, 5000])
def test_carried_records_are_restored_into_zeros(place: Path, size: int) -> None:
    """The data's pages are lost from a byte on, and the file has kept a size."""
    killed = Killed(place / "d", partial(transactions, preallocate=True))
    part = killed.parts["a-0"]
    assert part.flushed < part.covered < len(part.data) < size
    assert (killed.path / part.file).stat().st_size == CHUNK
    for begin in sorted({*range(part.flushed, len(part.data), 13), *part.borders()}):
        with killed.image({"a-0": part.data[:begin].ljust(size, b"\0")}) as image:
            assert values(image, A0, A1) == [A0_VALUES, A1_VALUES], begin
            assert (image / part.file).read_bytes()[: part.covered] == part.data[: part.covered]
            assert_closed(image)


@pytest.mark.parametrize("lost", ["later", "earlier", "both", "cut"])
def test_carried_records_are_restored_around_a_roll_in_zeros(place: Path, lost: str) -> None:
    """Lost are the later name, the earlier content, or what the roll cut."""
    Killed(place / "d", partial(roll_between, preallocate=True))
    earlier, later = sorted((place / "d" / "a-0").glob("*.log"))
    if lost in ("earlier", "both"):
        earlier.write_bytes(bytes(CHUNK))
    if lost == "cut":
        os.truncate(earlier, CHUNK)
        later.write_bytes(bytes(CHUNK))
    if lost in ("later", "both"):
        for file in later.parent.glob(f"{later.stem}.*"):
            file.unlink()
    for _ in range(2):
        assert values(place / "d", A0) == [[b"1", b"2"]]
    assert_closed(place / "d")


def test_zeros_below_carried_batches_are_a_hole_and_nothing_changes(place: Path) -> None:
    """Only the decision shows what was durable, as in a copy without control."""
    killed = Killed(place / "d", partial(transactions, preallocate=True))
    first = next(iter(codec.iter_batches(killed.parts["a-0"].data)))
    hole = killed.parts["a-0"].data[: first.position + first.size].ljust(CHUNK, b"\0")
    with killed.image({"a-0": hole}) as image:
        (image / CONTROL_FILE).unlink()
        with pytest.raises(errors.CorruptRecord, match="carries"):
            values(image, A0)
        assert (image / killed.parts["a-0"].file).read_bytes() == hole
        assert values(image, A1) == [A1_VALUES]


def test_a_private_reader_refuses_zeros_where_carried_records_are(place: Path) -> None:
    killed = Killed(place / "d", partial(transactions, preallocate=True))
    part = killed.parts["a-0"]
    lost = part.data[: part.flushed].ljust(CHUNK, b"\0")
    with killed.image({"a-0": lost}) as image:
        reader = Engine.open(image, read_only=True)
        try:
            with pytest.raises(errors.StorageError, match="open the log for writing once"):
                reader.partition("a", 0)
        finally:
            reader.close()
        assert (image / part.file).read_bytes() == lost
    with killed.image({}) as image, eoslog.open(image, read_only=True) as log:
        assert [r.value for r in log.read("a") if r.partition == 0] == A0_VALUES


@pytest.mark.parametrize("mode", ["report", "cut", "skip", "as-kafka"])
@pytest.mark.parametrize("lost", ["flushed", "torn", "nothing"])
def test_repair_restores_carried_records_into_zeros(place: Path, mode: str, lost: str) -> None:
    killed = Killed(place / "d", partial(transactions, preallocate=True))
    part = killed.parts["a-0"]
    kept = {"flushed": part.flushed, "torn": part.flushed + 70, "nothing": len(part.data)}[lost]
    with killed.image({"a-0": part.data[:kept].ljust(CHUNK, b"\0")}) as image:
        before = (image / part.file).read_bytes()
        report = eoslog.repair(image, mode)
        named = [p for p in report.problems if "only in __transaction_state" in p.message]
        assert bool(named) is (lost != "nothing")
        assert not report.torn
        if mode == "report":
            assert (image / part.file).read_bytes() == before
        assert values(image, A0, A1) == [A0_VALUES, A1_VALUES]
        assert_closed(image)
