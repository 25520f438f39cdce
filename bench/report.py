"""Put a run's tables into pages: every row, the goals alone, or ten figures.

Usage: python -m bench.report .make/bench.json docs/contributing/benchmarks.md
docs/explanation/performance.md

The ten figures are for users. A page has a table where it has one of the marks below; each
table ends at `END`.
"""

from __future__ import annotations

import json
import statistics
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench import ratios
from bench.row import Row

END = "<!-- end of table -->"
BEGIN = "<!-- table: python -m bench.report -->"
BEGIN_SHORT = "<!-- goals: python -m bench.report -->"
BEGIN_FIGURES = "<!-- figures: python -m bench.report -->"


class Figure(NamedTuple):
    """A line of the ten figures: the row of the benchmark, and how a user reads it.

    Attributes:
        row: `ratios.Line.what`.
        what: the work.
        unit: what is counted per second; empty to show the time of one unit.
        peer: what the ratio compares with; empty for no comparison.
    """

    row: str
    what: str
    unit: str = "records/s"
    peer: str = ""


FIGURES = (
    Figure("scan / memcpy of the values", "Read columns with `Log.scan`", peer="a memory copy"),
    Figure("consume(1000) / confluent-kafka", "`Consumer.consume(1000)`", peer="confluent-kafka"),
    Figure("poll() / confluent-kafka", "`Consumer.poll()`", peer="confluent-kafka"),
    Figure(
        "produce() to durable / confluent-kafka", "`Producer.produce()`, on the disk",
        peer="confluent-kafka",
    ),
    Figure(
        "produce_many to durable / raw", "`Producer.produce_many()`, on the disk",
        peer="a plain write and flush",
    ),
    Figure(
        "transactions of 1,000 : flush every 1,000", "Transactions of 1,000 records, on the disk",
        peer="the same without transactions",
    ),
    Figure(
        "commit of one record : 4 KiB append+fdatasync", "Commit of one record, on the disk", "",
        peer="the time of a 4 KiB write and flush",
    ),
    Figure(
        "durable produce to a blocked consumer : fdatasync",
        "From `produce` to a waiting consumer, on the disk", "", peer="the time of one flush",
    ),
    Figure(
        "64 writers / one writer", "64 processes, each flushing every record",
        peer="one process",
    ),
    Figure("open a partition, cold", "Open a partition that is not cached", ""),
)  # fmt: skip


def noise(found: dict[str, ratios.Contest]) -> list[float]:
    """Return by how much the median of each contender exceeds its best run."""
    return sorted(
        statistics.median(seconds) / min(seconds)
        for contest in found.values()
        for seconds in contest.seconds.values()
        if len(seconds) >= 3 and min(seconds) > 0
    )


def heading(results: dict[str, Any], found: dict[str, ratios.Contest]) -> list[str]:
    """Return when, where and what was measured, and how noisy it was."""
    machine, commit = results["machine_info"], results["commit_info"]
    cpu = machine.get("cpu", {})
    changed = " with changes" if commit.get("dirty") else ""
    spread = noise(found)
    lines = [
        f"Measured {results['datetime'][:16].replace('T', ' ')} UTC at commit "
        f"{str(commit.get('id', 'unknown'))[:10]}{changed} on {cpu.get('brand_raw', machine.get('machine'))}, "
        f"{cpu.get('count', '?')} CPUs, {machine['system']} {machine['release']}, "
        f"Python {machine['python_version']}.",
    ]
    if spread:
        lines.append(
            f"Noise: the median took {statistics.median(spread):.2f} times as long as the best run in "
            f"half of the rows, {spread[len(spread) * 9 // 10]:.2f} times in the worst tenth."
        )
    return lines


def short(goals: list[ratios.Line]) -> list[str]:
    """Return every goal with its median ratio or figure, two per line.

    Of the growth of each work, only the worst is shown.
    """
    rows: dict[str, ratios.Line] = {}
    for line in goals:
        name = (
            line.what.split(", 100x the ")[0] + ", 100x : 1x"
            if ", 100x" in line.what
            else line.what
        )
        if name not in rows or (line.medians or 0) > (rows[name].medians or 0):
            rows[name] = line
    cells = [
        f"{name} | {_reached(line)} | {line.goal}"
        for name, line in rows.items()
        if not line.goal.startswith("minimum")
    ]
    half = (len(cells) + 1) // 2
    pairs = zip(cells[:half], [*cells[half:], " | | "][:half], strict=True)
    header = ["| | ratio | goal | | ratio | goal |", "|---|---|---|---|---|---|"]
    return [*header, *(f"| {left} | {right} |" for left, right in pairs)]


