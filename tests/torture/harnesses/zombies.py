"""Two zombies of one transactional id, and a resolver, with `Log.atomic`.

Two processes place orders with the same transactional id. Each is suspended again and again, so the
other one takes the id over and decides what the first has prepared. A third process asks the
database about everything that is prepared. So each of them acts on what has changed in the meantime.

`python -m tests.torture.harnesses.zombies --minutes 10` does so in one directory for that time.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.faults.harness import Running, live, start
from tests.sql.databases import Place
from tests.torture.harness import Round, Step
from tests.torture.harnesses.databases import OnServer, WithDatabase, judged
from tests.torture.oracles import orders as oracle
from tests.torture.workloads import orders

STEP_S = 4.0
SUSPENDED_S = 0.4


class Zombies(WithDatabase):
    """Seconds of suspended and killed processes, then the verdict; with SQLite."""

    name, goal = "zombies", ("zombies", 10_000)
    seconds = STEP_S

    def _rounds(self, round_: Round, place: Place, crash: Callable[[], None]) -> Step:
        over, rng = round_.place / "over", round_.rng
        live(orders.founded, round_.path, place).fine()

        def begin(body: Any) -> Running:
            return start(
                body, round_.path, place, round_.history, round_.name(), round_.seed(), over
            )

        bodies = (orders.contends, orders.contends, orders.arbitrates)
        running = [begin(body) for body in bodies]
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            time.sleep(rng.uniform(0, 0.1))
            number = rng.choice((0, 0, 1, 1, 2))
            if rng.random() < 0.9:
                _suspend(running[number], rng)
                round_.step.counts["zombies"] += 1
                continue
            round_.ended(running[number].kill())
            running[number] = begin(bodies[number])
            if rng.random() < 0.1:
                crash()
        over.touch()
        for one in running:
            round_.ended(one.end())
        return judged(round_, *oracle.verify(round_.path, place, round_.history))


class ZombiesOnServer(OnServer, Zombies):
    """The same with PostgreSQL, where a zombie does not block the others."""

    name, goal = "zombies postgresql", ("zombies", 10_000)


def _suspend(one: Running, rng: random.Random) -> None:
    one.signal(signal.SIGSTOP)
    time.sleep(rng.uniform(0, SUSPENDED_S))
    one.signal(signal.SIGCONT)


def main() -> int:
    """Run one step of some minutes for each kind of database that can be had."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.harnesses.zombies")
    parser.add_argument("--minutes", type=float, default=10, help="[default: %(default)s]")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="[default: the time]")
    arguments = parser.parse_args()
    kinds = [kind for kind in (Zombies(), ZombiesOnServer()) if kind.missing() is None]
    violations = []
    for harness in kinds:
        harness.seconds = 60 * arguments.minutes / len(kinds)
        try:
            step = harness.step(arguments.seed)
        finally:
            harness.close()
        counts = ", ".join(f"{count} {what}" for what, count in sorted(step.counts.items()))
        found = "\n".join(step.violations) or "no violation"
        print(f"{harness.name}: seed {arguments.seed}, {counts}\n{found}", flush=True)
        violations += step.violations
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
