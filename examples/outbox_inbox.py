"""Copy orders from one database to another one: an outbox and an inbox.

The shop writes an order and its outbox row in one transaction, and a relay publishes the row. The
books commit what they make of a record together with its offset. Kill the program at any point.
"""

import sqlite3
import sys
import tempfile

import eoslog


def order(shop: sqlite3.Connection, *row: str | int) -> None:
    """Write an order and its outbox row: both or neither."""
    with shop:
        shop.execute("insert into orders values (?, ?)", row)
        shop.execute("insert into outbox (topic, key, value) values ('orders', ?, ?)", row)


def apply(log: eoslog.Log, books: "eoslog.sql.Database") -> None:
    """Apply the records that the books do not have, in batches with their offsets."""
    with log.consumer("orders", group_id="books", auto_offset_reset="earliest") as consumer:
        for batch in log.sink(consumer, books, records=2, timeout=0.5):
            if not batch and consumer.assignment():
                return
            rows = [(record.key.decode(), int(record.value)) for record in batch]
            batch.connection.executemany("insert into orders values (?, ?)", rows)


def main(path: str) -> None:
    """Place five orders, publish and apply them, and compare the databases."""
    files = [f"{path}-{name}.sqlite" for name in ("shop", "books")]
    source, target = map(eoslog.sql.Database, files)
    shop, books = map(sqlite3.connect, files)
    with eoslog.open(path) as log, source, target:
        log.create_topic("orders", exist_ok=True)
        for database in (shop, books):
            database.execute("create table if not exists orders (customer text, amount integer)")
        with eoslog.sql.OutboxRelay(source, log, name="shop") as relay:
            relay.create()
            for amount in range(5):
                order(shop, "ada" if amount % 2 else "bob", amount)
            relay.run(until="caught_up")
        apply(log, target)
    placed, applied = (sorted(each.execute("select * from orders")) for each in (shop, books))
    print("the books agree:", applied == placed)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
