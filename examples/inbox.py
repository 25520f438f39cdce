"""Apply each record to a database exactly once: the inbox pattern.

The effect and the record's identity are one database transaction. A record that comes again is
skipped, so the position in the log may be committed afterwards. The identity is the topic's id, the
partition and the offset; use a business key if producers may write a request twice.
"""

import sqlite3
import sys
import tempfile

import eoslog

TABLES = """
create table if not exists balance (customer text primary key, amount integer not null);
create table if not exists inbox (
    topic blob, partition integer, offset integer, primary key (topic, partition, offset)
);
"""
UPSERT = """
insert into balance values (?, ?) on conflict (customer) do update set amount = amount + excluded.amount
"""


def apply(database: sqlite3.Connection, topic_id: bytes, record: eoslog.Record) -> bool:
    """Apply a record and note it: both or neither. Return whether it is new."""
    with database:
        noted = database.execute(
            "insert or ignore into inbox values (?, ?, ?)",
            (topic_id, record.partition, record.offset),
        )
        if noted.rowcount == 0:
            return False
        database.execute(UPSERT, (record.key.decode(), int(record.value)))
        return True


def main(path: str) -> None:
    """Write three payments, and read all payments twice."""
    with eoslog.open(path) as log:
        log.create_topic("payments", exist_ok=True)
        with log.producer() as producer:
            for customer, amount in [("ada", 30), ("bob", 5), ("ada", 7)]:
                producer.produce("payments", str(amount), key=customer)
        database = sqlite3.connect(f"{path}-inbox.sqlite")
        database.executescript(TABLES)
        topic_id = log.topic_id("payments")  # a re-created topic has another one
        applied = 0
        for commits in (False, True):  # the first reader ends without a commit, as in a crash
            with log.consumer(
                "payments",
                group_id="balance",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            ) as consumer:
                while records := consumer.consume(100, timeout=2):
                    applied += sum(apply(database, topic_id, record) for record in records)
                    if commits:
                        consumer.commit()
        balance = database.execute("select sum(amount) from balance").fetchone()[0]
        paid = sum(int(record.value) for record in log.read("payments"))
        database.close()
    print("applied", applied, "payments; the balance is right:", balance == paid)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
