"""The goals, and the table that says by how much each is reached or missed.

Usage: python -m bench.ratios RESULTS.json [--markdown] [--strict]
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.goals import ROWS
from bench.row import Row


@dataclass(frozen=True)
class Line:
    """A line of the table, measured.

    Attributes:
        ours, peer: units a second by medians; None where there is none.
        minima, medians: the ratio that is compared with the goal, of the best runs and of the medians.
        verdict: "reached", by how much it is missed, or why it was not measured.
        missed, broken: the goal is not reached; the value is below the minimum.
    """

    what: str
    ours: float | None = None
    peer: float | None = None
    minima: float | None = None
    medians: float | None = None
    goal: str = ""
    verdict: str = ""
    missed: bool = False
    broken: bool = False


def key(fullname: str) -> str:
    """`file:test` of a pytest node."""
    path, test = fullname.split("::")[:2]
    return path.rsplit("/", 1)[-1].removesuffix(".py") + ":" + test


@dataclass(frozen=True)
class Contest:
    """A contest's measurements: seconds of every run by contender, ours under ""."""

    unit: str
    seconds: dict[str, list[float]]
    units: dict[str, float]
    absent: dict[str, str]

    def per_unit(self, name: str, of: Any) -> float:
        """Seconds a unit by `min` or `statistics.median`."""
        return float(of(self.seconds[name])) / self.units[name]


def contests(results: Iterable[tuple[str, dict[str, Any], list[float]]]) -> dict[str, Contest]:
    """Contests by `file:test`, from pytest-benchmark's names, information and times."""
    found = {}
    for name, info, data in results:
        peers = {peer: (about["seconds"], about["units"]) for peer, about in info["peers"].items()}
        everybody = {"": (info.get("figures", data), info["units"])} | peers
        found[key(name)] = Contest(
            info["unit"],
            {who: seconds for who, (seconds, _) in everybody.items()},
            {who: units for who, (_, units) in everybody.items()},
            info["absent"],
        )
    return found


def measured(row: Row, contest: Contest) -> Line:
    """A row's line."""
    if row.limit is not None and not row.peers:
        return _number(row, contest)
    missing = [name for name in row.peers if name not in contest.seconds]
    if missing:
        why = contest.absent.get(missing[0], "not measured")
        return Line(row.what, goal=row.goal, verdict=f"no {missing[0]}: {why}")
    ratios, peers = [], []
    for of in (min, statistics.median):
        mine = contest.per_unit(row.ours, of)
        theirs = max(contest.per_unit(name, of) for name in row.peers)
        ratios.append(theirs / mine if row.most is None else mine / theirs)
        peers.append(theirs)
    ours = 1 / contest.per_unit(row.ours, statistics.median)
    verdict, missed = _judged(row, ratios, peers)
    if missed and row.instead is not None and row.instead[0] in contest.seconds:
        peer, share = row.instead
        other = measured(Row(row.what, row.test, (peer,), row.ours, least=share), contest)
        verdict, missed = f"{other.medians:.2f} of {peer}, {other.verdict}", other.missed
    broken = row.floor is not None and max(ratios) < row.floor
    return Line(
        row.what, ours, 1 / peers[1], ratios[0], ratios[1], row.goal,
        f"BELOW THE MINIMUM {row.floor:g}" if broken else verdict, missed, broken,
    )  # fmt: skip


def _judged(row: Row, ratios: list[float], peers: list[float]) -> tuple[str, bool]:
    if row.least is not None:
        short = [ratio / row.least - 1 for ratio in ratios]
    elif row.most is not None:
        plus = (row.plus_us or 0) * 1e-6
        bars = [max(row.most, 1 + plus / peer) if plus else row.most for peer in peers]
        short = [bar / ratio - 1 for bar, ratio in zip(bars, ratios, strict=True)]
    else:
        return "held" if row.floor is not None else "", False
    if min(short) >= 0:
        return "reached", False
    if max(short) >= 0:
        return f"{'best run' if short[0] >= 0 else 'median'} only", True
    return f"missed by {-min(short) * 100:.0f} %", True


