"""A sink that reads a batch, waits for a line, then applies the batch.

python -m tests.sql.processes.zombie LOG '["wal", "base.sqlite", 0.3]'
"""

from __future__ import annotations

import json
import sys

import eoslog
from eoslog.sql import Database
from tests.sql.databases import Place


def main(path: str, where: str) -> None:
    place = Place(*json.loads(where))
    settings = {"auto_offset_reset": "earliest", "session_timeout_ms": 3000}
    with eoslog.open(path) as log, Database(place.connect) as database:
        with log.consumer("orders", group_id="g", **settings) as consumer:
            waited = False
            for batch in log.sink(consumer, database, timeout=0.2):
                if not batch and waited:
                    break
                if batch and not waited:
                    waited = True
                    print("read", flush=True)
                    sys.stdin.readline()
                for record in batch:
                    batch.connection.execute(
                        f"insert into applied values (1, {record.partition}, {record.offset})"
                    )


if __name__ == "__main__":
    main(*sys.argv[1:])
