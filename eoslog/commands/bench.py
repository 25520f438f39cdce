"""`eoslog bench`: what this machine and this disk give, in half a minute."""

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
from eoslog.commands.face import Face

if TYPE_CHECKING:
    from eoslog.commands.bench_work import Bench, Figure

PASSES = 3
"""At least so many, whatever the time."""
PICTURE = "eoslog-bench.png"


@click.command()
@click.option(
    "-n", "--records", "count", type=click.IntRange(1), default=200_000, show_default=True,
    help="Records of each bulk measurement.",
)  # fmt: skip
@click.option(
    "-s", "--size", type=click.IntRange(1, 1_000_000), default=100, show_default=True,
    help="Bytes of a value.",
)  # fmt: skip
@click.option(
    "--durability", "kind", type=click.Choice(["strict", "os"]), default="strict",
    show_default=True, help="strict: acknowledged means on the disk; os: in the page cache.",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(0), default=25.0, show_default=True,
    help=f"Repeat for so long, at least {PASSES} times.",
)  # fmt: skip
@click.option(
    "--picture", type=click.Path(dir_okay=False), default=None, show_default=PICTURE,
    help="Where to draw the figures; '' for nowhere. Needs matplotlib.",
)  # fmt: skip
@click.pass_obj
def bench(
    face: Face, count: int, size: int, kind: str, seconds: float, picture: str | None
) -> None:
    """Measure this machine: half a minute, a table and a picture.

    Records are written and read in a new directory on the disk of -d, which is removed after.
    Every figure is the middle one of several passes.

    Beside eoslog's stand the machine's own limits, measured by turns with it: copying the values in
    memory, writing them with one fdatasync, one small append with fdatasync. `of_limit` says how
    near a figure comes to its own: a scan at 50 % takes twice as long as a copy, a commit at 50 %
    as long as two flushes. `spread` is the slowest run over the fastest.

    \b
    What to look at:
      produce_many far below its limit   small values, or a disk that is faster than the CPU
      produce() far below produce_many   the calls themselves: use produce_many, produce_arrow
      commit of one record is slow       it needs two flushes: put more into a transaction
      a large spread                     something else uses the machine or its disk

    \b
    Examples:
      eoslog bench                       as it comes: 100-byte values, strict
      eoslog bench -s 1000 -n 50000      larger values
      eoslog bench --durability os       what it costs to wait for the disk
      eoslog -d /mnt/disk bench          another disk
      eoslog --format json bench         for programs
    """  # noqa: D301
    from eoslog.commands.bench_work import Bench  # not for every command: it imports numpy

    wanted = PICTURE if picture is None else picture
    if picture and find_spec("matplotlib") is None:
        raise click.UsageError("--picture needs matplotlib: pip install 'eoslog[demo]'")
    where = _existing(Path(face.directory))
    with (
        tempfile.TemporaryDirectory(prefix="eoslog-bench-", dir=where) as place,
        eoslog.open(Path(place) / "log", durability=kind) as log,
    ):
        work = Bench(Path(place), log, count, size)
        passes = _measure(face, work, seconds)
    figures = list(work.figures.values())
    face.show([_row(figure, work) for figure in figures])
    face.say(f"{passes} passes, durability {kind}, values of {size} bytes")
    if not work.has_arrow:
        face.say("scan() is left out: it needs pyarrow (pip install 'eoslog[arrow]')")
    if wanted:
        _draw(face, figures, f"eoslog {eoslog.__version__} on {machine()}: "
              f"{size}-byte values, {kind}", wanted)  # fmt: skip


def _measure(face: Face, work: Bench, seconds: float) -> int:
    from eoslog.commands.bench_work import WrongResult

    begun = time.monotonic()
    passes = 0
    with face.progress(of="") as bar:
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
    from eoslog.commands.bench_work import limit_of

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


def _draw(face: Face, figures: list[Figure], title: str, path: str) -> None:
    if find_spec("matplotlib") is None:
        face.say("no picture: it needs matplotlib (pip install 'eoslog[demo]')")
        return
    from eoslog.commands import bench_picture

    bench_picture.draw(figures, title, path)
    face.say(f"picture: {os.path.abspath(path)}")


def _existing(path: Path) -> Path:
    """The path, or the nearest directory above that exists."""
    path = path.absolute()
    while not path.is_dir():
        path = path.parent
    return path


def machine() -> str:
    """The processor's name and count, as far as the system tells."""
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
