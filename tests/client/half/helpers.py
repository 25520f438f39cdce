"""A service that ties its records to rows of SQLite, and can die."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import eoslog
from eoslog import Outcome, PreparedTransaction

QUICK = {"first_check": 0.05, "interval": 0.1, "timeout": 1.0}
"""Settings with which a check comes soon."""


def connect(path: str) -> sqlite3.Connection:
    """The service's database: orders, and what was decided about each token."""
    database = sqlite3.connect(f"{path}.sqlite", timeout=60, check_same_thread=False)
    with database:
        database.execute("create table if not exists orders (id integer primary key)")
        database.execute(
            "create table if not exists outcomes (token text primary key, decision text)"
        )
    return database


class Orders(eoslog.TransactionListener):
    """The listener of the service, whose process is killed at the step `die`."""

    def __init__(self, path: str, die: str = "") -> None:
        self.path = path
        self.die = die

    def step(self, name: str) -> None:
        if name == self.die:
            os.kill(os.getpid(), signal.SIGKILL)

    def execute_local_transaction(self, msg: PreparedTransaction, arg: Any) -> Outcome:
        self.step("execute")
        database = connect(self.path)
        with database:
            database.execute("insert into orders values (?)", (arg,))
            database.execute("insert into outcomes values (?, 'C')", (msg.token,))
            self.step("inserted")
        self.step("committed")
        return Outcome.COMMIT

    def check_local_transaction(self, msg: PreparedTransaction) -> Outcome:
        database = connect(self.path)
        with database:
            database.execute("insert or ignore into outcomes values (?, 'A')", (msg.token,))
            query = "select decision from outcomes where token = ?"
            (decision,) = database.execute(query, (msg.token,)).fetchone()
        return Outcome.COMMIT if decision == "C" else Outcome.ABORT


PROGRAM = """
import sys
import eoslog
from eoslog.storage.fs import files
from tests.client.half.helpers import Orders

path, point, nth, die = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
with eoslog.open(path) as log, log.half_producer("service", Orders(path, die)) as producer:
    print(producer.send_message_in_transaction(("orders", b"0"), 0).transaction_id, flush=True)
    if point != "none":
        files.arm_failpoint(point, "kill", nth)
    records = [("orders", b"1"), ("paid", b"1", b"a"), ("paid", b"1", b"b")]
    print(producer.send_message_in_transaction(records, 1).outcome.name, flush=True)
"""


def created(path: Path) -> str:
    """A directory with the topics `orders` and `paid`."""
    with eoslog.open(path) as log:
        log.create_topic("orders")
        log.create_topic("paid", partitions=3)
    return str(path)


def run(path: str, *, point: str = "none", nth: int = 1, die: str = "") -> list[str]:
    """Run the service until it ends, or dies; return what it printed."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, path, point, str(nth), die],
        capture_output=True, text=True, check=False,
        env={**os.environ, "EOSLOG_FAILPOINTS": "1"},
    )  # fmt: skip
    killed = point != "none" or die
    assert result.returncode == (-signal.SIGKILL if killed else 0), result.stderr
    return result.stdout.split()


def visible(log: eoslog.Log) -> dict[str, list[int]]:
    """The orders that readers see, by topic."""
    return {
        topic: sorted(int(record.value) for record in log.read(topic))
        for topic in ("orders", "paid")
    }


def expected(path: str) -> dict[str, list[int]]:
    """The orders that must be visible: those in the database."""
    rows = [row[0] for row in connect(path).execute("select id from orders order by id")]
    return {"orders": rows, "paid": [row for row in rows for _ in range(2) if row != 0]}


def settled(log: eoslog.Log) -> bool:
    """Whether every prepared transaction is decided and delivered."""
    return log._engine.transactions.prepared.index.totals()[0] == 0
