"""Place orders in forked processes that are killed or stopped at a point.

The process reads commands as lines of JSON, and answers each with a line.

    ["order", LOG, PLACE, NUMBER, POINT, ACTION, ID]  fork, place an order; answers [pid, code]
    ["resume", PID]                                   continue it, and wait; answers [pid, code]
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import eoslog
from eoslog.sql import Database
from eoslog.storage.fs.files import arm_failpoint
from tests.paths import ROOT
from tests.sql.databases import Place, end_here
from tests.sql.processes.exit_codes import CODES, SIGNALS, code_of
from tests.sql.processes.sink import child, ended

KILLED, STOPPED = -signal.SIGKILL, -signal.SIGSTOP


def order(path: str, place: Place, number: int, point: str, action: str, name: str) -> int:
    """Place one order, and return 0 or the code of an error."""
    if place.is_async:
        from tests.sql.coroutines.process import order_async

        return order_async(path, place, number, point, action, name)
    connect: Callable[[], Any] = place.connect
    if point.startswith("statement:"):
        connect = place.at_statement(int(point[10:]), end_here(SIGNALS[action]))
    elif point and point != "body":
        arm_failpoint(point, action)
    try:
        with (
            eoslog.open(path) as log,
            Database(connect) as database,
            log.producer(transactional_id=name) as producer,
            log.atomic(producer, database) as tx,
        ):
            tx.connection.execute(f"insert into placed values ({number})")
            tx.produce("orders", f"{number}", partition=number % 2)
            if point == "body":
                producer.flush()
                os.kill(os.getpid(), SIGNALS[action])
    except tuple(CODES) as error:
        return code_of(error)
    return 0


def main() -> None:
    with contextlib.suppress(ImportError):  # imported once, instead of in each child
        import tests.sql.coroutines.process  # noqa: F401
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        if command == "order":
            path, place, *others = arguments

            def work(path: str = path, place: Any = place, others: Any = others) -> int:
                return order(path, Place(*place), *others)

            pid = child(work)
        else:
            pid = arguments[0]
            os.kill(pid, signal.SIGCONT)
        print(json.dumps([pid, ended(pid)]), flush=True)


class Orders:
    """The test's end of such a process, for one log and database."""

    def __init__(self, process: subprocess.Popen[str], path: str, place: Place) -> None:
        self._process = process
        self.path = path
        self.place = place
        self.pid = 0

    def _ask(self, *command: Any) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        self.pid, code = json.loads(self._process.stdout.readline())
        return int(code)

    def order(self, number: int, point: str = "", action: str = "kill", name: str = "t") -> int:
        return self._ask("order", self.path, self.place, number, point, action, name)

    def resume(self, pid: int) -> int:
        return self._ask("resume", pid)

    def placed(self) -> list[int]:
        return sorted(number for (number,) in self.place.rows("select number from placed"))

    def visible(self) -> list[int]:
        with eoslog.open(self.path) as log:
            return sorted(int(record.value) for record in log.read("orders"))

    def both(self) -> list[int]:
        """The orders, which are in the log and in the database."""
        placed = self.placed()
        assert placed == self.visible()
        return placed


def start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.sql.processes.atomic"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(ROOT),
    )  # fmt: skip


if __name__ == "__main__":
    main()
