"""Repair of partitions whose records are only in decisions.

A process commits small transactions and is killed. Then the partition loses what was not flushed,
or more than that.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import eoslog
from eoslog import _core
from eoslog.errors import CorruptRecord
from tests.coordinator.transactions.carried.test_carried_attacks import FIRST, killed, make
from tests.coordinator.transactions.test_engine import RealWorld
from tests.coordinator.world import A0, A1, Writer

CHANGING = ("cut", "skip", "as-kafka")


def write(world: RealWorld) -> None:
    """Flush offsets 0 to 3, carry 4 to 6; records are at 0, 2, 4 and 6."""
    writer = Writer(world, "t")
    for number in range(2):
        writer.write(A0, b"%d" % number)
        writer.commit()
    world.log(A0).flush()
    for number in range(2, 4):
        writer.write(A0, b"%d" % number)
        writer.write(A1, b"%d" % number)
        writer.commit()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make(tmp_path / "d").close()
    killed(tmp_path / "d", write)
    return tmp_path / "d"


def log_of(path: Path) -> Path:
    return path / "a-0" / FIRST


def start_of(path: Path, offset: int) -> int:
    """Return the byte at which the batch with an offset begins."""
    batches = _core.iter_batches(log_of(path).read_bytes())
    return next(batch.position for batch in batches if batch.base_offset == offset)


def values(path: Path) -> list[bytes]:
    with eoslog.open(path) as log:
        return [record.value or b"" for record in log.read("a", partitions=[0])]


@pytest.mark.parametrize("mode", CHANGING)
@pytest.mark.parametrize(("offset", "torn"), [(4, 0), (4, 30), (6, 0), (6, 60)])
def test_repair_writes_what_only_decisions_have(
    path: Path, mode: str, offset: int, torn: int
) -> None:
    os.truncate(log_of(path), start_of(path, offset) + torn)
    report = eoslog.repair(path, mode)
    assert any("they are written into the partition" in p.message for p in report.problems)
    assert values(path) == [b"0", b"1", b"2", b"3"]


def test_a_report_says_that_the_next_opening_adds_them_and_changes_nothing(path: Path) -> None:
    os.truncate(log_of(path), start_of(path, 4))
    before = log_of(path).read_bytes()
    (problem,) = [p for p in eoslog.repair(path).problems if "a-0" in p.path]
    assert "offsets 4 to 6 are only in __transaction_state" in problem.message
    assert log_of(path).read_bytes() == before
    assert values(path) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("mode", CHANGING)
def test_records_that_were_lost_before_carried_ones_keep_all_offsets(path: Path, mode: str) -> None:
    os.truncate(log_of(path), start_of(path, 2))
    with pytest.raises(CorruptRecord, match="ends at offset 2, but it was durable up to 4"):
        values(path)
    eoslog.repair(path, mode)
    assert values(path) == [b"0"]
    with eoslog.open(path) as log:
        assert log.offsets("a", 0).high_watermark >= 7


def test_a_skip_before_carried_records_keeps_them(path: Path) -> None:
    with log_of(path).open("r+b") as file:
        file.seek(start_of(path, 2) + 65)
        file.write(b"!!")
        file.truncate(start_of(path, 4))
    eoslog.repair(path, "skip")
    assert values(path) == [b"0", b"2", b"3"]


def test_a_repair_that_is_killed_while_it_writes_them_is_repeated(path: Path) -> None:
    os.truncate(log_of(path), start_of(path, 4))
    for call in ("ftruncate", "pwrite", "fdatasync"):
        pid = os.fork()
        if pid == 0:
            try:
                eoslog.storage.fs.files.arm_failpoint(call, "kill")
                eoslog.repair(path, "cut")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    eoslog.repair(path, "cut")
    assert values(path) == [b"0", b"1", b"2", b"3"]
