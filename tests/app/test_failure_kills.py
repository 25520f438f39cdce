"""Failed records are in one place at each moment, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import eoslog
from eoslog.app.dead_letters import dead_letters

pytestmark = pytest.mark.process

FAILING = """
import sys
import eoslog

app = eoslog.App(sys.argv[1], "shop", max_records=4)

@app.task("numbers", key="string", value="json", to="out", retries=(0.01,), on_error="dead_letter")
def work(record, ctx):
    if record.value % 10 == 0 or (record.value % 5 == 0 and ctx.attempt == 1):
        raise ValueError("no")
    return record.value

app.run(until="caught_up")
"""
KILLING = """
import os, signal, sys
import eoslog

app = eoslog.App(sys.argv[1], "shop", commit_interval=60)

@app.task("numbers", key="string", value="json", to="out", **eval(sys.argv[3]))
def work(record, ctx):
    if record.value == 7:
        with open(sys.argv[2], "a") as calls:
            print(ctx.attempt, file=calls)
        if os.path.exists(sys.argv[2] + ".raise"):
            raise ValueError("only once")
        os.kill(os.getpid(), signal.SIGKILL)
    return record.value

app.run(until="caught_up")
"""
IN_ORDER = """
import os, signal, sys, time
import eoslog
from eoslog.client.producer.batch_dispatch import BatchDispatch

send, app = BatchDispatch.send, eoslog.App(sys.argv[1], "shop", processing_guarantee="at_least_once")
again = []

def killed(dispatch, place, patience_s):
    send(dispatch, place, patience_s)
    if place[0] == "shop.retries" and len(again) >= 2:
        os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2:]:
    BatchDispatch.send = killed

@app.task("numbers", key="string", value="json", to="out", retries=(0.05, 0.05))
def work(record, ctx):
    if record.value == 8:
        time.sleep(0.5)  # then 0 and 2 are due together
    if record.value > 2 or record.partition:
        return record.value
    if ctx.attempt > 1:
        again.append(record.value)
    if ctx.attempt == 1 or (ctx.attempt == 2 and record.value == 0):
        raise ValueError("no")
    return record.value