def _number(row: Row, contest: Contest) -> Line:
    assert row.limit is not None
    best, value = (contest.per_unit(row.ours, of) for of in (min, statistics.median))
    missed = value > row.limit
    over = f"missed by {(value / row.limit - 1) * 100:.0f} %" if missed else "reached"
    return Line(
        row.what, None if row.in_bytes else 1 / value, None, best / row.limit, value / row.limit,
        row.goal, f"{row.figure(value)}, {over}", missed,
    )  # fmt: skip


def lines(found: dict[str, Contest]) -> Iterator[Line]:
    """Every goal's line, then those peers that have no goal."""
    for row in ROWS:
        if row.test in found:
            yield measured(row, found[row.test])
    named = {(row.test, peer) for row in ROWS for peer in row.peers}
    for test, contest in found.items():
        for peer in [*contest.seconds, *contest.absent]:
            if peer and (test, peer) not in named:
                what = f"{test.split(':test_')[1].replace('_', ' ')} / {peer}"
                yield measured(Row(what, test, (peer,)), contest)


def curves(found: dict[str, Contest]) -> list[str]:
    """The time of one call at 1x, 10x and 100x, for each work that must not grow."""
    made = []
    for test, contest in found.items():
        if "test_growth[" not in test:
            continue
        times = [
            f"{size} {Row('', test).figure(contest.per_unit(who, statistics.median))}"
            for size, who in (("1x", "1x"), ("10x", "10x"), ("100x", ""))
        ]
        made.append(f"{test.split('[')[1].rstrip(']').replace('-', ', ')}: {', '.join(times)}")
    return made


PERCENTILES = ("", "p50", "p99", "p99.9")


def latencies(found: dict[str, Contest]) -> list[tuple[str, ...]]:
    """Rows of PERCENTILES: how long a commit takes, ours and the peers'."""
    made = []
    for test, contest in found.items():
        if not test.startswith("test_commit_latency:"):
            continue
        what = test.split(":test_")[1].replace("_", " ")
        for name, seconds in contest.seconds.items():
            ordered = sorted(seconds)
            times = (
                ordered[min(len(ordered) - 1, int(len(ordered) * of))] for of in (0.5, 0.99, 0.999)
            )
            made.append(
                (f"{what}, {name or 'eoslog'}", *(Row("", "").figure(one) for one in times))
            )
    return made


def left_out(found: dict[str, Contest]) -> list[str]:
    """The goals that this run did not measure."""
    return [row.what for row in ROWS if row.test not in found]


HEADER = ("what", "ours /s", "peer /s", "best run", "median", "goal", "result")


def cells(line: Line) -> tuple[str, ...]:
    """A line's texts, as HEADER names them."""

    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    return (
        line.what,
        number(line.ours, ",.0f" if (line.ours or 0) >= 100 else ",.1f"),
        number(line.peer, ",.0f" if (line.peer or 0) >= 100 else ",.1f"),
        number(line.minima, ".2f"),
        number(line.medians, ".2f"),
        line.goal,
        line.verdict,
    )


def table(found: Iterable[Line], *, markdown: bool = False) -> list[str]:
    """The lines to print."""
    return _table([HEADER, *map(cells, found)], markdown=markdown)


def table_of_latencies(found: dict[str, Contest], *, markdown: bool = False) -> list[str]:
    """The lines to print; none if no row measured latencies."""
    rows = latencies(found)
    return _table([PERCENTILES, *rows], markdown=markdown) if rows else []


def _table(rows: list[tuple[str, ...]], *, markdown: bool) -> list[str]:
    if markdown:
        made = ["| " + " | ".join(row) + " |" for row in rows]
        rule = "|".join("---:" if 1 <= i <= 4 else "---" for i in range(len(rows[0])))
        return [made[0], f"|{rule}|", *made[1:]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            text.rjust(width) if 1 <= i <= 4 else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def of_file(path: str) -> dict[str, Contest]:
    """The contests of a results file of pytest-benchmark."""
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)["benchmarks"]
    return contests((row["fullname"], row["extra_info"], row["stats"]["data"]) for row in rows)


def main(arguments: list[str]) -> int:
    """Print the table of a results file; with --strict a missed goal exits with 1."""
    found = list(lines(of_file(arguments[0])))
    print("\n".join(table(found, markdown="--markdown" in arguments)))
    return int(any(line.missed for line in found) and "--strict" in arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
