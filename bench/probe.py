"""Measures its own anonymous memory, in a process that has done nothing else.

Usage: python -m bench.probe scan|ids|pending DIRECTORY; prints bytes grown and what was counted, as JSON.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import eoslog


def anonymous() -> int:
    """This process's anonymous memory in bytes."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))


def scan(path: str) -> tuple[int, int]:
    """Read everything as columns and return (increase of peak memory, rows)."""
    import pyarrow  # noqa: F401  (its pools are not what is measured)

    with eoslog.open(path) as log:
        before = most = anonymous()
        rows = 0
        for batch in log.scan("t", columns=["value", "offset"]):
            rows += batch.num_rows
            most = max(most, anonymous())
        return most - before, rows


def ids(path: str) -> tuple[int, int]:
    """Open, and have every transactional id in memory."""
    before = anonymous()
    with eoslog.open(path) as log:
        count = len(log.transactions(open_only=False))
        gc.collect()
        return anonymous() - before, count


def pending(path: str) -> tuple[int, int]:
    """Open, and have every pending transaction in memory."""
    before = anonymous()
    with eoslog.open(path) as log:
        count, _ = log._engine.transactions.prepared.index.totals()
        gc.collect()
        return anonymous() - before, count


def of(what: str, path: Path) -> tuple[int, int]:
    """Run this file in a new process."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.probe", what, str(path.absolute())], check=True,
        capture_output=True, text=True, cwd=Path(__file__).parent.parent, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    grown, count = json.loads(done.stdout)
    return int(grown), int(count)


if __name__ == "__main__":
    print(json.dumps({"scan": scan, "ids": ids, "pending": pending}[sys.argv[1]](sys.argv[2])))
