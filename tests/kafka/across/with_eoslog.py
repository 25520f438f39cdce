"""The programs with eoslog and sqlite3.

    python -m tests.kafka.across.with_eoslog PROGRAM ARGUMENTS

A place that lies within a call of eoslog is one of its failpoints.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import eoslog
from eoslog.sql import Database, OutboxRelay
from eoslog.storage.fs.files import arm_failpoint
from tests.kafka.across.places import Fate, Kill
from tests.kafka.across.schema import connect

FAILPOINTS = {
    ("order", "row committed"): "atomic.db_commit",
    ("order", "message sent"): "atomic.decided",
    ("outbox", "rows read"): "prepare.flushed",
    ("outbox", "messages sent"): "atomic.prepared",
    ("outbox", "rows deleted"): "atomic.db_commit",
    ("sink", "rows committed"): "sink.committed",
    ("sink", "position committed"): "sink.committed",
}
"""Failpoints by program and place. A sink commits the position with the rows."""


def order(log: eoslog.Log, database: Database, at: dict[str, Any], fate: Fate) -> None:
    """Insert a row and produce its record, for each number, in one transaction."""
    with log.producer(transactional_id="orders") as producer:
        for number in at["numbers"]:
            with log.atomic(producer, database) as tx:
                insert = "insert or ignore into orders values (?)"
                if tx.connection.execute(insert, (number,)).rowcount:
                    tx.produce(at["topic"], str(number))
                fate.reached("row inserted")
            print(number, flush=True)


def outbox(log: eoslog.Log, database: Database, at: dict[str, Any], fate: Fate) -> None:
    """Move the rows of the outbox to the topic."""
    with OutboxRelay(database, log, name="relay") as relay:
        relay.run(until="caught_up")


def sink(log: eoslog.Log, database: Database, at: dict[str, Any], fate: Fate) -> None:
    """Insert a row for each record; the position is in the same transaction."""
    with log.consumer(at["topic"], group_id="sink", auto_offset_reset="earliest") as consumer:
        for batch in log.sink(consumer, database, records=100, timeout=0.2):
            if not batch:
                break
            rows = [(record.value.decode(),) for record in batch]
            batch.connection.executemany("insert into applied values (?)", rows)
            fate.reached("rows inserted")


PROGRAMS: dict[str, Callable[[eoslog.Log, Database, dict[str, Any], Fate], None]] = {
    "order": order, "outbox": outbox, "sink": sink,
}  # fmt: skip


def main(program: str, given: dict[str, Any]) -> None:
    """Run one of the programs."""
    kill = Kill(*given["kill"])
    if point := FAILPOINTS.get((program, kill.place)):
        arm_failpoint(point, "kill", kill.nth)
    with (
        eoslog.open(given["log"]) as log,
        Database(lambda: connect(given["database"])) as database,
    ):
        PROGRAMS[program](log, database, given, Fate(kill))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
