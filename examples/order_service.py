"""Place orders in a database and announce them in a log: both or neither.

The process is killed at each step of the protocol, and started again. The rows of the database and
the records of the log agree in the end.

python examples/order_service.py [DIR [DATABASE]]    all of it
python examples/order_service.py DIR DATABASE place  place ten orders, then exit

DATABASE is the path of an SQLite file or, for PostgreSQL, a connection string that begins with
postgresql: or host=.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from typing import Any

import eoslog

STEPS = ("prepare.flushed", "atomic.prepared", "atomic.db_commit", "txn.decided")
ORDERS = 10


def connect(where: str) -> Any:
    """Connect to SQLite or PostgreSQL."""
    if where.startswith(("postgresql:", "host=")):
        import psycopg

        return psycopg.connect(where)
    return sqlite3.connect(where)


def place_orders(path: str, where: str) -> None:
    """Place the orders that are missing."""
    database = eoslog.sql.Database(where)
    with eoslog.open(path) as log, log.producer(transactional_id="service") as producer:
        log.create_topic("placed-orders", exist_ok=True)
        while True:
            with log.atomic(producer, database) as tx:
                execute = tx.connection.execute
                execute("create table if not exists orders (number integer primary key)")
                number = execute("select count(*) from orders").fetchone()[0]
                if number == ORDERS:
                    break
                execute(f"insert into orders values ({number})")
                tx.produce("placed-orders", str(number))
    database.close()


def main(path: str, where: str = "") -> None:
    """Run the service, kill it at each step, and compare the database with the log."""
    where = where or f"{path}-orders.sqlite"
    kills = 0
    for step in (*STEPS, None):
        environment = dict(os.environ)
        if step is not None:
            environment["EOSLOG_FAILPOINTS"] = f"{step}:2=kill"
        command = [sys.executable, __file__, path, where, "place"]
        ended = subprocess.run(command, env=environment, capture_output=True, check=False)
        kills += ended.returncode == -signal.SIGKILL
    with eoslog.open(path) as log:
        records = [int(record.value) for record in log.read("placed-orders")]
    database = connect(where)
    rows = [row[0] for row in database.execute("select number from orders order by number")]
    database.close()
    print(f"{len(rows)} orders; the log agrees: {records == rows}")
    print(f"killed {kills} times", file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[3:] == ["place"]:
        place_orders(*sys.argv[1:3])
    else:
        main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
