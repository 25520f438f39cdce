"""Run the simulator from the command line and report each seed that fails.

Usage: `python -m tests.simulation --seconds N --seed S`. With --sweep the disk fails at every
call instead. --plant runs with a planted bug until the bug is found. --self-test does so with
every bug of `planted.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="Duration in seconds. [default: %(default)s]"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help="First seed; the next runs count up from it. [default: %(default)s]",
    )
    parser.add_argument(
        "--runs",
        type=int,
        default=None,
        help="Run at most N seeds and ignore --seconds. [default: no limit]",
    )
    parser.add_argument(
        "--images",
        type=int,
        default=8,
        help="Power losses to try in each process run, besides its own end. [default: %(default)s]",
    )
    parser.add_argument(
        "--sweep",
        type=int,
        metavar="N",
        help="Fail every Nth call of the workload instead. [default: off]",
    )
    parser.add_argument(
        "--part",
        type=int,
        default=0,
        help="Which of those calls to fail: 0 to N - 1. [default: %(default)s]",
    )
    parser.add_argument(
        "--commits",
        action="store_true",
        help="Lose the power inside commits, in processes that do little else.",
    )
    parser.add_argument(
        "--plant", help="Run with this planted bug, a name from planted.py. [default: none]"
    )
    parser.add_argument(
        "--self-test",
        action="store_true",
        help="Check that every planted bug is found within --runs seeds.",
    )
    args = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    logging.disable(logging.CRITICAL)
    from tests.simulation.planted import OF_COMMITS, OF_PREPARED, PLANTS, planted
    from tests.simulation.simulation import Plan, Report, run
    from tests.simulation.sweep import sweep

    def say(line: str) -> None:
        print(line, flush=True)

    seconds = args.seconds if args.runs is None else 1e9
    if args.self_test:
        missed = []
        for name in PLANTS:
            with planted(name):
                plan = Plan(
                    chores=0, halves=float(name in OF_PREPARED), commits=name in OF_COMMITS,
                    operations=30,
                )  # fmt: skip
                report = run(seconds, args.seed, plan=plan, runs=args.runs, stop_at_first=True)
            found = "found" if report.violations else "MISSED"
            say(
                f"{found} after {report.counts['seeds']} seeds: {name}: {(report.violations or ['-'])[0][:120]}"
            )
            missed += [] if report.violations else [name]
        return 1 if missed else 0
    report = Report()
    if args.sweep is not None:
        report = sweep(
            seconds, args.seed, every=args.sweep, part=args.part, runs=args.runs, say=say
        )
    else:
        plan = Plan(images=args.images)
        if args.commits:
            plan = Plan(images=args.images, commits=True, chores=0, halves=0)
        with planted(args.plant) if args.plant else contextlib.nullcontext():
            report = run(
                seconds, args.seed, plan=plan, runs=args.runs, say=say,
                stop_at_first=args.plant is not None,
            )  # fmt: skip
    swept = f"{report.counts['fault points']} fault points, " if args.sweep is not None else ""
    say(swept + report.line())
    say(f"trace {report.trace[-32:]}")
    for what in report.violations[:20]:
        say(what)
    if report.violations and args.sweep is None:
        seed = report.violations[0].split(":")[0].removeprefix("seed ")
        say(f"again: python -m tests.simulation --seed {seed} --runs 1 --images {args.images}")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
