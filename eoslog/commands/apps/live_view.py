"""The live view of an application: a table on a terminal, otherwise lines.

On a terminal, stdout and stderr of the processes go through a pipe to this process, which prints
them above the table.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from eoslog.commands.context import counted, shown

if TYPE_CHECKING:
    from eoslog.app import ProcessStatus

__all__ = ["view"]

_LINE_S = 5.0
_RATE_S = 5.0
"""The time over which a rate is taken."""

Statuses = Sequence["ProcessStatus"]


class Rates:
    """Records per second, from counts at several times."""

    def __init__(self) -> None:
        """Begin without counts."""
        self._seen: dict[int, list[tuple[float, int]]] = {}

    def of(self, number: int, records: int, now: float) -> float:
        """Return the rate of a process; 0 at its first count."""
        seen = self._seen.setdefault(number, [])
        seen.append((now, records))
        while now - seen[0][0] > _RATE_S and len(seen) > 2:
            seen.pop(0)
        (began, before), took = seen[0], now - seen[0][0]
        return max(0, records - before) / took if took > 0 and now > began else 0.0


def total_line(app: str, statuses: Statuses, rate: float) -> str:
    """Return the state of an application in one line."""
    running = sum(status.state == "running" for status in statuses)
    lags = [status.lag for status in statuses if status.lag is not None]
    reports = [status.report for status in statuses]
    parts = [
        f"{running} of {len(statuses)} process{'' if len(statuses) == 1 else 'es'} running",
        f"{rate:,.0f} records/s",
        f"lag {min(lags):,}" if lags else "lag unknown",
        f"{sum(status.waiting for status in statuses):,} waiting",
        f"{sum(report.retried for report in reports):,} retried",
        f"{counted(sum(report.dead_letters for report in reports), 'dead letter')}",
    ]
    return f"{app}: " + ", ".join(parts)


@contextlib.contextmanager
def view(app: str) -> Iterator[Callable[[Statuses], None]]:
    """Yield a function that shows the status of processes.

    Args:
        app: the id of the application.
    """
    if sys.stderr.isatty():
        with _terminal(app) as show:
            yield show
    else:
        yield _lines(app, sys.stderr)


def _lines(app: str, target: IO[str]) -> Callable[[Statuses], None]:
    rates = Rates()
    next_line = time.monotonic() + _LINE_S
    ended = False

    def show(statuses: Statuses) -> None:
        nonlocal next_line, ended
        now = time.monotonic()
        over = all(status.state == "ended" for status in statuses)
        if (now < next_line and not over) or ended:
            return
        ended, next_line = over, now + _LINE_S
        rate = rates.of(-1, sum(status.report.records for status in statuses), now)
        if not over:
            print(total_line(app, statuses, rate), file=target, flush=True)

    return show


@contextlib.contextmanager
def _terminal(app: str) -> Iterator[Callable[[Statuses], None]]:
    rates = Rates()
    with _own_terminal() as (terminal, output):
        console = Console(file=terminal, force_terminal=True, highlight=False)

        def pass_on() -> None:
            for line in output:
                console.print(Text(line.rstrip("\n")))

        printer = threading.Thread(target=pass_on, daemon=True)
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            printer.start()

            def show(statuses: Statuses) -> None:
                live.update(_table(app, statuses, rates), refresh=True)

            yield show
        # Closing the last writer of the pipe ends the thread.
    printer.join(1.0)


@contextlib.contextmanager
def _own_terminal() -> Iterator[tuple[IO[str], IO[str]]]:
    """Yield the terminal, and what this process and its children print."""
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # as on a terminal
    kept = {fd: os.dup(fd) for fd in (1, 2) if os.isatty(fd)}
    terminal = os.fdopen(os.dup(kept.get(2, 2)), "w", buffering=1)
    output = os.fdopen(read, encoding="utf-8", errors="backslashreplace")
    try:
        for fd in kept:
            os.dup2(write, fd)
        os.close(write)
        yield terminal, output
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, original in kept.items():
            os.dup2(original, fd)
            os.close(original)


def _table(app: str, statuses: Statuses, rates: Rates) -> Group:
    now = time.monotonic()
    each = {status.number: rates.of(status.number, status.report.records, now)
            for status in statuses}  # fmt: skip
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in (
        ("pid", "right"), ("state", "left"), ("records/s", "right"), ("records", "right"),
        ("waiting", "right"), ("restarts", "right"), ("doing", "left"),
    ):  # fmt: skip
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for status in statuses:
        doing = status.doing
        if doing and status.seconds >= 1:
            doing += f" ({status.seconds:.0f} s)"
        table.add_row(
            "" if status.pid is None else str(status.pid), status.state,
            f"{each[status.number]:,.0f}", f"{status.report.records:,}", f"{status.waiting:,}",
            str(status.restarts), Text(shown(doing)),
        )  # fmt: skip
    return Group(Text(total_line(app, statuses, sum(each.values()))), table)
