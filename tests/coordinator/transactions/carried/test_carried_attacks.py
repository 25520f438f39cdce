"""Attacks on the carried commit: power losses around real kills.

A child process works and is killed. Then files of the data partitions lose what was not flushed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from eoslog import errors
from eoslog.admin.backup import backup
from eoslog.coordinator.transactions import commit
from eoslog.engine.engine import Engine
from eoslog.model import TopicPartition
from eoslog.storage.fs import files
from tests.coordinator.transactions.carried.carried_images import lose_from, without_zeros
from tests.coordinator.transactions.test_engine import RealWorld, in_child
from tests.coordinator.world import A0, A1, B0, Writer

FIRST = f"{0:020}.log"


def make(path: Path, **config: str) -> RealWorld:
    """A strict directory whose background flushes nothing."""
    world = RealWorld(path, "strict")
    slow = {"flush.ms": str(1 << 40), "segment.ms": str(1 << 60), **config}
    world.engine.metadata.create_topic("a", 2, slow)
    world.engine.metadata.create_topic("b", 1, slow)
    return world


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The directory of `make`, closed."""
    make(tmp_path / "d").close()
    return tmp_path / "d"


def image_of(path: Path) -> Path:
    """A copy of a directory in place of the last one."""
    to = path.parent / "image"
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(path, to)
    return to


def commit_all(writer: Writer, *records: tuple[TopicPartition, bytes]) -> None:
    """Commit a transaction of some records."""
    for tp, value in records:
        writer.write(tp, value)
    writer.commit()


def killed(path: Path, work: Callable[[RealWorld], object]) -> None:
    """Work in a process of its own, which dies at the end."""

    def run() -> None:
        world = RealWorld(path)
        world.engine._background.close()  # only the work flushes
        work(world)

    in_child(run)


def lose(path: Path, tp: TopicPartition, size: int, base: int = 0) -> None:
    """The file of a partition ends at a size, as after a power loss."""
    file = path / f"{tp.topic}-{tp.partition}" / f"{base:020}.log"
    assert file.stat().st_size > size
    os.truncate(file, size)


def commits(world: RealWorld) -> None:
    """Commit twice; the second decision flushes COMPLETE of the first."""
    writer = Writer(world, "t")
    commit_all(writer, (A0, b"1"))
    assert world.log(A0).durable_end < world.log(A0).high_watermark
    commit_all(writer, (B0, b"2"))


def test_prune_keeps_the_decisions_of_a_partition_that_does_not_open(path: Path) -> None:
    killed(path, commits)
    lose(path, A0, 0)
    lose(path, B0, 0)
    world = RealWorld(path)
    try:
        assert world.values(B0) == [b"2"]
        (clog,) = world.coordinator.logs.all()
        for act in (lambda: world.log(A0), lambda: world.coordinator.uncleanable_offset(0)):
            files.arm_failpoint("pwrite", "ENOSPC")  # the disk is full while a-0 is opened
            with contextlib.suppress(errors.StorageError):
                act()
        files.disarm_failpoints()
        (decision,) = [d for d in clog.decisions() if A0 in d.spans]
        assert world.coordinator.uncleanable_offset(clog.log.partition) <= decision.offset
        assert world.values(A0) == [b"1"]
    finally:
        files.disarm_failpoints()
        world.close()


def roll_inside(world: RealWorld) -> None:
    """Commit a transaction with a batch in each of two segments."""
    writer = Writer(world, "t")
    writer.write(A0, b"1" * 100)
    world.log(A0).roll()
    commit_all(writer, (A0, b"2"))
    assert world.log(A0).durable_end == 0 < world.log(A0).high_watermark


def test_a_roll_inside_a_slice_with_a_lost_head_is_written_again(tmp_path: Path) -> None:
    for losing in (((0, 0), (1, 0)), ((0, 0),), ((1, 0),), ((0, 50),)):
        path = tmp_path / f"d{losing[0][0]}{len(losing)}{losing[0][1]}"
        make(path).close()
        killed(path, roll_inside)
        for base, size in losing:
            lose(path, A0, size, base)
        for _ in range(3):
            world = RealWorld(path)
            assert world.values(A0) == [b"1" * 100, b"2"]
            Writer(world, "t")
            world.close()


