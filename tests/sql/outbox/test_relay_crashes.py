"""`OutboxRelay` killed or suspended at every statement of a batch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import eoslog
from eoslog.sql import Database, OutboxRelay
from tests.paths import ROOT
from tests.sql.outbox.relay_process import ROWS, at_point, insert, publish
from tests.sql.processes.sink import child, ended

pytestmark = [pytest.mark.process, pytest.mark.slow]

POINTS = [
    "position.set", "prepare.flushed", "prepare.appended", "atomic.prepared", "atomic.outcome",
    "atomic.db_commit", "txn.flushed", "txn.decided", "txn.marked", "atomic.decided",
]  # fmt: skip


@pytest.fixture
def topic(place, path) -> str:
    """A log with the topic, and a database with the table."""
    with eoslog.open(path) as log, Database(place.connect) as database:
        log.create_topic("out")
        OutboxRelay(database, log, name="shop").create()
    return path


def published(path: str) -> list[int]:
    with eoslog.open(path) as log:
        return [int(record.value) for record in log.read("out")]


@pytest.mark.parametrize("action", ["kill", "stop"])
def test_a_relay_ended_at_every_statement_publishes_each_row_once_in_order(topic, place, action):
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.sql.outbox.relay_process", topic, json.dumps(place),
            action,
        ],
        capture_output=True, text=True, check=False, timeout=900, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    runs = int(done.stdout)
    assert runs > 20  # a run per statement
    assert published(topic) == list(range(runs * ROWS))
    assert place.rows("select count(*) from outbox") == [(0,)]


def test_a_relay_killed_at_every_point_of_a_commit_publishes_each_row_once(topic, place):
    for number, point in enumerate(POINTS):
        insert(place, number * ROWS)
        assert at_point(topic, place, point) < 0, point
        assert ended(child(lambda: publish(topic, place.connect))) == 0
        assert published(topic) == list(range((number + 1) * ROWS)), point
    assert place.rows("select count(*) from outbox") == [(0,)]
