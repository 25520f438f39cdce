"""Processes that write to a log and to a database, killed, suspended and fenced.

Two or three processes at a time use `Log.atomic` or `Log.sink` with one database, and share their
transactional ids or their group. Each is killed at a step, at a call of the log, at a statement of
the database, or at any time. Some are suspended at a step and continue when others have taken their
work over. The PostgreSQL server is stopped without a shutdown now and then.
"""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.harness import Running, live, start
from tests.sql import server
from tests.sql.databases import SQLITE, Place
from tests.torture.harness import Round, Step
from tests.torture.oracles import applied as applied_oracle
from tests.torture.oracles import moves_of_money as moves_oracle
from tests.torture.oracles import orders as orders_oracle
from tests.torture.workloads import applied, moves_of_money, one_order, orders

ATOMIC = ("atomic.prepared", "atomic.outcome", "atomic.db_commit", "atomic.decided")
SINK = ("sink.begun", "sink.stored", "sink.committed")
TPC = (
    "tpc.recorded", "tpc.prepare", "tpc.prepared", "tpc.decided", "tpc.commit", "tpc.committed",
    "tpc.released", "tpc.rolled_back",
)  # fmt: skip
SWEEP = ("tpc.abort_decided", "tpc.recovered")
OF_THE_LOG = (
    "prepare.flushed", "prepare.appended", "prepare.durable", "resolve.appended", "resolve.durable",
    "txn.init.durable", "txn.added", "txn.flushed", "txn.decided", "txn.marked", "txn.completed",
)  # fmt: skip
OF_ONE_ORDER = (
    *ATOMIC, "prepare.flushed", "prepare.appended", "prepare.durable", "txn.flushed", "txn.durable",
    "txn.decided", "txn.marked", "txn.completed",
)  # fmt: skip
"""The points that each transaction passes between its begin and its end."""
CALLS = {"pwrite": 40, "fdatasync": 20, "lock": 100}
KINDS_OF_FAULT = ("none", "step", "log", "call", "statement", "time", "stop")
WEIGHTS = {
    "sells": (5, 30, 10, 10, 20, 15, 10),
    "resolves": (15, 0, 20, 10, 20, 35, 0),
    "applies": (5, 35, 0, 5, 25, 20, 10),
    "feeds": (15, 0, 50, 15, 0, 20, 0),
    "moves": (5, 35, 10, 10, 20, 10, 10),
    "recovers": (30, 30, 10, 10, 0, 20, 0),
}
"""How often each kind comes, by the program."""
LATE_LOCKS = {
    "sells": (60, 200),
    "resolves": (5, 40),
    "applies": (25, 80),
    "feeds": (20, 120),
    "moves": (100, 300),
    "recovers": (30, 100),
}
"""The lock at which a process is killed that does not come to its fault before, by the program."""
STATEMENTS = 50
LONGEST_LIFE_S = 0.6
ROUNDS = 8


class WithDatabase:
    """Eight times two or three processes, then the verdict."""

    name: str
    goal: tuple[str, int]
    steps: tuple[str, ...]
    """Steps of the database's transaction, at which processes are killed or suspended."""

    def missing(self) -> str | None:
        """It needs fork only."""
        return None

    def close(self) -> None:
        """Nothing is shared."""

    def step(self, seed: int) -> Step:
        """Use SQLite, in one of its journal modes."""
        with Round(seed) as round_:
            place = Place(SQLITE[seed % len(SQLITE)], str(round_.place / "base.sqlite"), 0.3)
            return self._rounds(round_, place, lambda: None)

    def _rounds(self, round_: Round, place: Place, crash: Callable[[], None]) -> Step:
        raise NotImplementedError

    def _lives(
        self, round_: Round, place: Any, bodies: tuple[Any, ...], crash: Callable[[], None]
    ) -> None:
        """Run processes at the same time; suspended ones continue after the others' end."""
        rng = round_.rng
        zombies: list[Running] = []
        others: list[tuple[float, Running]] = []
        for body in bodies:
            faults, statement, kind = self._fault(round_, body)
            one = start(
                body, round_.path, place, round_.history, round_.name(), round_.seed(), statement,
                faults=faults,
            )  # fmt: skip
            if kind == "stop":
                zombies.append(one)
            else:
                others.append((self._deadline(rng, body, kind), one))
        if rng.random() < 0.4:
            time.sleep(rng.uniform(0, LONGEST_LIFE_S))
            crash()
        for deadline, one in sorted(others, key=lambda other: other[0]):
            round_.ended(one.end_or_kill(deadline))
        for one in zombies:
            round_.step.counts["zombies"] += suspended(one)
            if rng.random() < 0.3:
                round_.ended(one.kill())
            else:
                one.signal(signal.SIGCONT)
                round_.ended(one.end())

    @staticmethod
    def _deadline(rng: random.Random, body: Any, kind: str) -> float:
        """When a process is killed that has not ended or been killed before."""
        if kind == "time":
            return time.monotonic() + rng.uniform(0, LONGEST_LIFE_S)
        if kind in ("step", "statement") and body is applied.applies:  # it may never come there
            return time.monotonic() + rng.uniform(LONGEST_LIFE_S / 2, applied.LONGEST_S)
        return time.monotonic() + 300

    def _fault(self, round_: Round, body: Any) -> tuple[tuple[tuple[str, str, int], ...], int, str]:
        """(faults of the log, the statement of the database, the kind)."""
        rng = round_.rng
        kind = rng.choices(KINDS_OF_FAULT, WEIGHTS[body.__name__])[0]
        nth = 1 + min(int(rng.expovariate(0.6)), 5)
        if kind in ("step", "stop"):
            steps = SWEEP if body is moves_of_money.recovers else self.steps
            if kind == "stop":
                return ((rng.choice(steps), kind, nth),), 0, kind
            return ((rng.choice(steps), "kill", nth), self._late(rng, body)), 0, kind
        if kind == "log":
            return ((rng.choice(OF_THE_LOG), "kill", nth), self._late(rng, body)), 0, kind
        if kind == "call":
            call = rng.choice(list(CALLS))
            action = rng.choice(["kill", "kill-after"])
            return ((call, action, rng.randint(1, CALLS[call])),), 0, kind
        if kind == "statement":
            return (self._late(rng, body),), rng.randint(1, STATEMENTS), kind
        return (), 0, kind

    @staticmethod
    def _late(rng: random.Random, body: Any) -> tuple[str, str, int]:
        """A fault for a process that may not come to its own one."""
        return "lock", "kill", rng.randint(*LATE_LOCKS[body.__name__])


