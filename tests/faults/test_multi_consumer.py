"""Members of a group are killed or suspended; every record is processed once."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

import eoslog
from eoslog.errors import KafkaError
from tests.faults import bodies
from tests.faults.harness import Child, live, start

pytestmark = pytest.mark.process


PARTITIONS, EACH = 4, 60


def prepare(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        log.create_topic("in", partitions=PARTITIONS)
        log.create_topic("out")
        with log.producer() as producer:
            for number in range(PARTITIONS * EACH):
                producer.produce("in", str(number), partition=number % PARTITIONS)


def work(child: Child, path: Path, name: str, pace: float = 0.0, timeout_ms: int = 300_000) -> None:
    """One worker of the group; ends when all outputs are there, or when it is fenced."""
    total = PARTITIONS * EACH
    with (
        eoslog.open(path) as log,
        log.producer(
            transactional_id=name, linger_ms=0, transaction_timeout_ms=timeout_ms
        ) as producer,
    ):
        producer.init_transactions()
        settings = {
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
        }
        with log.consumer("in", group_id="g", **settings) as consumer:
            child.tell("ready", name)
            while True:
                records = consumer.consume(5, 0.1)
                if not records:
                    if sum(batch.num_rows for batch in log.scan("out")) >= total:
                        return
                    continue
                try:
                    with producer.transaction() as tx:
                        for record in records:
                            tx.produce("out", str(2 * int(record.value)))
                        time.sleep(pace)
                        tx.commit_offsets(consumer)
                except KafkaError as error:
                    child.tell("refused", error.name)
                    if error.fatal:
                        return
                else:
                    child.tell("done", len(records))


def outputs(path: Path) -> list[int]:
    return sorted(live(bodies.look, path).fine().of("out.read_committed")[0])


EXPECTED = [2 * n for n in range(PARTITIONS * EACH)]


def test_A04_a_killed_member_is_replaced_without_loss_or_duplicates(tmp_path: Path) -> None:
    path = tmp_path / "log"
    live(prepare, path).fine()
    workers = [start(work, path, f"w{i}", 0.02) for i in range(3)]
    workers[0].heard("done", 2)
    assert workers[0].kill().killed
    workers.append(start(work, path, "w3", 0.02))
    for worker in workers[1:]:
        worker.end().fine()
    assert outputs(path) == EXPECTED


def test_A15_a_member_suspended_through_a_rebalance_commits_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    live(prepare, path).fine()
    # The outputs are complete only after its open transaction has timed out.
    slow = start(work, path, "slow", 0.05, 10_000)
    slow.heard("done", 2)
    slow.stop()
    try:
        fast = start(work, path, "fast")
        fast.end().fine()  # takes over when the session of the stopped one is over
    finally:
        slow.signal(signal.SIGCONT)
    slow.end().fine()
    assert outputs(path) == EXPECTED


def test_A15_two_members_join_and_leave_in_the_middle_of_the_work(tmp_path: Path) -> None:
    path = tmp_path / "log"
    live(prepare, path).fine()
    first = start(work, path, "first", 0.03)
    first.heard("done", 2)
    second = start(work, path, "second", 0.03)
    first.end().fine()
    second.end().fine()
    assert outputs(path) == EXPECTED


def test_D04_two_processes_with_one_transactional_id_never_both_commit(tmp_path: Path) -> None:
    path = tmp_path / "log"
    live(prepare, path).fine()
    old = start(work, path, "same", 0.05)
    old.heard("done", 2)
    new = start(work, path, "same")
    new.heard("ready")
    assert "refused" in [what[0] for what in old.end().told] or outputs(path) == EXPECTED
    new.end().fine()
    assert outputs(path) == EXPECTED
