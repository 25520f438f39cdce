"""The decision of a small commit carries the data instead of a flush."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from eoslog import _core, errors
from eoslog.coordinator.transactions.commit import CARRIED_BYTES
from eoslog.model import TopicPartition
from eoslog.storage.fs import files
from tests.coordinator.transactions.carried.carried_images import LATE, carried_rows, late_world
from tests.coordinator.transactions.test_engine import RealWorld
from tests.coordinator.transactions.test_kills import run_killed
from tests.coordinator.world import A0, A1, B0, Writer
from tests.waiting import until

PARTITIONS = (A0, A1, B0)


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealWorld]:
    world = late_world(tmp_path / "d")
    world.engine._background.close()  # it would flush the coordinator's log at any moment
    yield world
    files.disarm_failpoints()
    world.close()


@pytest.mark.parametrize("partitions", [1, 2, 10])
def test_a_commit_of_small_batches_makes_one_fdatasync(real: RealWorld, partitions: int) -> None:
    real.engine.metadata.create_topic("wide", partitions, LATE)
    writer = Writer(real, "t")
    for number in range(partitions):
        writer.write(TopicPartition("wide", number), b"1")
    _core.fault_count("fdatasync", reset=True)
    writer.commit()
    assert _core.fault_count("fdatasync") == 1
    for number in range(partitions):
        tp = TopicPartition("wide", number)
        assert real.values(tp) == [b"1"]
        assert real.log(tp).flushed_end == 0


def test_records_that_a_decision_carries_are_below_the_high_watermark(real: RealWorld) -> None:
    writer = Writer(real, "t")
    writer.write(A0, b"1", b"2")
    assert real.log(A0).high_watermark == 0
    writer.commit()
    assert (real.log(A0).high_watermark, real.log(A0).flushed_end) == (2, 0)
    assert real.log(A0).log_end == 3, "the marker may be lost"
    real.log(A0).flush()
    assert (real.log(A0).high_watermark, real.log(A0).flushed_end) == (3, 3)


def test_an_abort_carries_nothing(real: RealWorld) -> None:
    writer = Writer(real, "t")
    writer.write(A0, b"1")
    writer.abort()
    assert not any(carried_rows(real, "t"))
    assert real.log(A0).high_watermark == 0


@pytest.mark.parametrize("spare", [-1, 0])
def test_a_decision_carries_32_KiB_and_no_more(real: RealWorld, spare: int) -> None:
    writer = Writer(real, "t")
    writer.write(A0, b"1")
    size = real.log(A0).core.end_position
    writer.write(A1, bytes(CARRIED_BYTES))
    over = real.log(A1).core.end_position - CARRIED_BYTES
    writer.abort()
    for tp in (A0, A1):
        real.log(tp).flush()
    writer.write(A0, b"1")
    # The varints of the batch take as many bytes for this length.
    writer.write(A1, bytes(CARRIED_BYTES - size - over + 1 + spare))
    writer.commit()
    carried = spare < 0
    assert (max(carried_rows(real, "t")) > 0) == carried
    for tp in (A0, A1):
        log = real.log(tp)
        assert (log.flushed_end < log.high_watermark) == carried
        assert log.high_watermark == log.log_end - 1


def test_large_transactions_in_a_row_are_not_read_in_vain(real: RealWorld) -> None:
    writer = Writer(real, "t")
    reads = []
    for _ in range(3):
        writer.write(A0, bytes(2 * CARRIED_BYTES))
        _core.fault_count("pread", reset=True)
        writer.commit()
        reads.append(_core.fault_count("pread"))
    assert reads[0] > 0
    assert reads[1:] == [0, 0]
    assert not any(carried_rows(real, "t"))
    writer.write(A0, b"1")
    writer.commit()
    assert max(carried_rows(real, "t")) > 0, "a small one is carried again"


def test_a_decision_in_an_os_directory_carries_nothing(tmp_path: Path) -> None:
    world = late_world(tmp_path / "os", "os")
    try:
        writer = Writer(world, "t")
        writer.write(A0, b"1")
        writer.commit()
        assert not any(carried_rows(world, "t"))
        assert world.values(A0) == [b"1"]
    finally:
        world.close()


def test_a_commit_over_a_poisoned_partition_is_rejected(real: RealWorld) -> None:
    """Its pages may be lost already, although the page cache shows them."""
    writer = Writer(real, "t")
    writer.write(A0, b"1")
    writer.write(B0, b"2")
    files.arm_failpoint("fdatasync", "EIO")
    with pytest.raises(errors.LogPoisoned):
        real.log(A0).flush()
    with pytest.raises(errors.LogPoisoned):
        writer.commit()
    assert not any(carried_rows(real, "t"))
    assert real.values(B0) == []


def test_a_batch_whose_bytes_are_damaged_is_not_carried(real: RealWorld) -> None:
    """After a failed writeback, a page may show older bytes."""
    writer = Writer(real, "t")
    writer.write(A0, b"damaged")
    file = real.path / "a-0" / f"{0:020}.log"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    with file.open("r+b") as handle:
        handle.write(data)
    writer.commit()
    assert not any(carried_rows(real, "t"))


def test_a_commit_over_a_roll_is_durable(real: RealWorld) -> None:
    """A decision carries one segment, or the partition is flushed."""
    writer = Writer(real, "t")
    writer.write(A0, b"1")
    real.log(A0).roll()
    writer.write(A0, b"2")
    writer.commit()
    assert real.log(A0).high_watermark >= 2
    assert real.values(A0) == [b"1", b"2"]


def test_the_next_decision_carries_from_the_high_watermark_on(real: RealWorld) -> None:
    """Nothing else makes the marker of the first transaction durable."""
    writer = Writer(real, "t")
    for value in (b"1", b"2"):
        writer.write(A0, value)
        writer.commit()
    clog = real.engine.transactions.logs.of("t")
    found = [list(clog.carried(d, A0)) for d in clog.decisions() if d.commit]
    firsts = [part.first for parts in found for part in parts]
    ends = [
        batch.last_offset + 1
        for parts in found
        for part in parts
        for batch in list(_core.iter_batches(part.data))[-1:]
    ]
    assert firsts == [0, 1]
    assert ends == [1, 3]


def test_a_failed_flush_after_a_commit_does_not_take_it_back(tmp_path: Path) -> None:
    """The background flush gets EIO, and the coordinator's log has the records."""
    path = tmp_path / "d"
    world = RealWorld(path, "strict")
    try:
        background = world.engine._background
        background.close()  # its thread; the test takes the steps
        world.engine.metadata.create_topic("a", 1, {**LATE, "flush.ms": "10"})
        writer = Writer(world, "t")
        writer.write(A0, b"1")
        writer.commit()
        log = world.log(A0)
        assert log.flushed_end == 0
        world.engine.transaction_partition("t").flush()
        files.arm_failpoint("fdatasync", "EIO")
        until(lambda: log.core.poisoned, step=background.step)
        assert world.values(A0) == [b"1"]
        with pytest.raises(errors.LogPoisoned):
            log.flush()
    finally:
        files.disarm_failpoints()
        world.close()
    # The kernel drops what it could not write.
    (path / "a-0" / f"{0:020}.log").write_bytes(b"")
    world = RealWorld(path)
    try:
        assert world.values(A0) == [b"1"]
        assert Writer(world, "t").outcome.committed
    finally:
        world.close()


