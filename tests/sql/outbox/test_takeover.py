"""Two relays of a name, of which the first one dies or is suspended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eoslog.sql import OutboxRelay
from eoslog.sql.outbox import leader
from tests.faults.harness import stop
from tests.paths import ROOT

pytestmark = pytest.mark.process

PROGRAM = """
import json, sys
import eoslog
from eoslog.sql import Database, OutboxRelay
from eoslog.storage.fs.files import arm_failpoint
from tests.sql.databases import Place
place = Place(*json.loads(sys.argv[2]))
with eoslog.open(sys.argv[1]) as log, Database(place.connect) as database:
    with OutboxRelay(database, log, name="shop") as relay:
        relay.step()
        if sys.argv[3:]:
            arm_failpoint(*sys.argv[3:])
        print("leads", flush=True)
        relay.run()
"""
MOST_S = 1.0
"""How long a relay may wait until it sees that the leader has died."""
IN_A_ROW = ["atomic.prepared", "atomic.outcome", "atomic.db_commit", "txn.decided"]
"""Steps of the transaction that publishes a row."""


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    monkeypatch.setattr(leader, "STALL_S", 120.0)  # a slow leader is not a suspended one


class Waits(threading.Event):
    """The event that closes a relay, which notes each wait."""

    def __init__(self) -> None:
        super().__init__()
        self.relay: OutboxRelay | None = None
        self.noted: list[tuple[float, bool]] = []
        """The longest time of each wait, and whether the relay led then."""

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None and self.relay is not None
        self.noted.append((timeout, self.relay._leadership._producer is not None))
        return super().wait(timeout)


@contextlib.contextmanager
def standing_by(database: Any, log: Any) -> Iterator[Waits]:
    """A relay that runs in a thread, after two waits for the end of the leader."""
    waits = Waits()
    with OutboxRelay(database, log, name="shop") as relay:
        waits.relay, relay._closed, relay._waiter._closed = relay, waits, waits
        thread = threading.Thread(target=relay.run)
        thread.start()
        try:
            while len(waits.noted) < 2:
                assert thread.is_alive()
            assert not any(led for _, led in waits.noted)
            yield waits
        finally:
            relay.close()
            thread.join()


@pytest.fixture
def first(request, path, place, log, database):
    """A process whose relay leads; a parameter is a step and what it does there."""
    OutboxRelay(database, log, name="shop").create()
    armed = getattr(request, "param", ())
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, path, json.dumps(place), *armed],
        stdout=subprocess.PIPE, text=True, cwd=Path(ROOT),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "leads\n"
    yield process
    process.kill()
    process.wait(30)
    process.stdout.close()


def insert(place: Any, number: int) -> None:
    # The leader may be slow to commit.
    place.patient().run(f"insert into outbox (topic, value) values ('out', '{number}')")


def next_values(consumer: Any, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        records = consumer.consume(count, timeout=30)
        assert records, found
        found += [int(record.value) for record in records]
    return found


def test_the_next_relay_works_when_the_first_one_is_killed(first, place, log, database):
    with OutboxRelay(database, log, name="shop") as relay:
        with log.consumer("out", group_id="g", auto_offset_reset="earliest") as consumer:
            insert(place, 1)
            assert next_values(consumer, 1) == [1]
            assert relay.status().leader == first.pid
            assert relay.step() == 0
            first.kill()
            first.wait(30)
            insert(place, 2)
            assert relay.step() == 1  # its death is seen immediately
            assert next_values(consumer, 1) == [2]


def test_a_waiting_relay_leads_after_waits_below_a_second(first, place, log, database):
    """The test adds up the waits that end after the death, and reads no clock."""
    with standing_by(database, log) as waits:
        with log.consumer("out", group_id="g", auto_offset_reset="earliest") as consumer:
            first.kill()
            first.wait(30)
            seen = len(waits.noted)
            insert(place, 1)
            assert next_values(consumer, 1) == [1]
        after = [seconds for seconds, led in waits.noted[seen - 1 :] if not led]
    assert sum(after) < MOST_S


@pytest.mark.parametrize("first", [(step, "kill") for step in IN_A_ROW], indirect=True)
def test_a_row_of_a_relay_that_dies_is_published_once_and_soon(first, place, log, database):
    with standing_by(database, log) as waits:
        with log.consumer("out", group_id="g", auto_offset_reset="earliest") as consumer:
            insert(place, 1)
            first.wait(30)
            assert first.returncode == -signal.SIGKILL
            seen = len(waits.noted)
            insert(place, 2)
            assert next_values(consumer, 2) == [1, 2]
            assert consumer.poll(0.2) is None
        after = [seconds for seconds, led in waits.noted[seen - 1 :] if not led]
    assert sum(after) < MOST_S
    assert place.rows("select count(*) from outbox") == [(0,)]


@pytest.mark.parametrize(
    "first", [("atomic.db_commit", "stop"), ("atomic.decided", "stop")], indirect=True
)
def test_a_relay_suspended_after_its_commit_repeats_nothing(
    first, place, log, database, monkeypatch
):
    with standing_by(database, log):
        with log.consumer("out", group_id="g", auto_offset_reset="earliest") as consumer:
            insert(place, 1)
            os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WNOWAIT)
            monkeypatch.setattr(leader, "STALL_S", 2.0)  # a process has a heartbeat each second
            insert(place, 2)
            assert next_values(consumer, 2) == [1, 2]
            os.kill(first.pid, signal.SIGCONT)
            for number in range(3, 6):
                insert(place, number)
            assert next_values(consumer, 3) == [3, 4, 5]
            assert consumer.poll(0.2) is None
    assert place.rows("select count(*) from outbox") == [(0,)]


def test_a_suspended_relay_that_wakes_repeats_nothing(first, place, log, database, monkeypatch):
    monkeypatch.setattr(leader, "STALL_S", 0.5)
    with log.consumer("out", group_id="g", auto_offset_reset="earliest") as consumer:
        insert(place, 1)
        assert next_values(consumer, 1) == [1]
        stop(first.pid)
        with OutboxRelay(database, log, name="shop") as relay:
            for number in range(2, 6):
                insert(place, number)
                relay.run("caught_up")
            assert relay.status().leader == os.getpid()
            os.kill(first.pid, signal.SIGCONT)
            insert(place, 6)
            relay.run("caught_up")
        insert(place, 7)  # the first one waited, and leads again
        assert next_values(consumer, 6) == [2, 3, 4, 5, 6, 7]
    assert place.rows("select count(*) from outbox") == [(0,)]
