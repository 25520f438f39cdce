"""Apply records to a database exactly once, in batches with their offsets.

`log.sink` stores the offsets in the transaction of the rows. So no table of seen records is needed,
and a killed reader continues where its last committed batch ended.
"""

import sqlite3
import sys
import tempfile

import eoslog

TABLE = "create table if not exists balance (customer text primary key, amount integer not null)"
UPSERT = """
insert into balance values (?, ?) on conflict (customer) do update set amount = amount + excluded.amount
"""


def apply_payments(log: eoslog.Log, database: "eoslog.sql.Database", fails: bool) -> int:
    """Apply all payments that the database does not have, and return their number."""
    applied = 0
    with log.consumer("payments", group_id="balance", auto_offset_reset="earliest") as consumer:
        for batch in log.sink(consumer, database, records=2, timeout=0.5):
            if not batch:
                break
            for record in batch:
                payment = (record.key.decode(), int(record.value))
                batch.connection.execute(UPSERT, payment)
            if fails:
                raise RuntimeError("as in a crash: the batch is rolled back")
            applied += len(batch)
    return applied


def main(path: str) -> None:
    """Write three payments, fail once, and apply all payments."""
    where = f"{path}-balance.sqlite"
    setup = sqlite3.connect(where)
    setup.execute(TABLE)
    setup.close()
    database = eoslog.sql.Database(where)
    with eoslog.open(path) as log:
        log.create_topic("payments", exist_ok=True)
        with log.producer() as producer:
            for customer, amount in [("ada", 30), ("bob", 5), ("ada", 7)]:
                producer.produce("payments", str(amount), key=customer)
        try:
            apply_payments(log, database, fails=True)
        except RuntimeError:
            applied = apply_payments(log, database, fails=False)
        paid = sum(int(record.value) for record in log.read("payments"))
    database.close()
    check = sqlite3.connect(where)
    balance = check.execute("select sum(amount) from balance").fetchone()[0]
    check.close()
    print("applied", applied, "payments; the balance is right:", balance == paid)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