@pytest.mark.process
@pytest.mark.parametrize(
    ("step", "end"), [("txn.prepared", 0), ("txn.durable", 0), ("txn.decided", 1)]
)
def test_carried_records_count_only_after_their_decision_is_durable(
    tmp_path: Path, step: str, end: int
) -> None:
    world = late_world(tmp_path / "d")
    world.engine._background.close()  # it would make a dead process's decision durable
    try:
        logs = [world.log(tp) for tp in PARTITIONS]
        run_killed(world.path, step, 1, True)
        assert [log.high_watermark for log in logs] == [2 * end] * 3
        assert [log.flushed_end for log in logs] == [0] * 3
    finally:
        world.close()


@pytest.mark.process
@pytest.mark.parametrize(
    ("step", "nth"),
    [("txn.prepared", 1), ("txn.durable", 1), ("txn.decided", 1), ("txn.marked", 1),
     ("txn.marked", 2), ("txn.marked", 3), ("txn.completed", 1)],
)  # fmt: skip
@pytest.mark.parametrize("first", PARTITIONS)
def test_others_read_a_transaction_whole_after_its_owner_was_killed(
    tmp_path: Path, step: str, nth: int, first: TopicPartition
) -> None:
    """Each partition's records are covered before its marker shows them."""
    world = late_world(tmp_path / "d")
    try:
        for tp in PARTITIONS:
            world.log(tp)  # open, so that nothing recovers it
        run_killed(world.path, step, nth, True)
        for tp in (first, *PARTITIONS):
            log = world.log(tp)
            world.coordinator.resolve_blockers(log)
            assert log.open_transactions() == []
            assert log.high_watermark >= 2
            assert world.values(tp) == [b"1", b"2"]
    finally:
        world.close()