def test_a_log_that_is_closed_after_the_decision_does_not_fail_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread closes the log between decision and marker."""
    world = make(tmp_path / "d")
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    monkeypatch.setattr(commit, "failpoint", lambda at: world.close() if at == "txn.durable" else 0)
    writer.commit()
    again = RealWorld(tmp_path / "d")
    assert again.values(A0) == [b"1"]
    again.close()


def test_a_recovery_that_is_killed_at_any_call_restores_all_the_same(path: Path) -> None:
    """It also loses the power: of what recovery wrote, only the synced part stays."""

    def work(world: RealWorld) -> None:
        writer = Writer(world, "t")
        commit_all(writer, (A0, b"1"), (A1, b"2"))
        commit_all(writer, (A0, b"3"))
        commit_all(writer, (B0, b"4"), (A1, b"5"))

    killed(path, work)
    for call in ("pwrite", "fdatasync", "ftruncate", "fsync"):
        for nth in range(1, 40):
            image = image_of(path)
            for tp in (A0, A1, B0):
                lose(image, tp, 3 if tp == A1 else 0)

            died = False
            pid = os.fork()
            if pid == 0:
                try:
                    files.arm_failpoint(call, "kill-after", nth)
                    world = RealWorld(image)
                    for tp in (A0, A1, B0):
                        world.log(tp)
                    files.disarm_failpoints()
                finally:
                    os._exit(0)
            died = os.waitpid(pid, 0)[1] != 0
            world = RealWorld(image, background=False)
            try:
                got = [world.values(tp) for tp in (A0, A1, B0)]
                assert got == [[b"1", b"3"], [b"2", b"5"], [b"4"]], (call, nth)
            finally:
                world.close()
            if not died:
                break
    assert nth < 39


def test_a_torn_decision_is_not_a_decision(path: Path) -> None:
    """C's last batch is torn at each 64th byte: the transaction is aborted."""
    ends = []

    def work(world: RealWorld) -> None:
        writer = Writer(world, "t")
        commit_all(writer, (A0, b"0"))
        writer.write(A0, b"1")
        writer.write(A1, b"2" * 500)
        files.arm_failpoint("txn.prepared", "kill")
        writer.commit()

    killed(path, work)
    (c,) = [p for p in path.glob("__transaction_state-*/*.log") if p.stat().st_size]
    size = len(without_zeros(c.read_bytes()))
    for cut in range(size - 700, size + 1, 50):
        image = image_of(path)
        lose_from(image / c.relative_to(path), cut)
        lose(image, A0, 0)
        if cut % 100:
            lose(image, A1, 0)
        world = RealWorld(image, background=False)
        try:
            got = [world.values(tp) for tp in (A0, A1)]
            ends.append(got[1])
            assert got in ([[b"0"], []], [[b"0", b"1"], [b"2" * 500]]), cut
        finally:
            world.close()
    assert [b"2" * 500] in ends and [] in ends


def test_a_poisoned_partition_gets_its_carried_batches_back(path: Path) -> None:
    def work(world: RealWorld) -> None:
        other = Writer(world, "u")
        other.write(A0, b"open")  # is in the slice of t, and undecided
        writer = Writer(world, "t")
        commit_all(writer, (A0, b"1"))
        files.arm_failpoint("fdatasync", "EIO")
        with pytest.raises(errors.LogPoisoned):
            world.log(A0).flush()
        commit_all(writer, (B0, b"2"))
        with pytest.raises(errors.LogPoisoned):
            writer.write(A0, b"3")

    killed(path, work)
    size = (path / "a-0" / FIRST).stat().st_size
    for kept in range(0, size, 37):
        image = image_of(path)
        with (image / "a-0" / FIRST).open("r+b") as file:  # lost pages are zeros
            file.seek(kept)
            file.write(bytes(size - kept))
        for _ in range(2):
            world = RealWorld(image, background=False)
            try:
                assert world.values(A0) == [b"1"]
                assert world.values(B0) == [b"2"]
                assert world.log(A0).open_transactions() == []
            finally:
                world.close()


@pytest.mark.parametrize("survives", [True, False])
def test_an_unknown_commit_is_whole_or_nothing(path: Path, survives: bool) -> None:
    def work(world: RealWorld) -> None:
        writer = Writer(world, "t")
        commit_all(writer, (A0, b"1"))
        writer.write(A0, b"2")
        writer.write(A1, b"3")
        files.arm_failpoint("fdatasync", "EIO")
        with pytest.raises(errors.CommitOutcomeUnknown):
            writer.commit()
        assert world.values(A0) == [b"1"]
        assert world.values(A1) == []
        assert world.log(A1).high_watermark == 0

    killed(path, work)
    image = image_of(path)
    (c,) = [p for p in image.glob("__transaction_state-*/*.log") if p.stat().st_size]
    if not survives:
        lose_from(c, len(without_zeros(c.read_bytes())) - 300)
    lose(image, A0, 0)
    lose(image, A1, 0)
    world = RealWorld(image, background=False)
    try:
        found = Writer(world, "t")
        assert found.outcome is not None and found.outcome.committed == survives
        assert world.values(A0) == [b"1", b"2"][: 1 + survives]
        assert world.values(A1) == [b"3"][:survives]
    finally:
        world.close()


