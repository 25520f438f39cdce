"""Run fuzz targets: `python -m tests.fuzz.run --seconds 60 [--target NAME]`.

With atheris and a core that clang has instrumented (`make quality-fuzz` builds one), libFuzzer's
coverage of the C code guides it. Otherwise inputs are mutations of the corpus, from a seed that is
printed.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz import seeds, targets
from tests.fuzz.mutate import mutated
from tests.paths import ROOT

LONGEST = 4096


def by_mutation(name: str, seconds: float, seed: int, runs: int, finds: Path) -> int:
    """Inputs tried. A failing one is kept in a file and raised."""
    choice, corpus = random.Random(seed), seeds.corpus(name)
    for data in corpus:
        targets.run(name, data)
    finds.mkdir(parents=True, exist_ok=True)
    current = finds / f"last-{name}"  # a crash of the process leaves it
    end, count = time.monotonic() + seconds, 0
    with open(current, "wb", buffering=0) as kept:
        while time.monotonic() < end and count != runs:
            data = mutated(corpus, choice, LONGEST)
            os.pwrite(kept.fileno(), data, 0)
            os.ftruncate(kept.fileno(), len(data))
            count += 1
            try:
                targets.run(name, data)
            except BaseException:
                current.rename(finds / f"find-{name}-{seed}-{count}")
                raise
    current.unlink()
    return count


def by_coverage(name: str, seconds: float, runs: int, finds: Path) -> int:
    """The same under libFuzzer, in a process of its own; inputs tried."""
    grown = finds / name
    grown.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.fuzz.run", "--inside", name,
            "--", str(grown), str(seeds.CORPUS / name), f"-max_total_time={max(1, int(seconds))}",
            f"-max_len={LONGEST}", "-print_final_stats=1", "-verbosity=0", f"-runs={runs}",
            f"-artifact_prefix={finds}/find-{name}-", "-timeout=20", "-rss_limit_mb=4096",
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = done.stderr + done.stdout
    if done.returncode != 0:
        raise SystemExit(f"{name}: exit {done.returncode}\n{said[-6000:]}")
    found = re.search(r"number_of_executed_units: (\d+)", said)
    return int(found.group(1)) if found else 0


def inside(name: str, arguments: list[str]) -> None:
    """What `by_coverage` starts."""
    import atheris

    atheris.Setup([sys.argv[0], *arguments], atheris.instrument_func(targets.TARGETS[name]))
    atheris.Fuzz()


def main() -> None:
    """Fuzz each target for an equal share of the time; print how many inputs it got."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds",
        type=float,
        default=60,
        help="Duration of all targets together, in seconds. [default: %(default)s]",
    )
    parser.add_argument(
        "--target",
        action="append",
        choices=sorted(targets.TARGETS),
        help="Target to fuzz; repeatable. [default: all]",
    )
    parser.add_argument(
        "--runs",
        type=int,
        default=-1,
        help="Try at most N inputs per target; -1 means no limit. [default: %(default)s]",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=int(time.time()),
        help="Seed of the mutations. [default: the time]",
    )
    parser.add_argument(
        "--coverage", action="store_true", help="Fuzz with atheris; needs an instrumented core."
    )
    parser.add_argument(
        "--finds",
        type=Path,
        default=ROOT / ".make" / "fuzz",
        help="Directory for inputs that fail. [default: .make/fuzz]",
    )
    parser.add_argument("--inside", choices=sorted(targets.TARGETS), help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # "taken as empty", a million times
    if options.inside:
        inside(options.inside, options.rest)
        return
    options.finds.mkdir(parents=True, exist_ok=True)
    names = options.target or list(targets.TARGETS)
    total = 0
    for name in names:
        start = time.monotonic()
        share = options.seconds / len(names)
        if options.coverage:
            count = by_coverage(name, share, options.runs, options.finds)
        else:
            count = by_mutation(name, share, options.seed, options.runs, options.finds)
        total += count
        print(f"{name:12} {count:10,} inputs {time.monotonic() - start:7.1f} s", flush=True)
    way = "coverage of the core" if options.coverage else f"mutations, seed {options.seed}"
    print(f"{'all':12} {total:10,} inputs, no finding ({way})")


if __name__ == "__main__":
    main()
