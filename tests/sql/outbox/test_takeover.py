"""Two relays of a name, of which the first one dies or is suspended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eoslog.sql import OutboxRelay
from eoslog.sql.outbox import leader
from tests.paths import ROOT

pytestmark = pytest.mark.process

PROGRAM = """
import json, sys
import eoslog
from eoslog.sql import Database, OutboxRelay
from tests.sql.databases import Place
place = Place(*json.loads(sys.argv[2]))
with eoslog.open(sys.argv[1]) as log, Database(place.connect) as database:
    with OutboxRelay(database, log, name="shop") as relay:
        relay.step()
        print("leads", flush=True)
        relay.run()
"""


@pytest.fixture
def first(path, place, log, database):
    """A process whose relay leads."""
    OutboxRelay(database, log, name="shop").create()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, path, json.dumps(place)],
        stdout=subprocess.PIPE, text=True, cwd=Path(ROOT),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "leads\n"
    yield process
    process.kill()
    process.wait(30)
    process.stdout.close()


def insert(place: Any, number: int) -> None:
    place.run(f"insert into outbox (topic, value) values ('out', '{number}')")


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


def test_a_suspended_relay_that_wakes_repeats_nothing(first, place, log, database, monkeypatch):
    monkeypatch.setattr(leader, "STALL_S", 0.5)
    with log.consumer("out", group_id="g", auto_offset_reset="earliest") as consumer:
        insert(place, 1)
        assert next_values(consumer, 1) == [1]
        os.kill(first.pid, signal.SIGSTOP)
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
