"""Run a sink that is killed or stopped at its n-th statement, for each n.

python -m tests.sql.processes.sink LOG '["wal", "base.sqlite", 0.3]' kill|stop

Each n has its own group. Prints the number of runs; the last one was not ended.
A stopped sink is a zombie: a second one applies its records before it resumes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import eoslog
from eoslog.sql import Database
from tests.sql.databases import Place, end_here
from tests.sql.server import end_with_parent

LOCKED = 3


def sink(path: str, connect: Callable[[], Any], *runs: int) -> int:
    """Apply all records for some runs; return `LOCKED` after a wait for a lock."""
    with eoslog.open(path) as log, Database(connect) as database:
        try:
            for run in runs:
                apply(log, database, run)
        except eoslog.errors.DatabaseUnavailable:
            return LOCKED
    return 0


def apply(log: eoslog.Log, database: Database, run: int) -> None:
    with log.consumer(group_id=f"g{run}", auto_offset_reset="earliest") as consumer:
        consumer.assign(log.partitions_of("few"))
        for batch in log.sink(consumer, database, records=3, timeout=0):
            if not batch:
                return
            for record in batch:
                batch.connection.execute(
                    f"insert into applied values ({run}, {record.partition}, {record.offset})"
                )


def child(work: Callable[[], int]) -> int:
    """Run a function in a forked process, and return its process id."""
    pid = os.fork()
    if pid == 0:
        end_with_parent(signal.SIGKILL)  # also while it is stopped
        code = 1
        try:
            code = work()
        finally:
            os._exit(code)
    return pid


def ended(pid: int) -> int:
    """The exit code of a process; negative for a signal, SIGSTOP included."""
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return -os.WSTOPSIG(status)
    return os.waitstatus_to_exitcode(status)


def main(path: str, where: str, action: str) -> None:
    place = Place(*json.loads(where))
    place.connect().close()  # imports the driver once, instead of in each child
    number = signal.SIGKILL if action == "kill" else signal.SIGSTOP
    run = 0
    while True:
        run += 1
        first = child(lambda: sink(path, place.at_statement(run, end_here(number)), run))
        code = ended(first)
        if code != -number:
            assert code == 0, code
            break
        if action == "stop":
            ended(child(lambda: sink(path, place.connect, run)))
            os.kill(first, signal.SIGCONT)
            assert ended(first) in (0, LOCKED)
    assert ended(child(lambda: sink(path, place.connect, *range(1, run + 1)))) == 0
    print(run)


if __name__ == "__main__":
    main(*sys.argv[1:])
