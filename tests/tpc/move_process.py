"""Move money in forked processes that are killed or stopped at a point.

The process reads commands as lines of JSON, and answers each with a line [pid, code].

    ["move", LOG, [DSN, DSN], AMOUNT, POINT, NTH, ACTION]  fork, move money
    ["pay", LOG, LOG, DSN, AMOUNT, POINT, NTH]             fork, pay; killed at the point
    ["settle", LOG, LOG, DSN, POINT]                       fork, recover what "pay" has left
    ["recover", LOG, [DSN, ...], OLDER_THAN, POINT, NTH]   fork, recover; killed at the point
    ["resume", PID]                                        continue a stopped process, and wait
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import eoslog
from eoslog import errors
from eoslog.engine.scheduler import Background
from eoslog.storage.fs.files import arm_failpoint
from tests.paths import ROOT
from tests.sql.databases import Place, end_here
from tests.sql.processes.sink import child, ended
from tests.tpc.banks import connect, move

STEPS_OF_AN_ABORT = ("tpc.aborted", "tpc.rolled_back")
NAMED = (
    "tpc.recorded", "tpc.prepare", "tpc.prepared", "tpc.decided", "tpc.commit", "tpc.committed",
    "tpc.released", "tpc.abort_decided", "tpc.recovered", "tpc.voted", "tpc.xid_prepared",
    *STEPS_OF_AN_ABORT,
)  # fmt: skip
"""The failpoints at which the tests of two-phase commit kill processes."""
KILLED, STOPPED = -signal.SIGKILL, -signal.SIGSTOP
ABORTED, OTHER = 10, 12


def work(path: str, databases: list[str], amount: int, point: str, nth: int, action: str) -> int:
    places = [Place("postgresql", dsn) for dsn in databases]
    factories = [place.connect for place in places]
    if point.startswith("statement"):
        number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[action]
        bank = int(point[-1])
        factories[bank] = places[bank].at_statement(nth, end_here(number))
    elif point:
        arm_failpoint(point, action, nth)
    if point in STEPS_OF_AN_ABORT:
        arm_failpoint("tpc.prepare", "EIO", 3)
    first, second = (factory() for factory in factories)
    try:
        with (
            eoslog.open(path) as log,
            eoslog.tpc.Coordinator(log) as coordinator,
            log.producer(transactional_id="mover") as producer,
            coordinator.transaction(first, second, producer),
        ):
            move(first, second, producer, amount)
    except errors.TransactionAborted:
        return ABORTED
    except errors.EoslogError as error:
        print(repr(error), file=sys.stderr)
        return OTHER
    return 0


def pay(path: str, other: str, database: str, amount: int, point: str, nth: int) -> int:
    """Take money from a bank, and write it to another log than the one that decides.

    Nothing but a call flushes, so the durable ends are those that the code has waited for.
    """
    Background.note_append = lambda self, log: None  # type: ignore[method-assign]
    if point:
        arm_failpoint(point, "kill", nth)
    with (
        eoslog.open(path) as log,
        eoslog.open(other) as sales,
        eoslog.tpc.Coordinator(log) as coordinator,
        sales.producer(transactional_id="mover") as producer,
        connect(database) as bank,
        coordinator.transaction(bank, producer),
    ):
        bank.execute("update account set money = money - %s", (amount,))
        producer.produce("moves", f"{amount}")
    return 0


def settle(path: str, other: str, database: str, point: str) -> int:
    """Recover what `pay` has left; here too, nothing but a call flushes."""
    Background.note_append = lambda self, log: None  # type: ignore[method-assign]
    arm_failpoint(point, "kill")
    with (
        eoslog.open(path) as log,
        eoslog.open(other) as sales,
        eoslog.tpc.Coordinator(log) as coordinator,
        sales.producer(transactional_id="mover") as producer,
        connect(database) as bank,
    ):
        coordinator.recover(bank, producer)
    return 0


def recover(path: str, databases: list[str], older_than: float | None, point: str, nth: int) -> int:
    if point:
        arm_failpoint(point, "kill", nth)
    with eoslog.open(path) as log, eoslog.tpc.Coordinator(log) as coordinator:
        coordinator.recover(*map(connect, databases), older_than=older_than)
    return 0


def main() -> None:
    import psycopg  # noqa: F401  once, not in each child

    eoslog.open, eoslog.tpc.Coordinator  # noqa: B018  as well
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        if command == "resume":
            pid = arguments[0]
            os.kill(pid, signal.SIGCONT)
        else:
            call = {"move": work, "pay": pay, "settle": settle, "recover": recover}[command]
            pid = child(lambda call=call, arguments=arguments: call(*arguments))
        print(json.dumps([pid, ended(pid)]), flush=True)


class Mover:
    """The test's end of such a process, for one log and two databases."""

    def __init__(
        self, process: subprocess.Popen[str], path: str, databases: tuple[str, str]
    ) -> None:
        self._process = process
        self.path = path
        self.databases = databases
        self.pid = 0

    def _ask(self, *command: object) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        self.pid, code = json.loads(self._process.stdout.readline())
        return int(code)

    def move(self, amount: int, point: str = "", nth: int = 1, action: str = "kill") -> int:
        return self._ask("move", self.path, self.databases, amount, point, nth, action)

    def pay(self, other: str, amount: int, point: str = "", nth: int = 1) -> int:
        return self._ask("pay", self.path, other, self.databases[0], amount, point, nth)

    def settle(self, other: str, point: str) -> int:
        return self._ask("settle", self.path, other, self.databases[0], point)

    def recover(self, older_than: float | None = None, point: str = "", nth: int = 1) -> int:
        return self._ask("recover", self.path, self.databases, older_than, point, nth)

    def resume(self, pid: int) -> int:
        return self._ask("resume", pid)


def start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.tpc.move_process"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(ROOT),
    )  # fmt: skip


if __name__ == "__main__":
    main()
