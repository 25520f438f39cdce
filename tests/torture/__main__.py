"""Run every fault harness for a time, print progress, and write a report.

Run it as `python -m tests.torture --minutes 10`. The exit code is 1 if there was a violation.

The report names the seed of each violation. `--only NAME --seed S --steps 1` repeats that step.
`--seed S` alone makes each harness take the same steps in the same order, as many as the time
allows. `--jobs J --most N` limits each harness to its first N steps per job. No process is left
running, even if the run is interrupted.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import random
import select
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from eoslog import _core
from tests.torture.processes import Interruption, adopt_orphans, die_with, end_descendants, reap
from tests.torture.registry import harnesses
from tests.torture.report import Report, done_before, parts_left

# Imported before the fork, so that the child processes need not import them.
import eoslog.client.consumer.consumer  # isort: skip
import eoslog.client.scan.log_scan  # noqa: F401

LONGEST_STEP_S = 1800


def worker(
    pipe: int, chosen: list[tuple[Any, float]], deadline: float, seed: int, steps: int, most: int,
    goals: dict[str, float], parts: dict[str, list[int]], interruption: Interruption,
) -> None:  # fmt: skip
    """Take steps of the harness that has had the least of its share, and tell each.

    A harness that has counted this worker's part of its goal waits until all have. Of what has parts,
    this worker takes those in `parts`, over and over.
    """
    taken: Counter[str] = Counter()
    # One for each harness: how fast the others are does not change what it draws.
    rngs = {harness.name: random.Random(f"{seed} {harness.name}") for harness, _ in chosen}
    spent = dict.fromkeys((harness.name for harness, _ in chosen), 0.0)
    logging.disable(logging.CRITICAL)
    _core.debug_locks()  # a wrong lock order ends the process, which counts as a violation
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    adopt_orphans()
    gc.freeze()  # a collection in a child would copy the pages of all that it shares with this one
    signal.signal(signal.SIGALRM, _hangs)
    try:
        while time.monotonic() < deadline and not interruption.code:
            left_over = [one for one in chosen if not most or taken[one[0].name] < most]
            if not left_over or (steps and taken.total() >= steps):
                break
            short = [one for one in left_over if goals[one[0].name] > 0] or left_over
            harness, share = min(short, key=lambda one: spent[one[0].name] / one[1])
            drawn = rngs[harness.name].randrange(1 << 30)
            if steps == 1:
                drawn = seed
            elif hasattr(harness, "whole"):  # a part of it
                mine = parts[harness.name]
                drawn = mine[taken[harness.name] % len(mine)]
            start = time.monotonic()
            signal.alarm(LONGEST_STEP_S)
            try:
                step = harness.step(drawn)
                found = {"counts": step.counts, "violations": step.violations}
                goals[harness.name] -= step.counts[harness.goal[0]]
            except Exception:
                text = f"the harness failed: {traceback.format_exc()}"
                found = {"counts": {}, "violations": [text]}
            signal.alarm(0)
            if left := end_descendants():
                found["violations"].append(f"the step left processes behind: {left}")
            spent[harness.name] += time.monotonic() - start
            found["part"] = drawn % harness.whole if hasattr(harness, "whole") else None
            found |= {"harness": harness.name, "seed": drawn, "seconds": time.monotonic() - start}
            os.write(pipe, json.dumps(found).encode() + b"\n")
            taken[harness.name] += 1
    finally:
        interruption.clearing = True
        signal.alarm(0)
        end_descendants()  # of a step that was cut short; they would hold its file systems
        for harness, _ in chosen:
            harness.close()
        end_descendants()


def _hangs(*_: object) -> None:
    raise TimeoutError(f"a step takes longer than {LONGEST_STEP_S} s")


def main() -> int:
    """Run."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture")
    parser.add_argument(
        "--minutes", type=float, default=10, help="Duration in minutes. [default: %(default)s]"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=int(time.time()),
        help="Seed of the first job; job N takes seed + N. [default: the time]",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=min(os.cpu_count() or 1, 4),
        help="Number of worker processes. [default: the processors, at most 4]",
    )
    parser.add_argument(
        "--only", default="", help="Run only these harnesses, separated by commas. [default: all]"
    )
    parser.add_argument(
        "--steps", type=int, default=0, help="Stop each job after N steps. [default: no limit]"
    )
    parser.add_argument(
        "--most",
        type=int,
        default=0,
        help="Run at most N steps of each harness in each job. [default: no limit]",
    )
    parser.add_argument(
        "--report", type=Path, default=None, help="Add the counts to this page. [default: none]"
    )
    parser.add_argument(
        "--figures",
        type=Path,
        default=None,
        help="JSON file with the counts of all runs. [default: the page's name with .json]",
    )
    arguments = parser.parse_args()
    figures = arguments.figures
    if figures is None and arguments.report is not None:
        figures = arguments.report.with_suffix(".json")

    wanted = set(filter(None, arguments.only.split(",")))
    chosen, report = [], Report(arguments.seed)
    known = harnesses()
    if unknown := wanted - {harness.name for harness, _ in known}:
        names = ", ".join(sorted(harness.name for harness, _ in known))
        parser.error(f"no harness is called {', '.join(sorted(unknown))}; choose from {names}")
    for harness, share in known:
        report.goals[harness.name] = harness.goal
        if wanted and harness.name not in wanted:
            continue
        why = harness.missing()
        if why is None:
            chosen.append((harness, share))
        else:
            print(f"not run: {harness.name}: {why}", flush=True)
            report.not_run[harness.name] = why
    before = Counter[str]() if figures is None else done_before(figures)
    goals = {
        harness.name: (harness.goal[1] - before[": ".join((harness.name, harness.goal[0]))])
        / arguments.jobs
        for harness, _ in chosen
    }
    whole = {h.name: h.whole for h, _ in chosen if hasattr(h, "whole")}
    left = {name: parts_left(figures, name, n) for name, n in whole.items()}
    parts = [
        {name: some[job :: arguments.jobs] or some for name, some in left.items()}
        for job in range(arguments.jobs)
    ]
    deadline = time.monotonic() + 60 * arguments.minutes
    pipes: dict[int, bytes] = {}
    pids = []
    adopt_orphans()
    interruption = Interruption()
    main_pid = os.getpid()
    for job in range(arguments.jobs if chosen else 0):
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.close(read)
                os.setpgrp()
                die_with(main_pid)
                seed = arguments.seed + job
                steps, most = arguments.steps, arguments.most
                worker(write, chosen, deadline, seed, steps, most, goals, parts[job], interruption)
                code = 0
            finally:
                os._exit(code)
        os.close(write)
        pipes[read] = b""
        pids.append(pid)
    try:
        _listen(pipes, report, deadline, interruption)
    finally:
        interruption.clearing = True
        reap(pids, LONGEST_STEP_S, insist=sys.exc_info()[0] is not None)
        end_descendants()
    for line in report.summary():
        print(line)
    if arguments.report is not None:
        report.add_to(arguments.report, figures)
    return 1 if report.violations else 0


def _listen(
    pipes: dict[int, bytes], report: Report, deadline: float, interruption: Interruption
) -> None:
    shown = 0.0
    while pipes:
        if interruption.code:
            sys.exit(interruption.code)
        for pipe in select.select(list(pipes), [], [], 1)[0]:
            chunk = os.read(pipe, 1 << 16)
            if not chunk:
                os.close(pipe)
                del pipes[pipe]
                continue
            *lines, pipes[pipe] = (pipes[pipe] + chunk).split(b"\n")
            for line in lines:
                for violation in report.take(json.loads(line)):
                    print(f"\n{violation}", flush=True)
        if time.monotonic() - shown > (1 if sys.stdout.isatty() else 15):
            shown = time.monotonic()
            left = max(0, deadline - shown)
            end = "\r" if sys.stdout.isatty() else "\n"
            print(f"{left:5.0f} s left  {report.line()}", end=end, flush=True)
    print()


if __name__ == "__main__":
    sys.exit(main())