def suspended(one: Running) -> bool:
    """Wait until a process is suspended, or has ended."""
    stat = Path(f"/proc/{one.pid}/stat")
    while (state := stat.read_text().rpartition(")")[2].split()[0]) not in ("T", "Z"):
        time.sleep(0.002)
    return state == "T"


class OnServer(WithDatabase):
    """The same with a PostgreSQL server, which crashes sometimes."""

    def __init__(self) -> None:
        """No server before the first step."""
        self._server: server.Server | None = None

    def _places(self, running: server.Server) -> Any:
        """What a step uses: a schema of its own."""
        return Place("postgresql", running.schema("lock_timeout=300ms"))

    def missing(self) -> str | None:
        """PostgreSQL and psycopg."""
        return server.missing()

    def close(self) -> None:
        """Remove the server."""
        if self._server is not None:
            self._server.remove()
            self._server = None

    def step(self, seed: int) -> Step:
        """Use a database of its own; the server runs during the step only."""
        if self._server is None:
            self._server = server.Server(max_prepared_transactions="50")
        running = self._server
        with Round(seed) as round_:
            running.start()
            try:
                place = self._places(running)

                def crash() -> None:
                    running.stop("immediate")
                    running.start()
                    round_.step.counts["server crashes"] += 1

                return self._rounds(round_, place, crash)
            finally:
                running.stop()


def judged(round_: Round, violations: list[str], counts: dict[str, int]) -> Step:
    round_.step.violations += violations
    round_.step.counts.update(counts)
    round_.step.counts["verdicts"] += 1
    return round_.step


class Atomic(WithDatabase):
    """`Log.atomic` with SQLite."""

    name, goal = "atomic", ("kills", 10_000)
    steps = ATOMIC

    def _rounds(self, round_: Round, place: Place, crash: Callable[[], None]) -> Step:
        rng = round_.rng
        live(orders.founded, round_.path, place).fine()
        OneOrder(round_, place).run()
        for _ in range(ROUNDS):
            third = orders.resolves if rng.random() < 0.6 else orders.sells
            self._lives(round_, place, (orders.sells, orders.sells, third), crash)
            settle = rng.choice(("", "", "ask", "enter"))
            found = orders_oracle.check(round_.path, place, round_.history, settle)
            round_.step.violations += found
        return judged(round_, *orders_oracle.verify(round_.path, place, round_.history))


