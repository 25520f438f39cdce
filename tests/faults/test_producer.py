"""A producer is killed, or its calls fail, at each of its writes and syncs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import eoslog
from tests.faults import bodies
from tests.faults.bodies import COUNT
from tests.faults.harness import Child, every_point, live, start

pytestmark = pytest.mark.process


def seen(path: Path, what: str = "in.read_committed") -> list[int]:
    found: list[int] = live(bodies.look, path).fine().of(what)[0]
    return found


def test_A01_acks_0_loses_records_and_never_repeats(empty: Path) -> None:
    lost = 0
    for _, _, path, life in every_point(
        lambda c, p: bodies.produce(c, p, 0, enable_idempotence=False), empty, 8
    ):
        found = seen(path)
        assert found == sorted(set(found))
        lost += life.killed and len(found) < COUNT
    assert lost


def test_A02_resending_without_idempotence_repeats_and_loses_nothing(empty: Path) -> None:
    repeated = 0
    for _, _, path, life in every_point(
        lambda c, p: bodies.produce(c, p, enable_idempotence=False), empty, 8
    ):
        live(bodies.produce, path, "all", len(life.of("acked"))).fine()
        found = seen(path)
        assert set(found) == set(range(COUNT))
        repeated += len(found) > COUNT
    assert repeated


def test_A03_a_killed_worker_loses_and_repeats_nothing_at_any_point(filled: Path) -> None:
    for _, _, path, _ in every_point(bodies.transform, filled, 5):
        live(bodies.transform, path).fine()
        found = live(bodies.look, path).fine()
        assert sorted(found.of("out.read_committed")[0]) == [2 * n for n in range(COUNT)]
        assert found.of("position") == [COUNT] and found.of("open") == [[]]


def test_B02_an_acknowledged_record_survives_a_kill(empty: Path) -> None:
    for acks in (1, "all"):
        for _, _, path, life in every_point(
            lambda c, p, acks=acks: bodies.produce(c, p, acks, enable_idempotence=False), empty, 6
        ):
            acked = life.of("acked")
            assert seen(path)[: len(acked)] == acked
    assert acked


def test_A24_a_transaction_is_atomic_wherever_its_producer_is_killed(empty: Path) -> None:
    outcomes = set()
    for _, _, path, life in every_point(bodies.transact, empty, 5):
        outcome = live(bodies.settle, path).fine().of("outcome")[0]
        found = live(bodies.look, path).fine()
        committed, told, tried = (
            found.of("in.read_committed")[0],
            life.of("committed"),
            life.of("committing"),
        )
        assert committed == found.of("out.read_committed")[0]
        assert told == committed[: len(told)] and committed == tried[: len(committed)]
        assert found.of("open") == [[]]
        if (
            tried != told
        ):  # died while committing: the outcome that init reports is the one that readers see
            assert (outcome is True) == (tried == committed)
            outcomes.add(outcome)
    assert outcomes


def test_E20_D05_the_decision_is_the_commit_point(empty: Path) -> None:
    """A kill after the decision commits, a kill before it aborts."""
    decided = {True: 0, False: 0}
    for _, _, path, life in every_point(bodies.transact, empty, 24, calls=("pwrite",)):
        if life.of("committing") == life.of("committed"):
            continue
        number = life.of("committing")[-1]
        live(bodies.settle, path).fine()
        found = live(bodies.look, path).fine()
        whole = number in found.of("in.read_committed")[0]
        assert whole == (number in found.of("out.read_committed")[0])
        assert number in found.of("in.read_uncommitted")[0] or not whole
        decided[whole] += 1
        if all(decided.values()):
            break
    assert decided[True] and decided[False]


def test_D02_an_assigned_producer_id_is_known_after_a_kill(empty: Path) -> None:
    def init(child, path):  # type: ignore[no-untyped-def]
        import eoslog

        with eoslog.open(path) as log, log.producer(transactional_id="tx") as producer:
            producer.init_transactions()
            child.tell("id", [producer.producer_id, producer.producer_epoch])
            coordinator = log._engine.transaction_partition("tx")
            child.tell("durable", coordinator.durable_end == coordinator.log_end > 0)
            child.armed()
            import os
            import signal

            if life:
                os.kill(os.getpid(), signal.SIGKILL)

    life = 1
    first = live(init, empty)
    assert first.killed
    life = 0
    second = live(init, empty).fine()
    (pid, epoch), (pid_after, epoch_after) = first.of("id")[0], second.of("id")[0]
    assert pid_after == pid and epoch_after > epoch
    assert first.of("durable") == second.of("durable") == [True]


@pytest.mark.parametrize(
    ("point", "commit", "whole"),
    [("txn.flushed", True, False), ("txn.decided", True, True), ("txn.decided", False, False)],
)
def test_D05_init_completes_the_transaction_of_a_dead_instance(
    empty: Path, point: str, commit: bool, whole: bool
) -> None:
    """Died in Ongoing, in PREPARE_COMMIT and in PREPARE_ABORT."""

    def dies(child, path):  # type: ignore[no-untyped-def]
        import eoslog

        with eoslog.open(path) as log, log.producer(transactional_id="tx", linger_ms=0) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for topic in ("in", "out"):
                producer.produce(topic, "1")
            producer.flush()
            child.armed()
            producer.commit_transaction() if commit else producer.abort_transaction()

    def follows(child, path):  # type: ignore[no-untyped-def]
        import eoslog

        with eoslog.open(path) as log, log.producer(transactional_id="tx") as producer:
            outcome = producer.init_transactions()
            child.tell("committed", outcome.committed)
            child.tell("open", len(log.transactions()))

    assert live(dies, empty, faults=((point, "kill", 1),)).killed
    after = live(follows, empty).fine()
    assert (after.of("committed"), after.of("open")) == ([whole], [0])
    assert seen(empty) == seen(empty, "out.read_committed") == ([1] if whole else [])


def test_J02_markers_are_written_again_after_the_driver_is_killed_twice(empty: Path) -> None:
    """The recovery of a transaction is itself killed at each of its writes.

    R51 of docs/contributing/regressions.md.
    """
    import shutil

    halfway = None
    for _, _, path, life in every_point(bodies.transact, empty, 24, calls=("pwrite",)):
        if len(life.of("committing")) > len(life.of("committed")) == 1:
            halfway = empty.parent / "halfway"
            shutil.rmtree(halfway, ignore_errors=True)
            shutil.copytree(path, halfway)
            break
    assert halfway is not None

    def recover(child, path):  # type: ignore[no-untyped-def]
        child.armed()
        bodies.settle(child, path)

    for _, _, path, _ in every_point(recover, halfway, 4):
        live(bodies.settle, path).fine()
        found = live(bodies.look, path).fine()
        assert found.of("in.read_committed") == found.of("out.read_committed")
        assert found.of("open") == [[]]


def test_K05_a_blocked_reader_completes_a_decided_transaction(empty: Path) -> None:
    """Its producer is dead and no process calls `init_transactions` for it."""
    driven = 0
    for _, _, path, life in every_point(bodies.transact, empty, 24, calls=("pwrite",)):
        if len(life.of("committing")) == len(life.of("committed")):
            continue
        found = live(bodies.look, path).fine()
        committed = found.of("in.read_committed")[0]
        assert committed == found.of("out.read_committed")[0]
        driven += committed[-1:] == life.of("committing")[-1:]
        if driven:
            break
    assert driven


@pytest.mark.parametrize("point", ["flush.before", "flush.after"])
def test_a_flush_of_a_deleted_topic_raises_and_poisons_nothing(empty: Path, point: str) -> None:
    """By another process, while this one is about to sync."""

    def write(child: Child, path: Path) -> None:
        with eoslog.open(path) as log:
            log.create_topic("gone", config={"flush.ms": 600_000})
            partition = log._engine.partition("gone", 0)
            with log.producer(linger_ms=0, enable_idempotence=False) as producer:
                child.armed()
                delivery = producer.send("gone", value="v")
                error = delivery.exception(60)
                child.tell("error", type(error).__name__)
            child.tell("poisoned", partition.core.poisoned)

    def delete(child: Child, path: Path) -> None:
        with eoslog.open(path) as log:
            log.delete_topic("gone")

    running = start(write, empty, faults=((point, "stop", 1),))
    os.waitid(os.P_PID, running.pid, os.WSTOPPED | os.WNOWAIT)
    live(delete, empty).fine()
    os.kill(running.pid, signal.SIGCONT)
    life = running.end().fine()
    assert life.of("error") == [
        "UnknownTopicOrPartition" if point == "flush.before" else "NoneType"
    ]
    assert life.of("poisoned") == [False]
