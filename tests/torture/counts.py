"""The counts of `how-we-know.md`, taken from the figures of all torture runs.

`python -m tests.torture.counts` writes the table into `docs/explanation/how-we-know.md`.
`Report.add_to` does the same after a run.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from tests.paths import SOURCE

PAGE = SOURCE / "docs/explanation/how-we-know.md"
RUNS = SOURCE / "tests/torture/torture-report.json"
MUTATIONS = SOURCE / "tests/mutation/mutations.toml"
REGRESSIONS = SOURCE / "docs/contributing/regressions.md"
BEGIN, END = "<!-- counts: begin -->", "<!-- counts: end -->"

KILLED = (
    "kill", "decisions", "syscall", "counted calls", "producers", "transform", "storm", "remade", "joins",
    "onlookers", "hanging", "many topics", "moves", "half", "half power", "ids", "holder", "stop",
    "power", "ends: killed at the exit", "atomic", "atomic postgresql", "sink", "sink postgresql",
    "tpc", "tpc postgresql",
)  # fmt: skip
SUSPENDED = (
    ("stop", "stops"), ("holder", "holders stopped"), ("atomic", "zombies"),
    ("atomic postgresql", "zombies"), ("sink", "zombies"), ("sink postgresql", "zombies"),
    ("tpc", "zombies"), ("tpc postgresql", "zombies"),
)  # fmt: skip
ROWS = (
    ("Processes killed", tuple(name if ":" in name else f"{name}: kills" for name in KILLED)),
    ("Power losses on real file systems", ("power: cuts", "half power: cuts")),
    ("Simulated crashes", ("simulator: simulated crashes",)),
    (
        "Disk operations that failed, real and simulated",
        (
            "refusal: refused calls",
            "threads: refused calls",
            "failing device: failed writebacks",
            "failing calls: failing calls",
        ),
    ),
    ("Full disks", ("full disk: full disks",)),
    ("Bits flipped", ("flipped bits: flipped bits",)),
    ("Processes suspended", tuple(f"{name}: {what}" for name, what in SUSPENDED)),
    (
        "Records processed by workers that were killed",
        ("transform: records transformed", "storm: records transformed"),
    ),
    ("Inputs to parsers", ("fuzz: inputs",)),
)
"""Rows of the table: what is counted, and the counts ("harness: count") that are added up."""


def totals(runs: list[dict[str, Any]]) -> Counter[str]:
    """Add up every count of all runs, by "harness: count"."""
    total: Counter[str] = Counter()
    for run in runs:
        for name, counts in run["counts"].items():
            total.update({f"{name}: {what}": n for what, n in counts.items()})
    return total


def table(runs: list[dict[str, Any]]) -> str:
    """Return the table of the page: faults, their counts, and violations."""
    total = totals(runs)
    lines = ["| What was done | Count |", "|---|---:|"]
    lines += [f"| {what} | {sum(total[key] for key in keys):,} |" for what, keys in ROWS]
    hours = sum(run["seconds"] for run in runs) / 3600
    violations = sum(len(run["violations"]) for run in runs)
    lines.append(f"| Runs, with their hours of work | {len(runs)}, {hours:.0f} h |")
    lines.append(f"| Violations, in eoslog or in a test program | {violations} |")
    mutants = len(tomllib.loads(MUTATIONS.read_text())["mutant"])
    lines.append(f"| Recorded one-line changes, each of which makes a test fail | {mutants} |")
    bugs = len(re.findall(r"^\| \d+ \|", REGRESSIONS.read_text(), re.MULTILINE))
    lines.append(f"| Bugs of other systems that were examined | {bugs} |")
    return "\n".join(lines)


def with_table(page: str, runs: list[dict[str, Any]]) -> str:
    """Return the page with the table between its marks.

    Raises:
        ValueError: if a mark is missing.
    """
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return f"{page[:begin]}\n\n{table(runs)}\n\n{page[end:]}"


def write(page: Path = PAGE, figures: Path = RUNS) -> None:
    """Write the table of all runs into the page."""
    page.write_text(with_table(page.read_text(), json.loads(figures.read_text())))


if __name__ == "__main__":
    write()
