"""The coordinator on real partitions: reopening, killed owners, and readers.

The readers resolve open transactions.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eoslog import _core, errors
from eoslog.config.log_keys import LogConfig
from eoslog.engine.engine import Engine
from eoslog.model import TopicPartition
from tests.coordinator.world import A0, A1, B0, Writer
from tests.waiting import until


class RealWorld:
    """What `Writer` needs of a world, over an Engine.

    Without `background`, only the thread of the test ends transactions and flushes.
    """

    def __init__(
        self, path: Path, durability: str | None = None, config: LogConfig | None = None,
        *, background: bool = True,
    ) -> None:  # fmt: skip
        self.path = path
        self.engine = Engine.open(path, durability=durability, config=config)
        self.coordinator = self.engine.transactions
        if not background:
            self.engine._background.close()

    def create(self) -> RealWorld:
        self.engine.metadata.create_topic("a", 2)
        self.engine.metadata.create_topic("b", 1)
        return self

    def log(self, tp: TopicPartition) -> Any:
        return self.engine.partition(tp.topic, tp.partition)

    def close(self) -> None:
        self.engine.close()

    def values(self, tp: TopicPartition) -> list[bytes]:
        log = self.log(tp)
        bound = log.last_stable_offset
        aborted = log.aborted(log.log_start, bound)
        found = []
        for batch in log.batches(log.log_start, bound):
            if batch.control:
                continue
            if any(p == batch.producer_id and f <= batch.base_offset <= t for p, f, t in aborted):
                continue
            found += [value for offset, _, _, value, _ in batch.records() if offset < bound]
        return found

    def markers(self, tp: TopicPartition) -> list[tuple[int, int, bool]]:
        log = self.log(tp)
        return [
            (b.producer_id, b.producer_epoch, b.control_type == 1)
            for b in log.batches(log.log_start, log.log_end)
            if b.control
        ]


@pytest.fixture(params=["strict", "os"])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealWorld]:
    world = RealWorld(tmp_path / "d", request.param).create()
    yield world
    world.close()


def in_child(run: Callable[[], None], *, kill: bool = True) -> None:
    """Run in a forked process that then dies without a word."""
    pid = os.fork()
    if pid == 0:
        try:
            run()
        except BaseException:  # noqa: BLE001
            import traceback

            traceback.print_exc()
            os._exit(1)
        os.kill(os.getpid(), signal.SIGKILL) if kill else os._exit(0)
    _, status = os.waitpid(pid, 0)
    expected = signal.SIGKILL if kill else 0
    assert status == expected, f"child ended with {status}"


def test_commit_abort_and_fencing_decide_what_real_partitions_show(real: RealWorld) -> None:
    writer = Writer(real, "t")
    writer.write(A0, b"1")
    writer.write(B0, b"2")
    writer.commit()
    writer.write(A0, b"3")
    writer.abort()
    writer.write(A0, b"4")
    follower = Writer(real, "t")
    assert follower.epoch == 4
    with pytest.raises(errors.ProducerFenced):
        writer.commit()
    with pytest.raises(errors.InvalidProducerEpoch):
        writer.append(A0, b"5")
    follower.write(A0, b"6")
    follower.commit()
    assert real.values(A0) == [b"1", b"6"]
    assert real.values(B0) == [b"2"]


def test_a_committed_transaction_survives_reopening_with_its_identity(real: RealWorld) -> None:
    writer = Writer(real, "t")
    writer.write(A0, b"1")
    writer.commit()
    real.close()
    again = RealWorld(real.path)
    try:
        follower = Writer(again, "t")
        assert (follower.producer_id, follower.epoch) == (writer.producer_id, 2)
        assert follower.outcome is not None and follower.outcome.committed
        assert again.values(A0) == [b"1"]
    finally:
        again.close()
        real.engine = Engine.open(real.path)  # for the fixture to close


def test_a_blocked_reader_aborts_the_transaction_of_a_killed_owner(real: RealWorld) -> None:
    real.close()

    def child() -> None:
        world = RealWorld(real.path)
        writer = Writer(world, "t", timeout_ms=900_000)
        writer.write(A0, b"1")
        writer.write(A1, b"2")
        world.log(A0).flush()

    keeper = Engine.open(real.path)  # so that the session does not end with the child
    try:
        keeper.close()
        in_child(child)
    finally:
        real.engine = Engine.open(real.path)
        real.coordinator = real.engine.transactions
    log = real.log(A0)

    def resolve() -> None:
        real.coordinator.resolve_blockers(log)
        log.flush()

    until(lambda: log.last_stable_offset == log.log_end, step=resolve)
    assert real.values(A0) == []
    assert [m[1:] for m in real.markers(A0)] == [(1, False)]
    assert [m[1:] for m in real.markers(A1)] == [(1, False)]
    assert Writer(real, "t").outcome is not None


def test_a_killed_owner_in_a_running_session_is_detected_immediately(real: RealWorld) -> None:
    real.engine._background.close()  # it would look for dead owners, too
    alive = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            world = RealWorld(real.path)
            writer = Writer(world, "t", timeout_ms=900_000)
            writer.write(A0, b"1")
            world.log(A0).flush()
            os.write(alive[1], b"x")
            time.sleep(600)
        finally:
            os._exit(1)
    os.read(alive[0], 1)
    log = real.log(A0)
    assert real.coordinator.resolve_blockers(log) == 0, "its owner lives"
    assert log.last_stable_offset == 0
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert real.coordinator.resolve_blockers(log) == 1
    assert log.stable_end == log.log_end
    assert real.values(A0) == []


def test_two_processes_may_use_one_id_alternately(real: RealWorld) -> None:
    for round_ in range(3):

        def child(round_: int = round_) -> None:
            world = RealWorld(real.path)
            writer = Writer(world, "t")
            writer.write(A0, b"%d" % round_)
            writer.commit()
            writer.write(A0, b"lost")

        in_child(child)
        mine = Writer(real, "t")
        mine.write(B0, b"%d" % round_)
        mine.commit()
    assert real.values(A0) == [b"0", b"1", b"2"]
    assert real.values(B0) == [b"0", b"1", b"2"]


def test_threads_of_two_processes_share_ids_without_a_violation(real: RealWorld) -> None:
    """R21 of docs/contributing/regressions.md."""
    from concurrent.futures import ThreadPoolExecutor

    def work(world: RealWorld, tag: str) -> list[bytes]:
        committed = []
        for i in range(8):
            value = f"{tag}-{i}".encode()
            writer = Writer(world, f"id{i % 2}")
            try:
                writer.write(A0, value)
                writer.write(B0, value)
                writer.commit()
                committed.append(value)
            except (errors.ProducerFenced, errors.ConcurrentTransactions):
                pass
            except (errors.InvalidProducerEpoch, errors.InvalidTxnState):
                pass
        return committed

    def child() -> None:
        world = RealWorld(real.path)
        found = work(world, "child")
        (real.path.parent / "child").write_bytes(b"\n".join(found))
        world.close()

    pid = os.fork()
    if pid == 0:
        try:
            child()
            os._exit(0)
        except BaseException:  # noqa: BLE001
            import traceback

            traceback.print_exc()
            os._exit(1)
    with ThreadPoolExecutor(3) as pool:
        found = [v for row in pool.map(lambda n: work(real, f"t{n}"), range(3)) for v in row]
    assert os.waitpid(pid, 0)[1] == 0
    found += [v for v in (real.path.parent / "child").read_bytes().split(b"\n") if v]
    for name in ("id0", "id1"):
        real.coordinator.init_producer_id(name)
    assert found
    for tp in (A0, B0):
        assert sorted(real.values(tp)) == sorted(found)


def test_a_snapshot_of_real_partitions_splits_no_transaction(real: RealWorld) -> None:
    partitions = [A0, A1, B0]
    holder, writer = Writer(real, "u"), Writer(real, "t")
    writer.write(A0, b"1")
    writer.commit()
    holder.write(A0, b"open")
    writer.write(A0, b"2")
    writer.write(B0, b"2")
    writer.commit()
    cut = real.coordinator.snapshot(partitions)
    assert cut == {A0: 2, A1: 0, B0: 0}
    holder.commit()
    for tp in partitions:
        real.log(tp).flush()
    whole = real.coordinator.snapshot(partitions)
    assert whole == {tp: real.log(tp).log_end for tp in partitions}


def test_transactional_ids_map_to_the_partitions_that_kafka_uses(real: RealWorld) -> None:
    assert real.coordinator.find_coordinator("my-txn").partition == 45
    assert abs(_core.java_hash("tx-1")) % 50 == 20
