"""Run a relay that is killed or stopped at its n-th statement, for each n.

python -m tests.sql.outbox.relay_process LOG '["wal", "base.sqlite", 0.3]' kill|stop

Each run has rows of its own. Prints the number of runs; the last one was not ended.
A stopped relay is a zombie: a second one publishes its rows before it resumes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import eoslog
from eoslog.sql import Database, OutboxRelay
from eoslog.sql.outbox import leader
from eoslog.storage.fs.files import arm_failpoint
from tests.sql.databases import Place, end_here
from tests.sql.processes.sink import LOCKED, child, ended

ROWS = 2


def insert(place: Place, first: int, topic: str = "out") -> None:
    """Insert rows with the values from `first` on, in one transaction."""
    place.run(
        *(
            f"insert into outbox (topic, value, partition) values ('{topic}', '{number}', 0)"
            for number in range(first, first + ROWS)
        )
    )


def publish(path: str, connect: Callable[[], Any], stall: float | None = None) -> int:
    """Publish all rows; return `LOCKED` after a wait for a lock."""
    if stall is not None:
        leader.STALL_S = stall  # type: ignore[misc]
    with eoslog.open(path) as log, Database(connect) as database:
        try:
            with OutboxRelay(database, log, name="shop", records=ROWS) as relay:
                relay.run("caught_up")
        except eoslog.errors.DatabaseUnavailable:
            return LOCKED
    return 0


def at_point(path: str, place: Place, point: str) -> int:
    """Publish in a child that is killed at a failpoint; return its exit code."""

    def work() -> int:
        arm_failpoint(point, "kill")
        return publish(path, place.connect)

    return ended(child(work))


def main(path: str, where: str, action: str) -> None:
    place = Place(*json.loads(where))
    place.connect().close()  # imports the driver once, instead of in each child
    number = signal.SIGKILL if action == "kill" else signal.SIGSTOP
    run = 0
    while True:
        insert(place, run * ROWS)
        run += 1
        first = child(lambda: publish(path, place.at_statement(run, end_here(number))))
        code = ended(first)
        if code != -number:
            assert code == 0, code
            break
        if action == "stop":
            assert ended(child(lambda: publish(path, place.connect, 0.2))) in (0, LOCKED)
            os.kill(first, signal.SIGCONT)
            assert ended(first) in (0, LOCKED)
    assert ended(child(lambda: publish(path, place.connect))) == 0
    print(run)


if __name__ == "__main__":
    main(*sys.argv[1:])
