"""Count what kills leave between a log and a database.

    python -m tests.kafka.across --kills 50 --docs docs

A real broker is started. Without `--docs`, the table is printed only.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.kafka import jars
from tests.kafka.across.kills import compare
from tests.kafka.across.picture import draw, table, write_table
from tests.kafka.broker import Broker


def main() -> None:
    """Compare, and print or write the counts."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.kafka.across", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--kills", type=int, default=20, help="Kills at each place (20).")
    parser.add_argument("--seed", type=int, default=1, help="Seed of the requests that die (1).")
    parser.add_argument(
        "--docs", type=Path, help="Write the table and the pictures of the page here."
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        broker = Broker(Path(scratch) / "broker", jars.BEHAVIOUR).start()
        try:
            found = compare(
                broker, Path(scratch), given.kills, given.seed,
                progress=lambda line: print(line, flush=True),
            )  # fmt: skip
        finally:
            broker.remove()
    print(table(found))
    if given.docs:
        write_table(found, given.docs / "explanation" / "kills-compared.md")
        draw(found, given.docs / "_static")


if __name__ == "__main__":
    main()
