"""At-least-once input, one effect for each key: `dedupe` answers whether a key is new.

The store must be as durable as the effect: here both are one SQLite transaction.
"""

import sqlite3
import sys
import tempfile
from collections.abc import Iterator, MutableMapping

import eoslog


class Seen(MutableMapping[bytes, bool]):
    """Keys in a table, in whatever transaction the connection is in."""

    def __init__(self, base: sqlite3.Connection) -> None:
        self.base = base
        base.execute("create table if not exists seen (key blob primary key)")

    def __contains__(self, key: object) -> bool:
        return self.base.execute("select 1 from seen where key = ?", (key,)).fetchone() is not None

    def __getitem__(self, key: bytes) -> bool:
        return key in self

    def __setitem__(self, key: bytes, value: bool) -> None:
        self.base.execute("insert into seen values (?)", (key,))

    def __delitem__(self, key: bytes) -> None:
        self.base.execute("delete from seen where key = ?", (key,))

    def __iter__(self) -> Iterator[bytes]:
        return (row[0] for row in self.base.execute("select key from seen"))

    def __len__(self) -> int:
        return int(self.base.execute("select count(*) from seen").fetchone()[0])


def main(path: str) -> None:
    with eoslog.open(path) as log:
        log.create_topic("orders")
        with log.producer(enable_idempotence=False) as producer:
            for key in ("a", "b", "a", "c", "b"):  # resent by somebody who never got an answer
                producer.produce("orders", f"order {key}", key=key)
        base = sqlite3.connect(":memory:")
        base.execute("create table effects (value blob)")
        store = Seen(base)
        settings = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
        read = 0
        with log.consumer("orders", group_id="shop", **settings) as consumer:
            while read < 5:
                records = consumer.consume(100, 5)
                with base:  # the effect and the note that it has been done
                    for record in records:
                        if eoslog.dedupe(store, record.key):
                            base.execute("insert into effects values (?)", (record.value,))
                consumer.commit()
                read += len(records)
        print("effects:", base.execute("select count(*) from effects").fetchone()[0])


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
