"""`eoslog bench`: measure this machine and this disk, in half a minute."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import eoslog
from eoslog._util.extras import to_install
from eoslog.commands.context import CliContext

if TYPE_CHECKING:
    from eoslog.commands.bench.work import Bench, Figure

PASSES = 3
"""The minimum number of passes, regardless of the time."""
PICTURE = "eoslog-bench.png"


@click.command()
@click.option(
    "-n", "--records", "count", type=click.IntRange(1), default=200_000, show_default=True,
    help="Records per bulk measurement.",
)  # fmt: skip
@click.option(
    "-s", "--size", type=click.IntRange(1, 1_000_000), default=100, show_default=True,
    help="Bytes per value.",
)  # fmt: skip
@click.option(
    "--durability", "kind", type=click.Choice(["strict", "os"]), default="strict",
    show_default=True, help="strict: wait for the disk; os: wait for the page cache.",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(0), default=25.0, show_default=True,
    help=f"Repeat for this time, at least {PASSES} times.",
)  # fmt: skip
@click.option(
    "--picture", type=click.Path(dir_okay=False), default=None, show_default=PICTURE,
    help="File for the picture; '' draws none. Needs matplotlib.",
)  # fmt: skip
@click.pass_obj
def bench(
    context: CliContext, count: int, size: int, kind: str, seconds: float, picture: str | None
) -> None:
    """Measure eoslog on this machine, in half a minute.

    Writes and reads records in a new directory on the disk of -d, and removes it afterwards. Prints
    a table, and draws a picture if matplotlib is installed. Every figure is the median of several
    passes.

    The table compares eoslog with the limits of the machine, measured in alternation: copying the
    values in memory, writing them with one fdatasync, one small append with fdatasync. `of_limit`
    is the fraction of the limit: a scan at 50 % takes twice as long as a copy, a commit at 50 % as
    long as two flushes. `spread` is the slowest run divided by the fastest.

    \b
    What to look at:
      produce_many far below its limit   small values, or a disk that is faster than the CPU
      produce() far below produce_many   the calls themselves: use produce_many, produce_arrow
      commit of one record is slow       it needs two flushes: commit more records together
      a large spread                     something else uses the machine or its disk

    \b
    Examples:
      eoslog bench                       defaults: 100-byte values, strict
      eoslog bench -s 1000 -n 50000      larger values
      eoslog bench --durability os       the cost of waiting for the disk
      eoslog -d /mnt/disk bench          another disk
      eoslog --format json bench         for programs
    """  # noqa: D301
    from eoslog.commands.bench.work import Bench  # not for every command: it imports numpy

    wanted = PICTURE if picture is None else picture
    if picture and find_spec("matplotlib") is None:
        raise click.UsageError(f"--picture needs matplotlib: {to_install('demo', 'matplotlib')}")
    where = _existing(Path(context.directory))
    with (
        tempfile.TemporaryDirectory(prefix="eoslog-bench-", dir=where) as place,
        eoslog.open(Path(place) / "log", durability=kind) as log,
    ):
        work = Bench(Path(place), log, count, size)
        passes = _measure(context, work, seconds)
    figures = list(work.figures.values())
    context.show([_row(figure, work) for figure in figures])
    context.say(f"{passes} passes, durability {kind}, values of {size} bytes")
    if not work.has_arrow:
        context.say(f"scan() is left out: it needs pyarrow; {to_install('arrow', 'pyarrow')}")
    if wanted:
        _draw(context, figures, f"eoslog {eoslog.__version__} on {machine()}: "
              f"{size}-byte values, {kind}", wanted)  # fmt: skip


def _measure(context: CliContext, work: Bench, seconds: float) -> int:
    from eoslog.commands.bench.work import WrongResult

    begun = time.monotonic()
    passes = 0
    with context.progress(of="") as bar:
        task = bar.add_task("bench", total=1.0)
        while passes < PASSES or _time_for_more(time.monotonic() - begun, passes, seconds):
            for i, step in enumerate(works := work.works):
                try:
                    step()
                except WrongResult as error:
                    raise click.ClickException(str(error)) from error
                done = (passes + (i + 1) / len(works)) / PASSES
                bar.update(
                    task, completed=min(done, (time.monotonic() - begun) / max(seconds, 1e-9))
                )
            passes += 1
    return passes


def _time_for_more(spent: float, passes: int, seconds: float) -> bool:
    return spent + spent / passes < seconds


def _row(figure: Figure, work: Bench) -> dict[str, Any]:
    from eoslog.commands.bench.work import limit_of

    limit = limit_of(figure, work.figures)
    share = None
    if limit is not None:
        share = (
            limit.median / figure.median if figure.latency else figure.per_second / limit.per_second
        )
    low, high = min(figure.seconds), max(figure.seconds)
    return {
        "what": figure.what,
        "records_per_s": None if figure.latency else round(figure.per_second),
        "MB_per_s": None if figure.latency else round(figure.per_second * work.size / 1e6, 1),
        "median_us": round(figure.median * 1e6, 1) if figure.latency else None,
        "of_limit": None if share is None else f"{share:.0%}",
        "spread": f"x{high / low:.1f}",
    }


def _draw(context: CliContext, figures: list[Figure], title: str, path: str) -> None:
    if find_spec("matplotlib") is None:
        context.say(f"no picture: it needs matplotlib; {to_install('demo', 'matplotlib')}")
        return
    from eoslog.commands.bench import picture

    picture.draw(figures, title, path)
    context.say(f"picture: {os.path.abspath(path)}")


def _existing(path: Path) -> Path:
    """Return the path, or the nearest directory above it that exists."""
    path = path.absolute()
    while not path.is_dir():
        path = path.parent
    return path


def machine() -> str:
    """Return the processor's name and count, as far as the system reports them."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    name = line.partition(":")[2].strip()
                    break
    except OSError:
        pass
    return f"{name}, {os.cpu_count()} CPUs"


COMMANDS = (bench,)
