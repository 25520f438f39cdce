"""`python -m tests.simulation --seconds N --seed S`: simulate, and say which seed fails."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=None)
    parser.add_argument("--plant", help="run with a planted bug: a name from planted.py")
    args = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    logging.disable(logging.CRITICAL)
    from tests.simulation.simulation import run

    if args.runs is None and args.seconds > 1e8:
        args.seconds = 60
    from tests.simulation.planted import planted

    with planted(args.plant) if args.plant else contextlib.nullcontext():
        report = run(
            args.seconds,
            args.seed,
            runs=args.runs,
            say=lambda line: print(line, flush=True),
            stop_at_first=args.plant is not None,
        )
    print(report.line())
    print("trace", report.trace[-32:])
    for what in report.violations[:20]:
        print(what)
    if report.violations:
        seed = report.violations[0].split(":")[0].removeprefix("seed ")
        print(f"again: python -m tests.simulation --seed {seed} --runs 1")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
