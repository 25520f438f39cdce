"""Every harness of `make torture` takes one step of a fixed seed.

`make torture` takes thousands. A harness that this machine cannot run is named and counted, and
no other harness is left out.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys

import pytest

from tests.app.counting import STEPS as APPS
from tests.paths import ROOT, SOURCE
from tests.torture.adapters.simulated import Flipped
from tests.torture.harness import Step, excerpt
from tests.torture.harnesses import ids, moves
from tests.torture.harnesses.databases import ATOMIC, SINK
from tests.torture.harnesses.halves import NAMED as HALVES
from tests.torture.harnesses.kills import NAMED
from tests.torture.harnesses.power import forget_answers
from tests.torture.oracles.verify import verify
from tests.torture.registry import harnesses
from tests.torture.report import Report, done_before, parts_left, render
from tests.tpc import move_process

pytestmark = [pytest.mark.process, pytest.mark.slow]
STEPS = {"kill": 2, "power": 2}


@pytest.mark.timeout(2000)
@pytest.mark.parametrize("harness", [h for h, _ in harnesses()], ids=lambda h: h.name)
def test_a_step_of_each_harness_finds_no_violation(harness):
    why = harness.missing()
    if why is not None:
        pytest.skip(f"not run: {harness.name}: {why}")
    done = Step()
    try:
        for seed in range(STEPS.get(harness.name, 1)):
            step = harness.step(16 * seed + 1)
            done.counts.update(step.counts)
            done.violations += step.violations
    finally:
        harness.close()
    assert done.violations == []
    assert sum(done.counts.values()) > 0


def test_every_failpoint_is_used_to_kill_processes():
    source = SOURCE / "eoslog"
    named = {
        name
        for path in source.rglob("*.py")
        for name in re.findall(r"\bfailpoint\(\s*\"([a-z._]+)\"", path.read_text())
    }
    named -= {"import.positions", "check.listed"}  # left to tests/interop; a check changes nothing
    moving = itertools.chain(moves.GROUPS, *moves.STEPS.values())
    others = (*ids.STEPS, *ATOMIC, *SINK, *move_process.NAMED, *APPS)
    assert {*NAMED, *HALVES, *moving, *others} == named


def test_a_damaged_directory_is_a_violation(tmp_path):
    """The oracle detects a record that vanished and a batch that appeared."""
    from tests.faults.harness import live
    from tests.torture.workloads.mixed import mixed

    path, history = tmp_path / "log", tmp_path / "history"
    history.mkdir()
    live(mixed, path, history, "one", 5, 0).fine()  # each step once, also a commit
    assert verify(path, history, "before") == []
    events = [json.loads(line) for line in (history / "one.jsonl").read_text().splitlines()]
    sends = [event for event in events if event["f"] == "send" and event.get("txn")]
    for number, event in enumerate(sends):  # some of their transactions were committed
        event["sends"][0][1] = f"never written {number}"
    (history / "one.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    assert any("phantom" in violation for violation in verify(path, history, "after"))


def test_answers_after_a_power_loss_are_removed_from_a_history(tmp_path):
    """What was asked for may have happened all the same."""
    history = tmp_path / "l1.jsonl"
    events = [
        {"type": kind, "time": at, "id": number}
        for number, (kind, at) in enumerate(
            [("invoke", 1), ("ok", 2), ("invoke", 3), ("ok", 5), ("invoke", 6), ("info", 7)]
        )
    ]
    history.write_text("".join(json.dumps(event) + "\n" for event in events))
    forget_answers(history, 4)
    left = [json.loads(line)["id"] for line in history.read_text().splitlines()]
    assert left == [0, 1, 2, 4]


def test_the_counts_of_runs_add_up(tmp_path):
    page = tmp_path / "report.md"
    for seed, kills in ((1, 21), (2, 30), (3, 11)):
        report = Report(seed)
        report.goals["kill"] = ("kills", 10_000)
        report.not_run["power"] = "needs root"
        step = {
            "harness": "kill",
            "seed": 7,
            "seconds": float(kills),
            "counts": {"kills": kills},
            "violations": [],
        }
        assert report.take(step) == []
        report.add_to(page, page.with_suffix(".json"))
    text = page.read_text()
    assert "| kill | 62 kills | 30 | 10,000 | 166 |" in text, (
        "those of all runs, of the longest one"
    )
    assert text.count("power: needs root") == 3
    assert done_before(page.with_suffix(".json"))["kill: kills"] == 62
    assert list(render(json.loads(page.with_suffix(".json").read_text()), {}))


@pytest.mark.timeout(1600)
def test_a_run_selects_the_parts_that_no_run_has_done(tmp_path):
    page, taken = (
        tmp_path / "report.md",
        [part for part in range(Flipped.whole) if part not in (5, 127)],
    )
    page.with_suffix(".json").write_text(
        json.dumps([{"counts": {}, "parts": {"flipped bits": taken}, "seconds": 1, "violations": [],
                     "date": "", "commit": "", "seed": 1, "machine": "", "not_run": {}}])
    )  # fmt: skip
    words = (
        "--only",
        "flipped bits",
        "--most",
        "2",
        "--jobs",
        "1",
        "--minutes",
        "20",
        "--report",
        str(page),
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    last = json.loads(page.with_suffix(".json").read_text())[-1]
    assert last["parts"] == {"flipped bits": [5, 127]}


def test_a_violation_stays_open_until_its_fix_is_recorded(tmp_path):
    page = tmp_path / "report.md"
    report = Report(1)
    for seed in (7, 77, 77):
        report.take(
            {"harness": "kill", "seed": seed, "seconds": 1.0, "counts": {}, "violations": ["lost: 3"]}
        )  # fmt: skip
    note = {"harness": "kill", "seed": "7", "commit": "abc", "what": "a page", "test": "test_x"}
    (tmp_path / "fixed.json").write_text(json.dumps([note]))
    report.add_to(page, page.with_suffix(".json"), tmp_path / "fixed.json")
    lines = [line for line in page.read_text().splitlines() if line.startswith("- at")]
    assert [line.partition(", ")[2] for line in lines] == [
        "kill seed 7: a page; fixed by abc, test `test_x`", "kill seed 77 (2 findings): **open**"
    ]  # fmt: skip


def test_the_line_that_names_a_violation_is_always_kept():
    said = "begin\nVIOLATION: a record is gone\n" + "frame\n" * 1000 + "the end"
    kept = excerpt(said)
    assert len(kept) <= 2010
    assert "a record is gone" in kept
    assert kept.endswith("the end")
    assert excerpt("short") == "short"


def test_a_harness_with_parts_continues_with_those_not_done(tmp_path):
    page, figures = tmp_path / "report.md", tmp_path / "report.json"
    assert parts_left(None, "flipped bits", 4) == [0, 1, 2, 3]
    assert parts_left(figures, "flipped bits", 4) == [0, 1, 2, 3]
    for taken in ((1, 3), (0, 1), (2,)):
        report = Report(1)
        for part in taken:
            report.take(
                {"harness": "flipped bits", "seed": part, "part": part, "seconds": 1.0,
                 "counts": {}, "violations": []}
            )  # fmt: skip
        report.add_to(page, figures)
        left = parts_left(figures, "flipped bits", 4)
        assert left == ([0, 1, 2, 3] if taken == (2,) else [0, 2] if taken == (1, 3) else [2])
