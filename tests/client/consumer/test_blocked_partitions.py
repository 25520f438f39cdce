"""A consumer without records names the process that blocks it, once per wait."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import eoslog
from eoslog import Log, TopicPartition
from eoslog.client.consumer import blocked_partitions
from tests.admin.blocking_process import OPEN_TRANSACTION, BlockingProcess
from tests.waiting import until

pytestmark = pytest.mark.process
ONE = TopicPartition("one", 0)
OPEN_OFFSETS = """
producer = log.producer(transactional_id="x")
producer.init_transactions()
producer.begin_transaction()
producer.send_offsets_to_transaction({eoslog.TopicPartition("one", 0): 1}, "g")
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def log(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    monkeypatch.setattr(blocked_partitions, "_AFTER_S", 0.2)
    monkeypatch.setattr(blocked_partitions, "_EVERY_S", 0.05)
    with eoslog.open(tmp_path / "log") as opened:
        opened.create_topic("one")
        yield opened


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        r.getMessage()
        for r in caplog.records
        if r.levelno == logging.WARNING and "no records for" in r.getMessage()
    ]


@pytest.mark.parametrize(
    ("lines", "waited_for"),
    [
        (OPEN_TRANSACTION, "waiting for the records from offset 0: "),
        (OPEN_OFFSETS, "waiting for the committed offset of group 'g': "),
    ],
    ids=["records", "offsets"],
)
@pytest.mark.parametrize("way", ["assign", "subscribe"])
def test_a_suspended_transaction_that_blocks_a_consumer_is_named_once(
    log: Log, caplog: pytest.LogCaptureFixture, lines: str, waited_for: str, way: str
) -> None:
    with BlockingProcess(log.path, lines) as other:
        with log.producer() as producer:
            producer.produce("one", "after")
        with log.consumer(group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.assign([ONE]) if way == "assign" else consumer.subscribe(["one"])
            assert consumer.consume(5, timeout=1) == []
            assert warnings(caplog) == []  # it runs, and may end its transaction
            other.stop()
            until(lambda: consumer.consume(5, timeout=0.2) == [] and warnings(caplog))
            (said,) = warnings(caplog)
            assert said.startswith("one-0: no records for ")
            assert waited_for in said
            assert f"by process {other.pid} (" in said
            assert "stopped)" in said
            assert f"to end the wait, run: kill -CONT {other.pid}" in said
            for _ in range(20):
                consumer.poll(0.05)
            assert len(warnings(caplog)) == 1
            os.kill(other.pid, signal.SIGCONT)
            other.kill()
            assert consumer.consume(1, timeout=60)[0].value == b"after"


def test_a_new_wait_at_another_offset_is_named_again(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([ONE])
        for count in (1, 2):
            with BlockingProcess(log.path, OPEN_TRANSACTION) as other:
                other.stop()
                until(
                    lambda: (
                        consumer.consume(5, timeout=0.2) == [] and len(warnings(caplog)) == count
                    )
                )
            with log.producer() as producer:
                producer.produce("one", "after")
            assert len(consumer.consume(1, timeout=60)) == 1


def test_a_long_transaction_of_a_running_process_is_named_after_its_time(
    log: Log, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked_partitions, "_PATIENT_S", 0.5)
    with (
        BlockingProcess(log.path, OPEN_TRANSACTION) as other,
        log.consumer(auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([ONE])
        until(lambda: consumer.consume(5, timeout=0.2) == [] and warnings(caplog))
        (said,) = warnings(caplog)
        assert f"by process {other.pid} (" in said
        assert "txn abort x" in said


def test_a_consumer_at_the_end_of_its_partitions_warns_about_nothing(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    with BlockingProcess(log.path, OPEN_TRANSACTION) as other:
        other.stop()
        log.create_topic("two")
        with log.consumer("two", group_id="g") as consumer:
            assert consumer.consume(5, timeout=1.5) == []
    assert warnings(caplog) == []
