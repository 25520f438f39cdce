"""Put a run's table into pages: what was measured where, how noisy, and every row, or the goals alone.

Usage: python -m bench.report .make/bench.json docs/performance.md README.md
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from bench import ratios

BEGIN, END = "<!-- table: python -m bench.report -->", "<!-- end of table -->"
BEGIN_SHORT = "<!-- goals: python -m bench.report -->"


def noise(found: dict[str, ratios.Contest]) -> list[float]:
    """By how much a row's middle run is slower than its best one, for everybody in every row."""
    return sorted(
        statistics.median(seconds) / min(seconds)
        for contest in found.values()
        for seconds in contest.seconds.values()
        if len(seconds) >= 3 and min(seconds) > 0
    )


def heading(results: dict[str, Any], found: dict[str, ratios.Contest]) -> list[str]:
    """When, where, what, and how noisy."""
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
            f"Noise: the middle run took {statistics.median(spread):.2f} times the best one in half of "
            f"the rows, {spread[len(spread) * 9 // 10]:.2f} times in the worst tenth."
        )
    return lines


def short(goals: list[ratios.Line]) -> list[str]:
    """Every goal with its ratio by the middle runs, or its figure, two in a line; of the growth
    of each work the worst."""
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
        if not line.goal.startswith("floor")
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


def page(text: str, results: dict[str, Any]) -> str:
    """The page with the run's table between its marks, or with the goals between those.

    Raises:
        ValueError: the marks are missing.
    """
    found = ratios.contests(
        (row["fullname"], row["extra_info"], row["stats"]["data"]) for row in results["benchmarks"]
    )
    every = list(ratios.lines(found))
    goals = [line for line in every if line.goal]
    others = [line for line in every if not line.goal]
    reached = sum(not (line.missed or line.broken or line.minima is None) for line in goals)
    total = f"{reached} of {len(goals)} goals and floors are reached."
    if BEGIN_SHORT in text:
        begin, end = text.index(BEGIN_SHORT), text.index(END)
        parts = [BEGIN_SHORT, *short(goals), "", f"{heading(results, found)[0]} {total}", ""]
        return text[:begin] + "\n".join(parts) + text[end:]
    begin, end = text.index(BEGIN), text.index(END)
    parts = [
        BEGIN, "", *heading(results, found), "",
        total, "",
        *ratios.table(goals, markdown=True), "",
        *(f"Not measured in this run: {what}." for what in ratios.left_out(found)), "",
        "The time of one call by size (the middle run):", "",
        *(f"- {curve}" for curve in ratios.curves(found)), "",
        "Peers without a goal:", "",
        *ratios.table(others, markdown=True), "",
    ]  # fmt: skip
    return text[:begin] + "\n".join(parts) + text[end:]


def main(arguments: list[str]) -> int:
    """Rewrite the pages."""
    results = json.loads(Path(arguments[0]).read_text())
    for path in map(Path, arguments[1:]):
        path.write_text(page(path.read_text(), results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
