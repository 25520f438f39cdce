"""Every example runs as a user would run it, twice.

The stateful one is killed at random.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import eoslog
from tests.paths import ROOT

pytestmark = pytest.mark.process

PACKAGE = Path(eoslog.__file__).parent.parent
"""The examples use the package that the tests use, installed or not."""
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{PACKAGE}:{os.environ.get('PYTHONPATH', '')}"}
EXAMPLES = ROOT / "examples"
SHOWN = {
    "worker": "doubled 200 numbers; the totals agree: True",
    "outbox": "published 3 and 0 more; every order is there once: True",
    "inbox": "applied 3 payments; the balance is right: True",
    "half_message": "died: True orders: 3 each published once: True",
    "inbox_sink": "applied 3 payments; the balance is right: True",
    "inbox_sqlalchemy": "applied 3 payments; the balance is right: True",
    "order_service": "10 orders; the log agrees: True",
    "job_queue": "done 3 failed 1 attempts 3",
    "asyncio_service": "wrote 10; the totals agree: True",
}
NEEDS_SERVER = {"move_money": "killed 2 of 3 moves; the databases and the log agree: True"}
"""It is run in `tests/tpc/test_example.py`."""


def run(name: str, *arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        capture_output=True, text=True, timeout=400, check=False, env=ENVIRONMENT,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(("name", "shown"), SHOWN.items())
def test_an_example_prints_its_result_in_both_of_two_runs(
    name: str, shown: str, tmp_path: Path
) -> None:
    for _ in range(2):
        assert run(name, str(tmp_path / "log")) == shown + "\n"


@pytest.mark.parametrize("point", ["txn.flushed", "txn.decided", "txn.marked"])
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("worker", "the totals agree: True"),
        ("outbox", "every order is there once: True"),
        ("asyncio_service", "the totals agree: True"),
    ],
)
def test_an_example_killed_in_a_commit_counts_once(
    name: str, shown: str, point: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "log")
    killed = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), path], capture_output=True, timeout=400,
        check=False, env={**ENVIRONMENT, "EOSLOG_FAILPOINTS": f"{point}=kill"},
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    assert shown in run(name, path)


@pytest.mark.parametrize("point", ["txn.flushed", "txn.decided", "txn.marked"])
def test_a_job_queue_killed_in_a_commit_ends_each_job_once(point: str, tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    killed = subprocess.run(
        [sys.executable, str(EXAMPLES / "job_queue.py"), path], capture_output=True, timeout=400,
        check=False, env={**ENVIRONMENT, "EOSLOG_FAILPOINTS": f"{point}=kill"},
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    run("job_queue", path)
    with eoslog.open(path) as log:
        done = sorted(record.value for record in log.read("jobs-done"))
        dead = [record.value for record in log.read("jobs.dead")]
    assert done == sorted([b"RESIZE", b"MAIL", b"PRINT"] * 2)
    assert dead == [b"bad request"] * 2


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        *SHOWN,
        *NEEDS_SERVER,
        "stateful_count",
    }


def test_the_page_of_the_examples_shows_what_each_prints(tmp_path: Path) -> None:
    rows = re.findall(
        r"^\| `(\w+)\.py` \| [^|]+\. \| `([^`]+)` \|",
        (EXAMPLES / "README.md").read_text(),
        re.MULTILINE,
    )
    counted = run("stateful_count", str(tmp_path / "log")).strip()
    assert dict(rows) == {**SHOWN, **NEEDS_SERVER, "stateful_count": counted}


def test_A25_a_stateful_count_killed_at_random_ends_with_the_exact_total(
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
