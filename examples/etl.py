"""Load a CSV file, and total its rows by carrier in three processes.

The loader commits its position in the file with the rows, and each worker commits its totals with
its position in the topic. Kill the loader or a worker at any point: each row counts once.
"""

import csv
import itertools
import sys
import tempfile
from pathlib import Path

import eoslog


def totals(path: str) -> eoslog.App:
    """Return the application: `carriers` has the flights and miles of each key."""
    app = eoslog.App(path, "by-carrier")
    carriers = app.table("carriers", default=lambda: (0, 0))

    @app.task("flights", key="string", value="json", tables=[carriers])
    def add(row: eoslog.Record, _ctx: eoslog.Context) -> None:
        flights, miles = carriers[row.key]
        carriers[row.key] = flights + 1, miles + int(row.value["miles"])

    return app


def load(log: eoslog.Log, path: str) -> None:
    """Write the rows of a CSV file that are not in the topic yet."""
    with log.producer(transactional_id="loader", value="json") as producer, open(path) as file:
        producer.init_transactions()  # complete or abort what a killed loader has left
        done = int(log.position(path) or 0)
        rows = itertools.islice(csv.DictReader(file), done, None)
        while chunk := list(itertools.islice(rows, 500)):
            with producer.transaction() as tx:
                tx.produce_many("flights", chunk, [row["carrier"] for row in chunk])
                tx.set_position(path, done + len(chunk), expected=done or None)
            done += len(chunk)


def main(path: str, count: str = "3000") -> None:
    """Load a file, total its rows, and compare the totals with the file."""
    rows = range(int(count))
    Path(f"{path}.csv").write_text("carrier,miles\n" + "".join(f"{n % 3}A,{n}\n" for n in rows))
    with totals(path) as app:
        app.create_topics(partitions=6)
        load(app.log, f"{path}.csv")
    app.run(processes=3, until="caught_up")
    with eoslog.open(path) as log:
        flights, miles = map(sum, zip(*log.table("carriers").values(), strict=True))
    print(flights, "flights; the miles agree:", miles == sum(rows))


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
