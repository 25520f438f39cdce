"""The clock of a test's logs: deliveries, retention, and what it does not touch."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from eoslog.errors import ConfigError
from eoslog.testing import Clock, TemporaryLogs, assert_records

HOUR_MS = 3_600_000


@pytest.fixture
def create(tmp_path: Path):
    with TemporaryLogs(tmp_path) as create:
        yield create


def test_a_timed_record_appears_when_the_clock_has_passed_its_time(create):
    log, clock = create(topics=["t"]), create.clock
    with log.producer() as producer:
        producer.send("t", "later", deliver_at=clock.ms + 2 * HOUR_MS)
        producer.send("t", "sooner", deliver_at=clock.ms + HOUR_MS)
    clock.advance(timedelta(minutes=30))
    assert_records(log, "t", [])
    clock.advance(1800)
    assert_records(log, "t", ["sooner"])
    clock.advance(timedelta(hours=1))
    assert_records(log, "t", ["sooner", "later"])


def test_retention_goes_by_the_clock(create):
    log = create()
    log.create_topic("t", config={"retention.ms": HOUR_MS})
    with log.producer() as producer:
        producer.send("t", "old", timestamp=create.clock.ms).result(timeout=60)
    log.clean("t", roll=True)
    assert_records(log, "t", ["old"])
    create.clock.advance(2 * 3600)
    log.clean("t", roll=True)
    assert_records(log, "t", [])


def test_all_logs_of_a_test_share_the_clock_and_a_closed_one_is_left_out(create):
    closed, log = create(topics=["t"]), create(topics=["t"])
    closed.close()
    with log.producer() as producer:
        producer.send("t", "1", deliver_at=create.clock.ms + HOUR_MS)
    create.clock.advance(3600)
    assert_records(log, "t", ["1"])


@pytest.mark.parametrize("wrong", [-1, timedelta(seconds=-1), "1", None])
def test_a_clock_goes_forward_by_a_duration_only(wrong):
    clock = Clock()
    before = clock.ms
    with pytest.raises(ConfigError, match="seconds: expected a timeout in seconds"):
        clock.advance(wrong)
    assert clock.ms - before < HOUR_MS