def test_a_backup_has_what_is_only_carried(tmp_path: Path) -> None:
    world = make(tmp_path / "d")
    commit_all(Writer(world, "t"), (A0, b"1"), (A1, b"2"))
    assert world.log(A0).durable_end == 0
    backup(world.engine, str(tmp_path / "copy"), check=True, progress=None)
    world.close()
    again = RealWorld(tmp_path / "copy")
    assert again.values(A0) == [b"1"] and again.values(A1) == [b"2"]
    again.close()


def test_a_reader_alone_refuses_a_partition_that_lacks_batches_and_no_other(path: Path) -> None:
    killed(path, commits)
    image = image_of(path)
    reader = Engine.open(image, read_only=True)
    assert reader.partition("a", 0).log_end >= 1  # the processes died, the power did not go
    assert reader.partition("b", 0).log_end >= 1
    reader.close()
    lose(image, A0, 0)
    reader = Engine.open(image, read_only=True)
    with pytest.raises(errors.StorageError):
        reader.partition("a", 0)
    assert reader.partition("b", 0).log_end >= 1
    reader.close()


def test_a_slow_flush_does_not_keep_all_decisions(tmp_path: Path) -> None:
    """The topic has Kafka's own default of flush.ms."""
    world = make(tmp_path / "d")
    try:
        writer = Writer(world, "t")
        for _ in range(1200):
            commit_all(writer, (A0, b"x" * 2000))
        kept = [len(clog.decisions()) for clog in world.coordinator.logs.all()]
        assert max(kept) < 700
    finally:
        world.close()


def test_commits_continue_while_a_partition_of_an_older_one_does_not_open(path: Path) -> None:
    def work(world: RealWorld) -> None:
        writer = Writer(world, "t")
        commit_all(writer, (A0, b"1"))
        world.log(A0).flush()
        commit_all(writer, (A0, b"2"))

    killed(path, work)
    with (path / "a-0" / FIRST).open("r+b") as file:
        file.seek(65)
        file.write(b"\xff")
    world = RealWorld(path)
    try:
        with pytest.raises(errors.CorruptRecord):
            world.log(A0)
        writer = Writer(world, "u")
        for _ in range(600):
            commit_all(writer, (B0, b"2"))  # the 512th raises, although it is decided
    finally:
        world.close()


def test_a_power_loss_in_a_recovery_that_drops_a_segment_is_recovered(
    path: Path,
) -> None:
    """Recovery drops segment 1, and writes its batches into segment 0.

    The removal of the names is not synced before that, so a power loss may undo it.
    """
    killed(path, roll_inside)
    lose(path, A0, 0)
    second = [p for p in (path / "a-0").iterdir() if p.name.startswith(f"{1:020}")]

    def recovered(call: str, action: str, nth: int) -> tuple[bool, bool]:
        """Recover until a call; whether segment 1 exists, and segment 0 has bytes."""
        image = image_of(path)
        pid = os.fork()
        if pid == 0:
            try:
                files.arm_failpoint(call, action, nth)
                RealWorld(image).log(A0)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        folder = image / "a-0"
        return (folder / second[0].name).exists(), (folder / FIRST).stat().st_size > 0

    # Is there a sync of a folder between the removal and the write?
    synced = any(recovered("fsync", "kill", nth) == (False, False) for nth in range(1, 40))
    nth = next(n for n in range(1, 60) if recovered("fdatasync", "kill-after", n)[1])
    assert recovered("fdatasync", "kill-after", nth) == (False, True)
    image = path.parent / "image"
    for file in () if synced else second:
        (image / "a-0" / file.name).write_bytes(file.read_bytes())
    for _ in range(2):
        world = RealWorld(image, background=False)
        try:
            assert world.values(A0) == [b"1" * 100, b"2"]
            commit_all(Writer(world, "t"), (A1, b"3"))
        finally:
            world.close()
