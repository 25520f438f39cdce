"""Snapshots: complete transactions or none, the greatest cut, never going back."""

from __future__ import annotations

import itertools
import os
import random
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import eoslog
from eoslog import errors
from eoslog.coordinator.transactions.snapshot import closed_cut
from eoslog.coordinator.transactions.state import OffsetSpan
from eoslog.model import TopicPartition
from tests.coordinator.world import A0, A1, B0, World, Writer
from tests.faults.harness import Child, start

PARTITIONS = [A0, A1, B0]


def is_closed(
    cut: dict[TopicPartition, int], transactions: list[dict[TopicPartition, OffsetSpan]]
) -> bool:
    """Each transaction is whole below the cut or wholly not below it."""
    return all(
        all(s.last < cut[tp] for tp, s in t.items())
        or all(s.first >= cut[tp] for tp, s in t.items())
        for t in transactions
    )


def greatest_by_trying(
    ends: dict[TopicPartition, int], transactions: list[dict[TopicPartition, OffsetSpan]]
) -> dict[TopicPartition, int]:
    """The greatest closed cut, by looking at every cut there is."""
    tps = list(ends)
    cuts = [
        dict(zip(tps, point, strict=True))
        for point in itertools.product(*(range(ends[tp] + 1) for tp in tps))
    ]
    closed = [cut for cut in cuts if is_closed(cut, transactions)]
    return {tp: max(cut[tp] for cut in closed) for tp in tps}


spans = st.tuples(st.integers(0, 4), st.integers(0, 3)).map(lambda t: OffsetSpan(t[0], t[0] + t[1]))
worlds = st.tuples(
    st.fixed_dictionaries({tp: st.integers(0, 6) for tp in PARTITIONS}),
    st.lists(st.dictionaries(st.sampled_from(PARTITIONS), spans, min_size=1), max_size=5),
)


@pytest.mark.slow
@given(worlds)
def test_the_snapshot_is_the_greatest_closed_cut(
    world: tuple[dict[TopicPartition, int], list[dict[TopicPartition, OffsetSpan]]],
) -> None:
    ends, transactions = world
    cut = closed_cut(ends, transactions)
    assert is_closed(cut, transactions)
    assert cut == greatest_by_trying(ends, transactions)


def test_a_transaction_blocked_in_one_partition_is_left_out_of_the_snapshot(
    world: World,
) -> None:
    holder, torn, after = (Writer(world, n) for n in ("holder", "torn", "after"))
    after.write(B0, b"v0")
    holder.write(A0, b"u")
    torn.write(A0, b"t")
    torn.write(B0, b"t")
    after.write(B0, b"v1")
    torn.commit()
    after.commit()
    for tp in PARTITIONS:
        world.log(tp).flush()
    assert world.log(B0).last_stable_offset == world.log(B0).log_end
    # T is cut off by U in a-0, so b-0 ends before it; V surrounds it there, so before V too.
    assert world.coordinator.snapshot(PARTITIONS) == {A0: 0, A1: 0, B0: 0}
    assert world.coordinator.snapshot(PARTITIONS, ["b"]) == {B0: 0}
    holder.abort()
    for tp in PARTITIONS:
        world.log(tp).flush()
    assert world.coordinator.snapshot(PARTITIONS) == {
        tp: world.log(tp).log_end for tp in PARTITIONS
    }


def test_transactions_committed_before_the_call_are_in_the_snapshot(any_world: World) -> None:
    writer = Writer(any_world, "t")
    for n in range(3):
        writer.write(A0, b"%d" % n)
        writer.write(B0, b"%d" % n)
        writer.commit()
        cut = any_world.coordinator.snapshot(PARTITIONS)
        for tp in (A0, B0):
            assert cut[tp] > max(
                row[0] for row in any_world.log(tp).model.visible("read_committed")
            )


def test_a_snapshot_completes_decided_transactions_and_leaves_out_blocked(world: World) -> None:
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    writer.write(B0, b"2")
    world.log(A0).flush()
    world.log(B0).flush()
    world.log(A0).broken = errors.DiskFull("no space")
    writer.commit()
    _, other = world.open()
    assert other.snapshot(PARTITIONS) == {A0: 0, A1: 0, B0: 0}
    world.log(A0).broken = None
    assert other.snapshot(PARTITIONS)[A0] >= 1
    assert world.state("t") == "CompleteCommit"


