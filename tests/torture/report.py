"""The findings of a torture run, and the page that adds its counts up over runs.

The page is `docs/contributing/torture-report.md`. Its figures are in `torture-report.json`: one
entry per run. `fixed.json` has the cause of each violation and the commit that fixed it, by
harness and seed. The page quotes it.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.torture.counts import write as write_counts

FIXED = Path(__file__).with_name("fixed.json")
"""Causes and fixes of violations."""
HEAD = """# Torture report

`make torture` writes this page. Counts add up over runs, each with its seed. A violation is a line
of `eoslog verify-history`, a difference between two readers, an untyped error, or a process that
died without being killed. `python -m tests.torture --only NAME --seed SEED --steps 1` repeats a step.
The minutes to a goal are those of one worker, at the rate of the runs that have recorded their times.
"""


class Report:
    """The run so far."""

    def __init__(self, seed: int) -> None:
        self.seed, self.began = seed, time.time()
        self.counts: dict[str, Counter[str]] = {}
        self.seconds: Counter[str] = Counter()
        self.goals: dict[str, tuple[str, int]] = {}
        self.not_run: dict[str, str] = {}
        self.violations: list[str] = []
        self.parts: dict[str, list[int]] = {}

    def take(self, step: dict[str, Any]) -> list[str]:
        """Add a step; its violations as text."""
        name = step["harness"]
        self.counts.setdefault(name, Counter()).update(step["counts"])
        self.counts[name]["steps"] += 1
        self.seconds[name] += step["seconds"]
        if step.get("part") is not None:
            self.parts.setdefault(name, []).append(step["part"])
        found = [
            v.replace(f"{os.getcwd()}/", "").replace(f"{sys.prefix}/", "")
            for v in step["violations"]
        ]
        texts = [f"VIOLATION {name} seed {step['seed']}: {v[:2000]}" for v in found]
        self.violations += texts
        return texts

    def line(self) -> str:
        """The live line."""
        total: Counter[str] = Counter()
        for counts in self.counts.values():
            total.update(counts)
        words = (
            "kills",
            "cuts",
            "simulated crashes",
            "refused calls",
            "verdicts",
            "steps",
            "inputs",
        )
        shown = [f"{total[word]} {word}" for word in words if total[word]]
        return f"seed {self.seed}, {', '.join(shown)}, {len(self.violations)} violations"

    def summary(self) -> Iterator[str]:
        """A line a harness."""
        for name, counts in sorted(self.counts.items()):
            shown = ", ".join(f"{n} {what}" for what, n in sorted(counts.items()) if n)
            yield f"{name:16} {self.seconds[name]:6.0f} s  {shown}"
        for name, why in self.not_run.items():
            yield f"{name:16} not run: {why}"
        yield f"seed {self.seed}, {len(self.violations)} violations"

    def entry(self) -> dict[str, Any]:
        """The run as it is kept."""
        return {
            "date": time.strftime("%Y-%m-%d", time.gmtime(self.began)),
            "seed": self.seed,
            "commit": _commit(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release().split('-')[0]}",
            "seconds": round(sum(self.seconds.values())),
            "counts": {name: dict(counts) for name, counts in sorted(self.counts.items())},
            "took": {name: round(took, 1) for name, took in sorted(self.seconds.items())},
            "parts": self.parts,
            "not_run": self.not_run,
            "violations": self.violations[:20],
        }  # fmt: skip

    def add_to(self, page: Path, figures: Path, notes: Path = FIXED) -> None:
        """Add the run to the figures and write the page of all runs."""
        runs = json.loads(figures.read_text()) if figures.exists() else []
        runs.append(self.entry())
        figures.write_text(json.dumps(runs, indent=1) + "\n")
        fixed = json.loads(notes.read_text()) if notes.exists() else []
        page.write_text("\n".join(render(runs, self.goals, fixed)) + "\n")
        for_users = page.parent.parent / "explanation" / "how-we-know.md"
        if for_users.exists():
            write_counts(for_users, figures)


def done_before(figures: Path) -> Counter[str]:
    """The counts of earlier runs; the keys are "harness: count"."""
    total: Counter[str] = Counter()
    for run in json.loads(figures.read_text()) if figures.exists() else []:
        for name, counts in run["counts"].items():
            total.update({f"{name}: {what}": n for what, n in counts.items()})
    return total


def parts_left(figures: Path | None, name: str, whole: int) -> list[int]:
    """The parts of a harness that no earlier run has taken, or else all parts."""
    runs = json.loads(figures.read_text()) if figures is not None and figures.exists() else []
    done = _parts(runs).get(name, set())
    return [part for part in range(whole) if part not in done] or list(range(whole))


def render(
    runs: list[dict[str, Any]],
    goals: dict[str, tuple[str, int]],
    fixed: list[dict[str, str]] | None = None,
) -> Iterator[str]:
    """The page of some runs; `fixed` says of violations what they came from."""
    total: dict[str, Counter[str]] = {}
    for run in runs:
        for name, counts in run["counts"].items():
            total.setdefault(name, Counter()).update(counts)
    longest = max(runs, key=lambda run: run["seconds"])["counts"]
    yield HEAD
    yield "| Harness | Done | In the longest run | Goal | Minutes to it | All counts |"
    yield "|---|---|---|---|---|---|"
    for name, parts in sorted(_parts(runs).items()):
        total[name]["distinct parts"] = len(parts)
    for name, counts in sorted(total.items()):
        unit, goal = goals.get(name, ("steps", 0))
        rest = ", ".join(
            f"{n:,} {what}" for what, n in sorted(counts.items()) if n and what != unit
        )
        once = longest.get(name, {}).get(unit, 0)
        left = _minutes_left(runs, name, unit, goal - counts[unit])
        yield f"| {name} | {counts[unit]:,} {unit} | {once:,} | {goal:,} | {left} | {rest} |"
    bad = sum(len(run["violations"]) for run in runs)
    yield f"\n{len(runs)} runs, {sum(run['seconds'] for run in runs):,} s of work, {bad} violations.\n"
    yield "| Date | Commit | Seed | Machine | Work | Violations | Not run |"
    yield "|---|---|---|---|---|---|---|"
    for run in runs:
        left = "; ".join(f"{name}: {why}" for name, why in run["not_run"].items()) or "-"
        yield (
            f"| {run['date']} | {run['commit']} | {run['seed']} | {run['machine']} | {run['seconds']} s"
            f" | {len(run['violations'])} | {left} |"
        )
    if bad:
        yield "\nEach violation, with its cause:\n"
    causes = Counter(
        _cause(run, violation, fixed or []) for run in runs for violation in run["violations"]
    )
    for (where, cause), times in causes.items():
        often = f" ({times} findings)" if times > 1 else ""
        yield f"- at {where}{often}: {cause}"


def _cause(run: dict[str, Any], violation: str, fixed: list[dict[str, str]]) -> tuple[str, str]:
    """Where a violation was found, and its cause and fix."""
    step = violation.split(": ")[0]
    where = f"{run['commit']}, {step.removeprefix('VIOLATION ')}"
    for note in fixed:
        if step == f"VIOLATION {note['harness']} seed {note['seed']}":
            return where, f"{note['what']}; fixed by {note['commit']}, test `{note['test']}`"
    return where, "**open**"


def _minutes_left(runs: list[dict[str, Any]], name: str, unit: str, left: int) -> str:
    """The minutes that a worker needs for the rest of a goal."""
    if left <= 0:
        return "-"
    timed = [run for run in runs if name in run.get("took", {})]
    done = sum(run["counts"].get(name, {}).get(unit, 0) for run in timed)
    took = sum(run["took"][name] for run in timed)
    return f"{left * took / done / 60:,.0f}" if done else "not measured"


def _parts(runs: list[dict[str, Any]]) -> dict[str, set[int]]:
    """Which parts of what is a whole have been taken."""
    found: dict[str, set[int]] = {}
    for run in runs:
        for name, parts in run.get("parts", {}).items():
            found.setdefault(name, set()).update(parts)
    return found


def _commit() -> str:
    source = os.environ.get("EOSLOG_SOURCE", ".")
    done = subprocess.run(
        ["git", "-C", source, "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"
