"""A producer process is killed at each step of its transaction.

The transaction is committed exactly if the decision was durable, in all partitions or in none.
The next `init_producer_id` reports which.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from eoslog import errors
from eoslog.model import TopicPartition
from eoslog.storage.fs import files
from tests.coordinator.transactions.test_engine import RealWorld
from tests.coordinator.world import A0, A1, B0, Writer
from tests.waiting import until

pytestmark = pytest.mark.process

# step, how often it is passed before the kill, whether the transaction of a commit stands
COMMIT_STEPS = [
    ("txn.init.appended", 1, None), ("txn.init.durable", 1, None),
    ("txn.added", 1, False), ("txn.added", 3, False), ("txn.flushed", 1, False),
    ("txn.prepared", 1, True), ("txn.durable", 1, True), ("txn.decided", 1, True),
    ("txn.marked", 1, True), ("txn.marked", 2, True), ("txn.marked", 3, True),
    ("txn.completed", 1, True),
]  # fmt: skip


def run_killed(path: Path, step: str, nth: int, commit: bool) -> None:
    """A child that writes to three partitions, ends, and dies on the way."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            world = RealWorld(path)
            files.arm_failpoint(step, "kill", nth)
            writer = Writer(world, "t", timeout_ms=900_000)
            for tp in (A0, A1, B0):
                writer.write(tp, b"1", b"2")
            writer.end(commit)
            status = 0
        except BaseException as error:  # noqa: BLE001
            print(repr(error), file=sys.stderr)
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert status == signal.SIGKILL, f"{step} was not met: {status}"


@pytest.mark.parametrize("alone", [True, False], ids=["next-session", "same-session"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize(("step", "nth", "stands"), COMMIT_STEPS)
def test_a_transaction_killed_at_any_step_is_complete_or_absent(
    tmp_path: Path, step: str, nth: int, stands: bool | None, commit: bool, alone: bool
) -> None:
    """R27 of docs/contributing/regressions.md."""
    world = RealWorld(tmp_path / "d", "strict", background=False).create()
    if alone:
        world.close()
    run_killed(world.path, step, nth, commit)
    if alone:
        world = RealWorld(world.path, background=False)
    try:
        committed = bool(stands) and commit
        found = Writer(world, "t")
        if stands is None:
            assert found.outcome is None
        else:
            assert found.outcome is not None
            assert found.outcome.committed == committed
        for tp in (A0, A1, B0):
            assert world.values(tp) == ([b"1", b"2"] if committed else [])
            log = world.log(tp)
            assert log.open_transactions() == []
            assert len(world.markers(tp)) == (1 if log.log_end else 0)
        found.write(A0, b"3")
        found.commit()
        assert world.values(A0)[-1:] == [b"3"]
        with pytest.raises(errors.ProducerFenced):
            world.coordinator.end_txn("t", found.producer_id, 0, True)
    finally:
        world.close()


def test_recovery_of_one_partition_that_opens_all_others_does_not_nest(tmp_path: Path) -> None:
    count = 120
    world = RealWorld(tmp_path / "d", "strict")
    world.engine.metadata.create_topic("wide", count)
    world.close()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            world = RealWorld(world.path)
            writer = Writer(world, "t")
            places = [TopicPartition("wide", n) for n in range(count)]
            world.coordinator.add_partitions_to_txn(*writer.identity, places)
            for tp in places:
                writer.write(tp, b"1")
            files.arm_failpoint("txn.durable", "kill")
            writer.commit()
        except BaseException as error:  # noqa: BLE001
            print(repr(error), file=sys.stderr)
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    world = RealWorld(world.path, background=False)
    try:
        # Nothing but a reader's first look at one partition drives the whole transaction.
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(400)
        try:
            assert world.values(TopicPartition("wide", 7)) == [b"1"]
        finally:
            sys.setrecursionlimit(limit)
        (found,) = world.coordinator.describe_transactions(["t"])
        assert found.state == "CompleteCommit"
        for n in (0, 60, count - 1):
            assert world.values(TopicPartition("wide", n)) == [b"1"]
    finally:
        world.close()


def stopped_at(path: Path, step: str) -> int:
    """Start a child that commits in three partitions and is stopped at `step`."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            world = RealWorld(path)
            writer = Writer(world, "t", timeout_ms=900_000)
            for tp in (A0, A1, B0):
                writer.write(tp, b"n")
            files.arm_failpoint(step, "stop")
            assert writer.commit()[1] == 1
            status = 0
        except BaseException as error:  # noqa: BLE001
            print(repr(error), file=sys.stderr)
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), status
    return pid


@pytest.mark.parametrize("step", ["txn.prepared", "txn.durable", "txn.decided", "txn.marked"])
def test_a_suspended_driver_is_overtaken_and_harmless_when_it_resumes(
    tmp_path: Path, step: str
) -> None:
    """R22 of docs/contributing/regressions.md."""
    world = RealWorld(tmp_path / "d", "strict", background=False).create()
    try:
        pid = stopped_at(world.path, step)
        # A reader of one partition drives the stopped process's transaction everywhere.
        log = world.log(A1)
        until(
            lambda: not log.open_transactions(),
            step=lambda: world.coordinator.resolve_blockers(log),
        )
        assert [world.values(tp) for tp in (A0, A1, B0)] == [[b"n"]] * 3
        # The next transaction of the same producer is half way in all of them.
        follower = Writer.__new__(Writer)
        follower.world, follower.name, follower.coordinator = world, "t", world.coordinator
        (found,) = world.coordinator.describe_transactions(["t"])
        follower.become(found.producer_id, found.producer_epoch)
        for tp in (A0, A1, B0):
            follower.write(tp, b"n+1")
        os.kill(pid, signal.SIGCONT)
        assert os.waitpid(pid, 0)[1] == 0, "its commit succeeded"
        for tp in (A0, A1, B0):
            assert [m[1:] for m in world.markers(tp)] == [(1, True)]
            assert world.values(tp) == [b"n"]
        follower.abort()
        assert [world.values(tp) for tp in (A0, A1, B0)] == [[b"n"]] * 3
    finally:
        world.close()
