"""One row of the table: the timed subject and its peers, interleaved.

All run in one process or with one server. A pass runs every contender once, one after the
other. The order rotates from pass to pass, so that writeback, clock and neighbours affect all
of them alike. pytest-benchmark times our own runs; the peers run in its set-up hook, between
them. Before a timed run garbage is collected. If the disk matters, `os.sync()` then waits until
the pages of earlier runs are written. Both are untimed, for all contenders alike. After the
last pass each contender's `check` reports whether it did the work.
"""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

ROUNDS = 5
"""Timed passes of a slow row; a fast one gets more of them, up to MOST_ROUNDS."""
MOST_ROUNDS = 40
BUDGET_S = float(os.environ.get("EOSLOG_BENCH_BUDGET", 6))
"""Seconds of passes that a row may take beyond the ROUNDS that it needs."""
SLOW_S = 10.0
"""A peer that would take longer than this in all gets FEWEST timed runs."""
FEWEST = 3
SCALE = float(os.environ.get("EOSLOG_BENCH_SCALE", 1))
"""Times the default size of those rows that the goals name at a size which takes long."""


def scaled(default: int, most: int) -> int:
    """A row's size: its default times SCALE, at most what the goal names."""
    return min(most, max(1, int(default * SCALE)))


class AbsentError(Exception):
    """A peer that this machine does not have; the message says what is missing."""


def _no_check(_state: Any, _result: Any) -> None:
    """For contenders that make nothing which could be wrong."""


@dataclass(frozen=True)
class Contender:
    """One way to do a row's work.

    Attributes:
        name: name in the table.
        run: the timed part; called with what `around` yielded.
        around: created again for each run, entered before and left after it, untimed.
        check: called after the last run with what `around` yielded and `run` returned; raises if
            a count, a checksum or a durable end is not what it must be.
        units: number handled by one run; None: as many as the row says.
    """

    name: str
    run: Callable[[Any], Any]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    check: Callable[[Any, Any], None] = _no_check
    units: float | None = None


Peer = Contender | Callable[[], Contender]
"""A contender, or what makes one and raises AbsentError or ImportError where it can't be had."""


class Contest:
    """Runs rows; the fixture `contest` makes one for each test.

    Args:
        benchmark: pytest-benchmark's fixture.
    """

    def __init__(self, benchmark: Any) -> None:
        """Nothing runs before it is called."""
        self._benchmark = benchmark

    def __call__(
        self,
        ours: Contender,
        *peers: tuple[str, Peer] | Contender,
        units: float,
        unit: str = "records",
        disk: bool = False,
        rounds: int | None = None,
        warm: bool = True,
    ) -> dict[str, list[float]]:
        """Measure; the seconds of every timed run by contender.

        Args:
            ours: what is timed.
            peers: contenders, or (name, what makes one).
            units: handled by one run.
            unit: their name.
            disk: let the disk settle before each timed run.
            rounds: timed passes; None finds out from the first, untimed one.
            warm: begin with an untimed pass.
        """
        info = self._benchmark.extra_info
        info |= {"units": units, "unit": unit, "name": ours.name, "peers": {}, "absent": {}}
        field = [ours]
        for peer in peers:
            if isinstance(peer, Contender):
                field.append(peer)
                continue
            name, make = peer
            try:
                field.append(make() if callable(make) else make)
            except (AbsentError, ImportError) as error:
                info["absent"][name] = str(error)
        begun = time.perf_counter()
        if warm:
            for contender in field:
                _once(contender, disk=disk)
        if rounds is None:
            passes = int(BUDGET_S / (time.perf_counter() - begun))
            rounds = min(MOST_ROUNDS, max(ROUNDS, passes))
        seconds: dict[str, list[float]] = {contender.name: [] for contender in field}
        self._passes(field, rounds, disk, seconds)
        if self._benchmark.stats is not None:  # else benchmarks are disabled: it ran once
            seconds[ours.name] = list(self._benchmark.stats.stats.data)
        for peer in field[1:]:
            info["peers"][peer.name] = {
                "seconds": seconds[peer.name],
                "units": units if peer.units is None else peer.units,
            }
        return seconds

    def note(
        self,
        measure: Callable[[], dict[str, list[float]]],
        *,
        unit: str,
        ours: str = "",
        absent: dict[str, str] | None = None,
    ) -> None:
        """Rows whose figures are not the time of a call: seconds (or bytes) by contender.

        Args:
            measure: called once; its measurements, those of `ours` among them.
            unit: what one of them is about.
            ours: its name.
            absent: why peers were not measured; `measure` may add to it.
        """
        found = self._benchmark.pedantic(measure, rounds=1)
        self._benchmark.extra_info |= {
            "units": 1, "unit": unit, "name": ours, "absent": absent or {}, "figures": found.pop(ours),
            "peers": {name: {"seconds": values, "units": 1} for name, values in found.items()},
        }  # fmt: skip

    def _passes(
        self, field: list[Contender], rounds: int, disk: bool, seconds: dict[str, list[float]]
    ) -> None:
        ours = field[0]
        schedule = rotated(field, rounds)
        left = {contender.name: rounds for contender in field}
        assert len(left) == len(field), "two contenders of one name"
        running: list[ExitStack] = []
        states: list[Any] = []

        def peers_first() -> Iterator[Contender]:
            for contender in schedule:
                if contender is ours:
                    return
                yield contender

        def run_peers() -> None:
            for contender in peers_first():
                done = seconds[contender.name]
                if not left[contender.name]:
                    continue
                left[contender.name] -= 1
                if len(done) == FEWEST - 1 and sum(done) / len(done) * rounds > SLOW_S:
                    left[contender.name] = 0
                done.append(_once(contender, disk=disk, check=not left[contender.name]))

        def before() -> tuple[tuple[Any], dict[str, Any]]:
            run_peers()
            running.append(ExitStack())
            states.append(running[0].enter_context(ours.around()))
            settle(disk)
            return (states[0],), {}

        results: list[Any] = []

        def run(state: Any) -> Any:
            results[:] = [ours.run(state)]

        def after(state: Any) -> None:
            with running.pop():
                states.clear()
                left[ours.name] -= 1
                if not left[ours.name]:
                    ours.check(state, results[0])
            results.clear()

        try:
            self._benchmark.pedantic(run, setup=before, teardown=after, rounds=rounds)
            if running:  # benchmarks are disabled: it ran once and was not torn down
                left[ours.name] = 1
                after(states[0])
        finally:
            for stack in running:
                stack.close()
        run_peers()


def rotated(field: list[Contender], rounds: int) -> Iterator[Contender]:
    """The order of all runs: each pass begins one contender later than the last."""
    return itertools.chain.from_iterable(
        field[i % len(field) :] + field[: i % len(field)] for i in range(rounds)
    )


def settle(disk: bool) -> None:
    """Prepare a timed run: no garbage to collect, no pages to write back."""
    gc.collect()
    if disk:
        os.sync()


def _once(contender: Contender, *, disk: bool, check: bool = False) -> float:
    with contender.around() as state:
        settle(disk)
        begun = time.perf_counter()
        result = contender.run(state)
        took = time.perf_counter() - begun
        if check:
            contender.check(state, result)
    return took
