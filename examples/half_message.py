"""Publish an order if, and only if, its row is in the database.

The service stores the order and its decision in one transaction of its database. The record in the
log waits for it. Kill the service at any point, and start it again: each order in the database is
published once, and no other.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

import eoslog
from eoslog import Outcome

TABLES = """
create table if not exists orders (number integer primary key, item text);
create table if not exists outcomes (token text primary key, decision text);
"""


class Orders(eoslog.TransactionListener):
    """Stores orders, and answers what became of them."""

    def __init__(self, database: sqlite3.Connection, die_at: int = -1) -> None:
        """Keep the database; `die_at` is the order after whose commit to die."""
        self.database = database
        self.die_at = die_at

    def execute_local_transaction(
        self, msg: eoslog.PreparedTransaction, arg: tuple[int, str]
    ) -> Outcome:
        """Store the order and the decision, both or neither."""
        with self.database:
            self.database.execute("insert into orders values (?, ?)", arg)
            self.database.execute("insert into outcomes values (?, 'commit')", (msg.token,))
        if arg[0] == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return Outcome.COMMIT

    def check_local_transaction(self, msg: eoslog.PreparedTransaction) -> Outcome:
        """Return the decision. If there is none, decide to abort first."""
        with self.database:
            insert = "insert or ignore into outcomes values (?, 'abort')"
            self.database.execute(insert, (msg.token,))
            query = "select decision from outcomes where token = ?"
            (decision,) = self.database.execute(query, (msg.token,)).fetchone()
        return Outcome.COMMIT if decision == "commit" else Outcome.ABORT


def open_database(path: str) -> sqlite3.Connection:
    """Open the service's database; the check uses it in another thread."""
    database = sqlite3.connect(f"{path}-service.sqlite", check_same_thread=False, timeout=60)
    database.executescript(TABLES)
    return database


def serve(path: str, items: list[str], die_at: int = -1) -> None:
    """Take orders, after everything that an earlier run left undecided is settled."""
    database = open_database(path)
    with eoslog.open(path) as log:
        log.create_topic("published-orders", exist_ok=True)
        listener = Orders(database, die_at)
        with log.half_producer("order-service", listener, first_check=0.1) as producer:
            while log.pending("order-service"):
                time.sleep(0.01)
            query = "select coalesce(max(number), 0) from orders"
            last = database.execute(query).fetchone()[0]
            for number, item in enumerate(items, last + 1):
                producer.send_message_in_transaction(
                    ("published-orders", item, str(number)), (number, item)
                )
    database.close()


def main(path: str) -> None:
    """Run a service that dies after its second order, and run it again."""
    before = open_database(path).execute("select count(*) from orders").fetchone()[0]
    dying = [sys.executable, __file__, path, "dying", str(before + 2)]
    died = subprocess.run(dying, check=False).returncode == -signal.SIGKILL
    serve(path, ["7 limes"])
    rows = open_database(path).execute("select cast(number as text), item from orders").fetchall()
    with eoslog.open(path) as log:
        published = [
            (record.key.decode(), record.value.decode()) for record in log.read("published-orders")
        ]
    print("died:", died, "orders:", len(rows) - before, "each published once:", published == rows)


if __name__ == "__main__":
    if sys.argv[2:3] == ["dying"]:
        serve(sys.argv[1], ["3 apples", "1 pear", "2 plums"], int(sys.argv[3]))
    else:
        main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
