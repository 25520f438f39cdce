"""Every recipe runs as a user would run it, and the stateful one is killed at random."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import eoslog

pytestmark = pytest.mark.process

PACKAGE = Path(eoslog.__file__).parent.parent
"""The recipes use the package that the tests use, installed or not."""
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{PACKAGE}:{os.environ.get('PYTHONPATH', '')}"}
EXAMPLES = Path(__file__).parent.parent / "examples"
SHOWN = {
    "producer_at_most_once": "handed over: 100, promised: nothing",
    "producer_at_least_once": "on the disk: 100",
    "producer_exactly_once": "payments: 100 offsets: 0 to 99",
    "consumer_at_most_once": "already committed",
    "consumer_at_least_once": "processed: abcde",
    "consumer_exactly_once": "capitals: ABCDE",
    "produce_only_transaction": "debits ['alice -10']\ncredits ['bob +10']",
    "consume_transform_produce": "doubled: 39800 expected: 39800",
    "run_transaction": "attempts: 2 records: 2",
    "dedupe": "effects: 3",
}


def run(name: str, *arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        capture_output=True, text=True, timeout=400, check=False, env=ENVIRONMENT,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(("name", "shown"), SHOWN.items())
def test_recipe_runs(name: str, shown: str, tmp_path: Path) -> None:
    assert shown in run(name, str(tmp_path / "log"))


def test_every_recipe_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SHOWN, "stateful_count"}


def test_A25_a_stateful_count_that_is_killed_at_random_ends_with_the_exact_total(
    tmp_path: Path,
) -> None:
    path, script, rng = str(tmp_path / "log"), str(EXAMPLES / "stateful_count.py"), random.Random(7)
    run("stateful_count", path, "feed", "400")
    killed = 0
    for _ in range(4):
        worker = subprocess.Popen([sys.executable, script, path, "count"], env=ENVIRONMENT)
        time.sleep(rng.uniform(0.3, 1.2))
        if worker.poll() is None:
            worker.send_signal(signal.SIGKILL)
            killed += 1
        worker.wait()
    run("stateful_count", path, "count")
    total, *counts = run("stateful_count", path, "show").split()[1:]
    assert (int(total), sum(int(item.split("=")[1]) for item in counts)) == (400, 400)
    assert killed
