"""Random combinations of options and faults break no guarantee of an application.

By hand: `python -m tests.app.random_runs.test_random_runs --seeds A-B`.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import traceback
from pathlib import Path

import pytest

from tests.app.random_runs.checks import check
from tests.app.random_runs.runs import Run

SEEDS = (*range(1, 23), 88, 89, 277)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_run_keeps_the_guarantee(path: str, disarmed: None, seed: int) -> None:
    run = Run(seed, path)
    try:
        run.run(check)
    except Exception as error:
        error.add_note(f"seed {seed}: {run}")
        raise


def main() -> int:
    """Run seeds, and report each that fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.app.random_runs.test_random_runs")
    parser.add_argument("--seeds", default="1-100", help="A-B, or one [default: %(default)s]")
    parser.add_argument("--script", action="store_true", help="Show what happened in each run.")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    first, _, last = options.seeds.partition("-")
    failed = 0
    for seed in range(int(first), int(last or first) + 1):
        with tempfile.TemporaryDirectory() as folder:
            run = Run(seed, str(Path(folder) / "log"))
            try:
                run.run(check)
            except BaseException as error:
                failed += 1
                print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
                if options.script:
                    traceback.print_exc()
                if isinstance(error, KeyboardInterrupt):
                    raise
            if options.script:
                print(run)
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