app.run(until="caught_up")
"""


def run(script: str, *arguments: object, failpoint: str = "") -> int:
    environment = {**os.environ, "EOSLOG_FAILPOINTS": failpoint}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, env=environment, check=False, timeout=120).returncode


def values(log: eoslog.Log) -> list[int]:
    return sorted(json.loads(record.value) for record in log.read("out"))


def dead(log: eoslog.Log) -> list[int]:
    return sorted(json.loads(letter.record.value) for letter in dead_letters(log, "shop"))


@pytest.fixture
def path(log: eoslog.Log) -> str:
    log.create_topic("out")
    log.close()
    return log.path


@pytest.mark.parametrize(
    "point",
    [
        "app.processed:4", "app.offsets:2", "txn.added:5",
        "txn.flushed:3", "txn.prepared:5", "txn.decided:3",
    ],
)  # fmt: skip
def test_a_kill_neither_loses_nor_doubles_a_failed_record(path: str, point: str) -> None:
    assert run(FAILING, path, failpoint=f"{point}=kill") == -signal.SIGKILL
    with eoslog.open(path) as log:
        once = values(log) + (dead(log) if "shop.dead" in log.topics() else [])
        assert len(once) == len(set(once))
    assert run(FAILING, path) == 0
    with eoslog.open(path) as log:
        assert dead(log) == [0, 10]
        assert values(log) == [n for n in range(20) if n % 10]
        assert {letter.record.attempts for letter in dead_letters(log, "shop")} == {2}
        assert log.check(full=True).ok


def test_a_record_ends_its_wait_after_its_output_at_least_once(path: str) -> None:
    """Without a transaction, a kill between the two would lose it."""
    assert run(IN_ORDER, path, "kill") == -signal.SIGKILL
    assert run(IN_ORDER, path) == 0
    with eoslog.open(path) as log:
        assert set(values(log)) == set(range(20))


def test_a_record_ends_its_wait_after_a_flush_at_least_once(path: str) -> None:
    assert run(IN_ORDER, path, failpoint="app.output_first:1=kill") == -signal.SIGKILL
    assert run(IN_ORDER, path) == 0
    with eoslog.open(path) as log:
        assert set(values(log)) == set(range(20))


def test_a_record_that_kills_its_processes_is_a_dead_letter(path: str, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    for _ in range(3):
        assert run(KILLING, path, calls, "{}") == -signal.SIGKILL
    assert run(KILLING, path, calls, "{}") == 0
    with eoslog.open(path) as log:
        assert values(log) == [n for n in range(20) if n != 7]
        [letter] = dead_letters(log, "shop")
    assert (letter.record.value, letter.record.attempts) == (b"7", 3)
    assert letter.record.cause == "the process ended 3 times while the record was processed"
    assert calls.read_text().split() == ["1", "2", "3"]


def test_an_exit_does_not_count_for_a_record_of_a_re_created_topic(
    path: str, tmp_path: Path
) -> None:
    """It has the offset of the record that ran, and did not run itself."""
    calls = tmp_path / "calls"
    assert run(KILLING, path, calls, "{'max_deaths': 1}") == -signal.SIGKILL
    with eoslog.open(path) as log:
        log.delete_topic("numbers")
        log.create_topic("numbers", partitions=2)
        with log.producer() as producer:
            producer.produce_many("numbers", ["100"] * 10, partition=1)
    assert run(KILLING, path, calls, "{'max_deaths': 1}") == 0
    with eoslog.open(path) as log:
        assert values(log).count(100) == 10
        assert "shop.dead" not in log.topics()


def test_a_count_is_not_repeated_by_a_process_that_dies_after_it(path: str, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    assert run(KILLING, path, calls, "{}") == -signal.SIGKILL
    for _ in range(3):
        killed = run(KILLING, path, calls, "{}", failpoint="app.death_counted:1=kill")
        assert killed == -signal.SIGKILL
        if len(calls.read_text().split()) == 2:
            break
    assert calls.read_text().split() == ["1", "2"]
    assert run(KILLING, path, calls, "{}") == -signal.SIGKILL
    assert run(KILLING, path, calls, "{}") == 0
    assert calls.read_text().split() == ["1", "2", "3"]


def test_attempts_are_counted_over_errors_and_kills(path: str, tmp_path: Path) -> None:
    calls, raises = tmp_path / "calls", tmp_path / "calls.raise"
    options = "{'retries': (0.01, 0.01, 0.01), 'max_deaths': 9, 'on_error': 'dead_letter'}"
    assert run(KILLING, path, calls, options) == -signal.SIGKILL
    raises.touch()
    assert run(KILLING, path, calls, options) == 0
    assert calls.read_text().split() == ["1", "2", "3", "4"]
    with eoslog.open(path) as log:
        [letter] = dead_letters(log, "shop")
        assert (letter.record.attempts, letter.record.cause) == (4, "ValueError: only once")


def test_a_retried_record_that_kills_is_counted(path: str, tmp_path: Path) -> None:
    calls, raises = tmp_path / "calls", tmp_path / "calls.raise"
    options = "{'retries': (0.6,), 'max_deaths': 2}"
    script = KILLING.replace("""os.path.exists(sys.argv[2] + ".raise")""", "ctx.attempt == 1")
    raises.touch()
    for _ in range(2):
        assert run(script, path, calls, options) == -signal.SIGKILL
    assert run(script, path, calls, options) == 0
    assert calls.read_text().split() == ["1", "2", "3"]
    with eoslog.open(path) as log:
        [letter] = dead_letters(log, "shop")
        assert letter.record.attempts == 3
        assert values(log) == [n for n in range(20) if n != 7]


def test_a_process_that_is_killed_between_records_blames_none(path: str, tmp_path: Path) -> None:
    for _ in range(3):
        assert run(FAILING, path, failpoint="app.processed:2=kill") == -signal.SIGKILL
    with eoslog.open(path) as log:
        assert not any(b"deaths" in record.key for record in log.read("shop.retries"))


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_batch_that_kills_its_process_is_tried_record_by_record(
    path: str, tmp_path: Path, deaths: int
) -> None:
    calls = tmp_path / "calls"
    script = (
        KILLING.replace("def work(record, ctx):", "def work(records, ctx):")
        .replace(
            "    if record.value == 7:",
            "    record = records[0]\n    if 7 in [r.value for r in records]:",
        )
        .replace("print(ctx.attempt,", "print(len(records),")
        .replace("    return record.value", "    yield from (r.value for r in records)")
    )
    options = f"{{'batch': 10, 'max_deaths': {deaths}}}"
    for _ in range(1 + deaths):  # of the batch, then of the record alone
        assert run(script, path, calls, options) == -signal.SIGKILL
    assert run(script, path, calls, options) == 0
    assert calls.read_text().split() == ["10"] + deaths * ["1"]
    with eoslog.open(path) as log:
        assert values(log) == [n for n in range(20) if n != 7]
        assert dead(log) == [7]
