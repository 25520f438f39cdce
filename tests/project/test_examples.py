"""Every example runs as a user would run it, twice.

The stateful one is killed at random.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
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
    "etl": "3000 flights; the miles agree: True",
    "outbox_inbox": "the books agree: True",
    "inbox": "applied 3 payments; the balance is right: True",
    "half_message": "died: True orders: 3 each published once: True",
    "inbox_sqlalchemy": "applied 3 payments; the balance is right: True",
    "order_service": "10 orders; the log agrees: True",
    "job_queue": "done 3 failed 1 retried 2",
    "asyncio_service": "the totals agree: True",
}
FOUR = ("etl", "job_queue", "outbox_inbox", "asyncio_service")
"""What was written without the layer of applications, in 515 lines."""
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
        ("etl", "3000 flights; the miles agree: True"),
        ("outbox_inbox", "the books agree: True"),
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
    assert_each_job_ended_once(path)


def assert_each_job_ended_once(path: str) -> None:
    with eoslog.open(path) as log:
        queued = [record.value for record in log.read("jobs")]
        done = [record.value.lower() for record in log.read("jobs-done")]
        dead = [record.value for record in log.read("jobs.dead")]
    assert set(dead) == {b"bad request"}
    assert Counter(done + dead) == Counter(queued)


@pytest.mark.parametrize("name", FOUR)
def test_row_A20_an_application_killed_at_random_has_each_record_once(
    name: str, tmp_path: Path
) -> None:
    path, rng, killed = str(tmp_path / "log"), random.Random(name), 0
    while killed < 3:
        program = subprocess.Popen(
            [sys.executable, str(EXAMPLES / f"{name}.py"), path], env=ENVIRONMENT,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(rng.uniform(0.3, 2))
        program.kill()
        killed += program.wait() == -signal.SIGKILL
    shown = run(name, path)
    if name == "job_queue":
        assert_each_job_ended_once(path)
    else:
        assert shown == SHOWN[name] + "\n"


def test_row_A20_an_etl_with_killed_workers_counts_each_row_once(tmp_path: Path) -> None:
    """Only workers pass these points, and the first one at each point dies."""
    points = ("app.processed", "app.offsets", "app.applying", "app.applied")
    for point in points:
        (tmp_path / point).touch()
    faults = ",".join(f"{point}=kill@{tmp_path / point}" for point in points)
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / "etl.py"), str(tmp_path / "log"), "40000"],
        env={**ENVIRONMENT, "EOSLOG_FAILPOINTS": faults}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.stdout == "40000 flights; the miles agree: True\n", ended.stderr
    assert [point for point in points if (tmp_path / point).exists()] == []


def test_the_four_applications_have_200_lines_at_most() -> None:
    texts = [(EXAMPLES / f"{name}.py").read_text() for name in FOUR]
    assert sum(len(text.splitlines()) for text in texts) <= 200


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
        point = {"EOSLOG_FAILPOINTS": f"pwrite:{rng.randint(1, 20)}=kill"}
        worker = subprocess.run(
            [sys.executable, script, path, "count"], env=ENVIRONMENT | point, check=False
        )
        killed += worker.returncode == -signal.SIGKILL
    run("stateful_count", path, "count")
    total, *counts = run("stateful_count", path, "show").split()[1:]
    assert (int(total), sum(int(item.split("=")[1]) for item in counts)) == (400, 400)
    assert killed