def _reached(line: ratios.Line) -> str:
    if line.peer is None and line.medians is not None:
        return line.verdict.removesuffix(", reached")  # a time or a size says it already
    ratio = "" if line.medians is None else f"{line.medians:.2f}"
    return ratio if line.verdict == "reached" else f"{ratio}, {line.verdict}".removeprefix(", ")


def figures(lines: list[ratios.Line]) -> list[str]:
    """Return the table of ten figures; a row that was not measured is left out."""
    by_row = {line.what: line for line in lines}
    table = ["| Work | Figure | Compared |", "|---|---:|---|"]
    for figure in FIGURES:
        line = by_row.get(figure.row)
        if line is None or line.ours is None:
            continue
        if figure.unit:
            shown = f"{_rounded(line.ours)} {figure.unit}"
        else:
            shown = Row("", "").figure(1 / line.ours).replace(" us", " µs")
        compared = ""
        if figure.peer and line.medians is not None:
            slower = line.goal.startswith("time") and figure.unit  # the ratio is one of times
            ratio = 1 / line.medians if slower else line.medians
            compared = f"{ratio:.2f} times {figure.peer}"
        table.append(f"| {figure.what} | {shown} | {compared} |")
    return table


def _wrapped(text: str) -> list[str]:
    """Break a paragraph of a page into lines."""
    return textwrap.wrap(text, 100, break_on_hyphens=False)


def _rounded(value: float) -> str:
    """Three digits, with "million" for large numbers."""
    if value >= 1e6:
        return f"{value / 1e6:.3g} million"
    digits = max(0, len(str(int(value))) - 3)
    return f"{round(value, -digits):,.0f}"


def page(text: str, results: dict[str, Any]) -> str:
    """Return the page with the run's tables between its marks.

    Raises:
        ValueError: if the page has none of the marks, or a table without an end.
    """
    found = ratios.contests(
        (row["fullname"], row["extra_info"], row["stats"]["data"]) for row in results["benchmarks"]
    )
    every = list(ratios.lines(found))
    goals = [line for line in every if line.goal]
    others = [line for line in every if not line.goal]
    reached = sum(not (line.missed or line.broken or line.minima is None) for line in goals)
    total = f"{reached} of {len(goals)} goals and minimums are reached."
    measured, *noise_of_run = heading(results, found)
    tables: dict[str, Callable[[], list[str]]] = {
        BEGIN_FIGURES: lambda: [*figures(every), "", *_wrapped(measured)],
        BEGIN_SHORT: lambda: [*short(goals), "", *_wrapped(f"{measured} {total}")],
        BEGIN: lambda: [
            *_wrapped(" ".join([measured, *noise_of_run])), "",
            total, "",
            *ratios.table(goals, markdown=True), "",
            *(f"Not measured in this run: {what}." for what in ratios.left_out(found)), "",
            "The time of one call by size (median):", "",
            *(f"- {curve}" for curve in ratios.curves(found)), "",
            "How long a commit of one record takes:", "",
            *ratios.table_of_latencies(found, markdown=True), "",
            "Peers without a goal:", "",
            *ratios.table(others, markdown=True),
        ],
    }  # fmt: skip
    marks = [mark for mark in tables if mark in text]
    if not marks:
        raise ValueError("the page has no mark for a table")
    for mark in marks:
        begin = text.index(mark) + len(mark)
        end = text.index(END, begin)
        text = f"{text[:begin]}\n\n" + "\n".join(tables[mark]()) + f"\n\n{text[end:]}"
    return text


def main(arguments: list[str]) -> int:
    """Rewrite the pages."""
    results = json.loads(Path(arguments[0]).read_text())
    for path in map(Path, arguments[1:]):
        path.write_text(page(path.read_text(), results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