def test_no_decision_is_dropped_while_a_snapshot_runs(world: World) -> None:
    """The snapshot may have read an end below a transaction that is settled since.

    A dropped decision would split that transaction.
    """
    writer = Writer(world, "t")
    writer.write(A0, b"1")
    writer.write(B0, b"1")
    writer.commit()
    for tp in (A0, B0):
        world.log(tp).flush()
    with world.coordinator.logs.cutting():
        assert world.coordinator._admin.prune() == 0
    assert world.coordinator._admin.prune() == 1


@pytest.mark.slow
def test_snapshots_stay_atomic_and_monotonic_while_decisions_are_dropped() -> None:
    """Overlapping transactions at random, with snapshots and pruning by each process."""
    for seed in range(12):
        rng = random.Random(seed)
        world = World()
        coordinators = [world.coordinator, world.open()[1]]
        writers = [Writer(world, f"w{i}", coordinators[i % 2]) for i in range(4)]
        whole: dict[bytes, int] = {}
        seen = dict.fromkeys(PARTITIONS, 0)
        for step in range(120):
            writer = rng.choice(writers)
            tag = b"%s-%d" % (writer.name.encode(), writer.epoch)
            if rng.random() < 0.7 or not writer.spans:
                writer.write(rng.choice(PARTITIONS), tag)
            else:
                count = len(writer.sequences)
                total = sum(writer.sequences.values())
                if rng.random() < 0.8:
                    writer.commit()
                    whole[tag] = total
                else:
                    writer.abort()
                assert count
            if rng.random() < 0.3:
                world.log(rng.choice(PARTITIONS)).flush()
            if rng.random() < 0.2:
                rng.choice(coordinators)._admin.prune()
            if step % 5 == 0:
                cut = rng.choice(coordinators).snapshot(PARTITIONS)
                assert all(cut[tp] >= seen[tp] for tp in PARTITIONS), (seed, step)
                seen = cut
                counts: dict[bytes, int] = {}
                for tp in PARTITIONS:
                    for _, value in world.log(tp).model.visible("read_committed", end=cut[tp]):
                        counts[value] = counts.get(value, 0) + 1
                for tag, count in counts.items():
                    assert count == whole.get(tag), (seed, step, tag)


def test_transactions_of_a_deleted_topic_do_not_affect_its_re_creation(
    tmp_path: Path,
) -> None:
    with eoslog.open(tmp_path / "log") as log, log.producer(transactional_id="t") as producer:
        producer.init_transactions()
        for count in (40, 3):
            log.create_topic("orders")
            with producer.transaction():
                for _ in range(count):
                    producer.produce("orders", b"x", partition=0)
            # Without its marker, which need not be durable yet.
            assert log.snapshot(["orders"])[TopicPartition("orders", 0)] >= count
            if count == 40:
                log.delete_topic("orders")


def cuts_late(child: Child, path: str) -> None:
    """Take a snapshot and stop after reading one of its ends."""
    with eoslog.open(path) as log:
        log.snapshot()
        child.armed()
        child.tell("cut", sorted((tp.partition, end) for tp, end in log.snapshot(["t"]).items()))


def commits(log: eoslog.Log, tag: str) -> None:
    with log.producer(transactional_id="T") as producer:
        producer.init_transactions()
        with producer.transaction() as tx:
            for partition in (0, 1):
                tx.produce("t", tag, partition=partition)


@pytest.mark.process
def test_a_cut_is_atomic_although_its_decisions_are_settled_and_cleaned(tmp_path: Path) -> None:
    """Another process commits to both partitions between the reads of their ends.

    It drops the decision and compacts the coordinator's log. No record is left that links the
    two partitions.
    """
    path = str(tmp_path / "log")
    with eoslog.open(path) as log:
        log.create_topic("t", 2)
        commits(log, "before")
        late = start(cuts_late, path, faults=(("snapshot.end_read", "stop", 1),))
        os.waitid(os.P_PID, late.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        for number in range(8):
            commits(log, f"meanwhile {number}")
        for partition in (0, 1):  # a decision is settled when its markers are durable
            markers = log._engine.partition("t", partition)
            markers.flush(markers.log_end)
        assert any(log.clean("__transaction_state", roll=True).values())
        late.signal(signal.SIGCONT)
        (cut,) = late.end().fine().of("cut")
        ends = {end for _, end in cut}
        assert len(ends) == 1, "both partitions hold the same transactions"
        assert ends <= {2 * (1 + number) for number in range(10)}
