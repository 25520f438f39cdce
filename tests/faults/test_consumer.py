"""A consumer that dies at every write and every sync it makes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import eoslog
from eoslog._core import build_marker
from eoslog.model import AppendOrigin, TopicPartition
from eoslog.storage.fs import files
from tests.faults import bodies
from tests.faults.bodies import COUNT
from tests.faults.harness import Child, every_point, live, start
from tests.storage.helpers import batch

pytestmark = pytest.mark.process

LOG_END = 5
"""The point between an append's published end and its stable end."""


def test_A08_committing_first_skips_records_and_never_repeats(filled: Path) -> None:
    skipped = 0
    for _, _, path, life in every_point(lambda c, p: bodies.consume(c, p, True), filled, 5):
        after = live(bodies.consume, path, True).fine()
        processed = life.of("processed") + after.of("processed")
        assert processed == sorted(set(processed))
        skipped += len(processed) < COUNT
    assert skipped


def test_A09_committing_afterwards_repeats_records_and_never_skips(filled: Path) -> None:
    repeated = 0
    for _, _, path, life in every_point(lambda c, p: bodies.consume(c, p, False), filled, 5):
        after = live(bodies.consume, path, False).fine()
        processed = life.of("processed") + after.of("processed")
        assert set(processed) == set(range(COUNT))
        repeated += len(processed) > COUNT
    assert repeated


def test_A07_another_process_resumes_at_the_position_of_a_killed_one(
    filled: Path,
) -> None:
    for _, _, path, life in every_point(lambda c, p: bodies.consume(c, p, False), filled, 5):
        position = live(bodies.look, path).fine().of("position")[0] or 0
        after = live(bodies.consume, path, False).fine()
        assert after.of("processed") == list(range(max(position, 0), COUNT))
        assert max(position, 0) >= len(life.of("processed")) - 1


def test_A11_every_output_appears_once_wherever_the_loop_is_killed(filled: Path) -> None:
    for _, _, path, _ in every_point(lambda c, p: bodies.transform(c, p, step=3), filled, 5):
        before = live(bodies.look, path).fine()
        outputs, position = (
            before.of("out.read_committed")[0],
            max(before.of("position")[0] or 0, 0),
        )
        live(bodies.transform, path).fine()
        after = live(bodies.look, path).fine()
        assert sorted(after.of("out.read_committed")[0]) == [2 * n for n in range(COUNT)]
        assert outputs == [2 * n for n in range(len(outputs))] and position <= COUNT


def test_retention_during_a_read_never_reveals_aborted_records(
    tmp_path: Path,
) -> None:
    """R82: the records are read before their segment and its abort index go."""
    path = tmp_path / "log"

    def write(child: Child) -> None:
        with eoslog.open(path) as log:
            log.create_topic("t")
            with log.producer(transactional_id="x") as producer:
                producer.init_transactions()
                producer.begin_transaction()
                producer.produce("t", b"aborted")
                producer.flush()
                producer.abort_transaction()
                log._engine.partition("t", 0).roll()
                producer.begin_transaction()
                producer.produce("t", b"committed")
                producer.commit_transaction()

    def read(child: Child) -> None:
        with eoslog.open(path) as log, log.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            child.armed()
            record = consumer.poll(60)
            assert record is not None
            child.tell("value", bytes(record.value).decode())

    def delete(child: Child) -> None:
        with eoslog.open(path) as log:
            log.delete_records({TopicPartition("t", 0): 2})

    live(write).fine()
    reader = start(read, faults=(("fetch.read", "stop", 1),))
    os.waitid(os.P_PID, reader.pid, os.WSTOPPED | os.WNOWAIT)
    live(delete).fine()
    os.kill(reader.pid, signal.SIGCONT)
    assert reader.end().fine().of("value") == ["committed"]


def _dies_with_the_marker_published(child: Child, path: Path) -> None:
    with eoslog.open(path) as log:
        partition = log._engine.partition("t", 0)
        data = batch(1, producer_id=7, sequence=0, transactional=True)
        partition.append(data, expect=[(partition, 0)])
        partition.append(batch(1))
        partition.flush()
        files.arm_failpoint("point", "kill", LOG_END)
        partition.append(build_marker(7, 1, False, timestamp=1), origin=AppendOrigin.COORDINATOR)


def test_P09_a_waiting_reader_publishes_the_stable_end_of_a_dead_process(tmp_path: Path) -> None:
    """No process appends: only the waiting reader can notice."""
    with eoslog.open(tmp_path) as log:
        log.create_topic("t", partitions=1)
        assert live(_dies_with_the_marker_published, tmp_path).killed
        partition = log._engine.partition("t", 0)
        assert (partition.log_end, partition.stable_end) == (3, 0)
        with log.consumer("t", auto_offset_reset="earliest") as consumer:
            record = consumer.poll(60)
            assert record is not None and record.offset == 1
        assert partition.stable_end == 3
