"""Publish the rows of a database exactly once: the outbox pattern.

The application writes an order and an outbox row in one database transaction. The relay publishes
outbox rows in the order of their transactions, and deletes them. Kill the relay at any point: no
row is lost or published twice.
"""

import sqlite3
import sys
import tempfile

import eoslog

ORDERS = "create table if not exists orders (id integer primary key, customer text, item text)"


def order(database: sqlite3.Connection, customer: str, item: str) -> None:
    """Write an order and its outbox row: both or neither."""
    row = "insert into outbox (topic, key, value) values ('orders-placed', ?, ?)"
    with database:
        database.execute("insert into orders (customer, item) values (?, ?)", (customer, item))
        database.execute(row, (customer, item))


def relay(log: eoslog.Log, database: eoslog.sql.Database) -> int:
    """Publish all outbox rows; return how many."""
    with eoslog.sql.OutboxRelay(database, log, name="shop") as outbox:
        outbox.create()
        return outbox.run(until="caught_up")


def main(path: str) -> None:
    """Place three orders, and publish them twice."""
    where = f"{path}-outbox.sqlite"
    with eoslog.open(path) as log, eoslog.sql.Database(where) as database:
        log.create_topic("orders-placed", exist_ok=True)
        relay(log, database)  # what an earlier run has left
        shop = sqlite3.connect(where)
        shop.execute(ORDERS)
        for customer, item in [("ada", "3 apples"), ("bob", "1 pear"), ("ada", "7 limes")]:
            order(shop, customer, item)
        first, second = relay(log, database), relay(log, database)
        orders = shop.execute("select count(*) from orders").fetchone()[0]
        records = len(list(log.read("orders-placed")))
        shop.close()
    print("published", first, "and", second, "more; every order is there once:", orders == records)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