class OneOrder:
    """One transaction killed at each of its points, suspended or refused.

    After each fault, another process decides what is left, and both sides are compared.
    """

    def __init__(self, round_: Round, place: Place) -> None:
        """Draw the order in which kinds of transactions and of decisions alternate."""
        self._round, self._place = round_, place
        self._works = itertools.cycle(round_.rng.sample(one_order.WORKS, len(one_order.WORKS)))
        self._decisions = itertools.cycle(round_.rng.sample(("ask", "enter"), 2))

    def run(self) -> None:
        """Take every point, and every other call and statement."""
        for point in OF_ONE_ORDER:
            self._ended(self._start(faults=((point, "kill", 1),)))
        for call in ("pwrite", "fdatasync"):
            action = self._round.rng.choice(("kill", "kill-after"))
            self._every_other(lambda nth, call=call, action=action: ("", ((call, action, nth),)))
        self._every_other(lambda nth: (f"statement:{nth}", ()))
        for what in ("refused", "lost", "down", "undecided"):
            self._ended(self._start(what))
        self._suspended("atomic.prepared", "unlocked")
        for point in (self._round.rng.choice(ATOMIC[:2]), "atomic.db_commit"):
            self._suspended(point)
        self._stale()
        self._late()
        self._passed_by()

    def _start(
        self, what: str = "", faults: tuple[tuple[str, str, int], ...] = (), more: int = 0,
        work: str = "",
    ) -> Running:  # fmt: skip
        round_ = self._round
        return start(
            one_order.sells_once, round_.path, self._place, round_.history, round_.name(),
            round_.seed(), work or next(self._works), what, more, faults=faults,
        )  # fmt: skip

    def _asks(self, *, late: bool) -> Running:
        round_ = self._round
        return start(
            one_order.asks_once, round_.path, self._place, round_.history, round_.name(), late
        )

    def _ended(self, *running: Running) -> bool:
        """Wait for the end of processes, compare, and return whether one was killed."""
        round_ = self._round
        killed = [round_.ended(one.end()).killed for one in running]
        round_.step.violations += orders_oracle.check(
            round_.path, self._place, round_.history, next(self._decisions)
        )
        return any(killed)

    def _every_other(
        self, fault: Callable[[int], tuple[str, tuple[tuple[str, str, int], ...]]]
    ) -> None:
        """Kill processes at each second one of the points that they come to."""
        for nth in itertools.count(self._round.rng.randint(1, 2), 2):
            if not self._ended(self._start(*fault(nth))):
                return

    def _suspended(self, point: str, what: str = "") -> None:
        """Suspend a process while others ask, and use its id."""
        worker = self._start(what, ((point, "stop", 1),))
        self._round.step.counts["zombies"] += suspended(worker)
        for other in (self._asks(late=False), self._start()):
            self._round.ended(other.end())
        worker.signal(signal.SIGCONT)
        self._ended(worker)

    def _stale(self) -> None:
        """Suspend a process that has read inputs, until another one has moved them."""
        worker = self._start("stale", work="database")
        self._round.step.counts["zombies"] += suspended(worker)
        self._round.ended(self._start(work="database").end())
        worker.signal(signal.SIGCONT)
        self._ended(worker)

    def _late(self) -> None:
        """Suspend a process before it asks, until the row that it asks for is deleted."""
        worker = self._start("", (("atomic.prepared", "stop", 1),), more=2)
        suspended(worker)
        late = self._asks(late=True)
        self._round.step.counts["zombies"] += suspended(late)
        for one in (worker, late):
            one.signal(signal.SIGCONT)
            self._round.ended(one.end())
        self._ended()

    def _passed_by(self) -> None:
        """Kill a process between its commits, and use the database with another id."""
        self._round.ended(self._start(faults=(("atomic.db_commit", "kill", 1),)).end())
        self._ended(self._start("other", work="order"))


class AtomicOnServer(OnServer, Atomic):
    """`Log.atomic` with PostgreSQL."""

    name, goal = "atomic postgresql", ("kills", 1_000)


class Sink(WithDatabase):
    """`Log.sink` with SQLite."""

    name, goal = "sink", ("kills", 10_000)
    steps = SINK

    def _rounds(self, round_: Round, place: Place, crash: Callable[[], None]) -> Step:
        live(applied.founded, round_.path, place).fine()
        for _ in range(ROUNDS):
            bodies = (applied.applies, applied.applies, applied.feeds)
            self._lives(round_, place, bodies, crash)
            judged(round_, *applied_oracle.verify(round_.path, place, finished=False))
        return judged(round_, *applied_oracle.verify(round_.path, place, finished=True))


class SinkOnServer(OnServer, Sink):
    """`Log.sink` with PostgreSQL."""

    name, goal = "sink postgresql", ("kills", 1_000)


class TwoPhase(WithDatabase):
    """`eoslog.tpc` with producers alone, because SQLite cannot prepare."""

    name, goal = "tpc", ("kills", 10_000)
    steps = TPC

    def step(self, seed: int) -> Step:
        """Use no database."""
        with Round(seed) as round_:
            return self._rounds(round_, (), lambda: None)

    def _rounds(self, round_: Round, place: Any, crash: Callable[[], None]) -> Step:
        live(moves_of_money.opened, round_.path, place).fine()
        for _ in range(ROUNDS):
            bodies = (moves_of_money.moves, moves_of_money.moves, moves_of_money.recovers)
            self._lives(round_, place, bodies, crash)
        return judged(round_, *moves_oracle.verify(round_.path, place, round_.history))


class TwoPhaseOnServer(OnServer):
    """`eoslog.tpc` with two databases of PostgreSQL, and producers."""

    name, goal = "tpc postgresql", ("kills", 1_000)
    steps = TPC
    _rounds = TwoPhase._rounds

    def _places(self, running: server.Server) -> Any:
        """Two databases, so that each has its own prepared transactions."""
        options = "options='-c lock_timeout=300ms'"
        return tuple(Place("postgresql", f"{running.database()} {options}") for _ in range(2))
