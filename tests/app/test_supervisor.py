"""An application in several processes: started, watched, started again, ended."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

import eoslog
from eoslog.app.dead_letters import dead_letters
from eoslog.app.supervisor import _portable
from eoslog.errors import IllegalState, TaskFailed, UnknownTopicOrPartition
from tests.waiting import until

pytestmark = pytest.mark.process

SCRIPT = """
import os, signal, sys, time
import eoslog

app = eoslog.App(sys.argv[1], "shop", max_records=3)

@app.task("numbers", key="string", value="json", to="out")
def work(record, ctx):
    if record.value == 7 and sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if record.value == 7 and sys.argv[2] == "hang":
        open(sys.argv[3], "a").write(f"{os.getpid()} ")
        time.sleep(600)
    return record.value

def turn(statuses):
    if sys.argv[2] == "hang":
        open(sys.argv[3] + ".turns", "a").write(".")

until = None if sys.argv[2] in ("wait", "hang") else "caught_up"
report = app.run(processes=2, until=until, watch=turn)
print(report.records, report.dead_letters)
"""

HANGING = r"""
import re, sys, time
import eoslog
from eoslog.app import supervisor

supervisor._FROZEN_S = 2.0 if sys.argv[2] == "keeps the lock" else 600.0
app = eoslog.App(sys.argv[1], "shop", max_records=3)

@app.task("numbers", key="string", value="json", to="out", task_timeout=2, on_error=sys.argv[3])
def work(record, ctx):
    if record.value == 7:
        if sys.argv[2] == "sleeps":
            time.sleep(600)
        re.fullmatch("(a|aa|aaa)+c", "a" * 34)  # a minute, with the interpreter lock
    return record.value

report = app.run(processes=2, until="caught_up")
print(report.records, report.dead_letters)
"""


def values(path: str) -> list[int]:
    with eoslog.open(path) as log:
        return sorted(json.loads(record.value) for record in log.read("out"))


def started(path: str, *arguments: object, script: str = SCRIPT) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, path, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def workers(path: str) -> list[int]:
    """The processes that have the log open, without this one."""
    with eoslog.open(path, read_only=True) as log:
        return [
            process.pid
            for process in log.processes()
            if process.pid not in (None, os.getpid()) and not process.read_only
        ]


@pytest.fixture
def path(log: eoslog.Log) -> str:
    log.create_topic("out")
    log.close()
    return log.path


def test_processes_share_the_records(path):
    with started(path, "caught_up") as run:
        out, told = run.communicate(timeout=120)
    assert (run.returncode, out) == (0, "20 0\n"), told
    assert values(path) == list(range(20))


def test_a_process_that_a_record_kills_is_started_again(path):
    with started(path, "kill") as run:
        out, told = run.communicate(timeout=120)
    assert run.returncode == 0, told
    assert out.endswith(" 1\n")
    assert told.count("was ended by SIGKILL; it starts again in") == 3
    assert values(path) == [n for n in range(20) if n != 7]
    with eoslog.open(path) as log:
        assert [letter.record.attempts for letter in dead_letters(log, "shop")] == [3]


def test_a_process_that_a_signal_without_a_name_ends_starts_again(path: str) -> None:
    app = eoslog.App(path, "shop")

    @app.task("numbers", value="json", to="out")
    def work(record: eoslog.Record, ctx: eoslog.Context) -> int:
        if record.value == 7 and ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGRTMIN + 5)
        return record.value

    app.run(until="caught_up", watch=lambda _: None)
    assert values(path) == list(range(20))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_processes_after_their_transactions(path, number):
    with started(path, "wait") as run:
        until(lambda: values(path) == list(range(20)))
        run.send_signal(number)
        out, told = run.communicate(timeout=60)
    assert (run.returncode, out) == (0, "20 0\n"), told
    assert workers(path) == []


def test_a_signal_ends_a_process_that_was_forked_just_now(path, monkeypatch):
    """It has the handlers of its parent for a moment."""
    app = eoslog.App(path, "shop")

    @app.task("numbers")
    def work(record, ctx): ...

    kind, late = ForkProcess, []
    start, bootstrap = kind.start, kind._bootstrap

    def signalled(process):
        start(process)
        os.kill(os.getpid(), signal.SIGTERM)

    def slow(process, *arguments, **options):
        time.sleep(0.5)
        return bootstrap(process, *arguments, **options)

    def watch(statuses):
        if time.monotonic() > end and not late:
            late.extend(status.pid for status in statuses if status.pid is not None)
            for pid in late:
                os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(kind, "start", signalled)
    monkeypatch.setattr(kind, "_bootstrap", slow)
    end = time.monotonic() + 60
    app.run(processes=1, watch=watch)
    assert not late


def test_workers_end_after_their_parent_was_killed(path):
    with started(path, "wait") as run:
        until(lambda: values(path) == list(range(20)))
        until(lambda: len(workers(path)) == 2)  # one alone may have processed all
        run.kill()
        run.communicate(timeout=60)
    until(lambda: workers(path) == [])


def test_the_third_signal_kills_a_process_that_hangs(path, tmp_path: Path):
    pids, turns = tmp_path / "pids", tmp_path / "pids.turns"
    with started(path, "hang", pids) as run:
        until(lambda: pids.exists() and turns.exists())
        for _ in range(3):
            run.send_signal(signal.SIGTERM)
            before = turns.stat().st_size
            # Two more turns: the handler has run, and no signal is merged with the next one.
            until(lambda end=before + 2: turns.stat().st_size >= end or run.poll() is not None)
        run.communicate(timeout=60)
    assert run.returncode == 0
    assert workers(path) == []
    assert 7 not in values(path)


@pytest.mark.parametrize("how", ["sleeps", "keeps the lock"])
def test_a_record_that_hangs_its_processes_is_a_dead_letter(path, how):
    with started(path, how, "dead_letter", script=HANGING) as run:
        out, told = run.communicate(timeout=120)
    assert run.returncode == 0, told
    assert out.endswith(" 1\n")
    if how == "sleeps":
        found = (
            r"app 'shop', task 'work': numbers-1 at offset 3 has run for \d+\.\d s, task_timeout"
        )
        assert len(re.findall(found + r" is 2 s; set a longer task_timeout", told)) == 3
    else:
        assert told.count("has not responded for 4 s in ") >= 3
        assert "the process ended while numbers-1 at offset 3 was processed (2 of 3)" in told
    assert values(path) == [n for n in range(20) if n != 7]
    with eoslog.open(path) as log:
        assert [letter.record.attempts for letter in dead_letters(log, "shop")] == [3]


def test_a_record_that_hangs_ends_a_run_that_stops_at_errors(path):
    with started(path, "sleeps", "stop", script=HANGING) as run:
        out, told = run.communicate(timeout=120)
    assert (run.returncode, out) == (1, "")
    assert "TaskTimeout: app 'shop', task 'work': numbers-1 at offset 3 has run for" in told
    assert 7 not in values(path)


def test_an_error_of_a_task_ends_the_run(path):
    app = eoslog.App(path, "shop")

    @app.task("numbers", value="json", to="out")
    def work(record, ctx):
        if record.value == 7:
            raise ZeroDivisionError("seven")
        return record.value

    with pytest.raises(TaskFailed, match="numbers-1 at offset 3 failed: ZeroDivisionError") as told:
        app.run(processes=2)
    [note] = told.value.__notes__
    assert re.match(r"In the process \d+:\nTraceback .*\n  File .*, in work\n", note)
    assert note.endswith("ZeroDivisionError: seven\n") and "eoslog/app" not in note
    assert (told.value.task, told.value.offset) == ("work", 3)
    assert 7 not in values(path)


def test_the_log_has_the_traceback_of_a_second_process_that_fails(path, tmp_path, caplog):
    app = eoslog.App(path, "shop")
    seen, waits = tmp_path / "seen", tmp_path / "waits"
    seen.mkdir()

    @app.task("numbers", to="numbers")
    def work(record, ctx):
        mine = os.getpid()
        (seen / str(mine)).touch()
        pids = sorted(map(int, os.listdir(seen)))
        if len(pids) == 1 or (mine == pids[0] and not waits.exists()):
            return record.value  # more input, until the other process is in its task
        if mine == pids[0]:
            raise ZeroDivisionError("first")
        waits.touch()
        until(lambda: not Path(f"/proc/{pids[0]}").exists())
        raise ZeroDivisionError("second")

    with pytest.raises(TaskFailed, match="first"):
        app.run(processes=2)
    assert "In the process" in caplog.text
    assert 'raise ZeroDivisionError("second")' in caplog.text


class _NeedsTwo(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def test_an_error_that_no_process_can_load_arrives_as_text():
    error, note = pickle.loads(_portable(_NeedsTwo("one", "two")))
    assert type(error) is TaskFailed
    assert str(error) == "_NeedsTwo: one and two"
    assert "In the process" in note


def test_a_missing_topic_ends_the_run(path):
    app = eoslog.App(path, "shop")

    @app.task("missing")
    def work(record, ctx):
        return None

    with pytest.raises(UnknownTopicOrPartition, match="create_topics"):
        app.run(processes=2, until="caught_up")


def test_a_watcher_gets_the_status_of_each_process(path, tmp_path: Path):
    app = eoslog.App(path, "shop")
    told = tmp_path / "told"

    @app.task("numbers", value="json", to="out")
    def work(record, ctx):
        if record.value == 19:
            until(told.exists)
        return record.value

    def watch(statuses):
        seen.append(list(statuses))
        if any(status.doing == "work numbers-1 at offset 9" for status in statuses):
            told.touch()

    seen = []
    report = app.run(2, "caught_up", watch=watch)
    assert report.records == 20
    assert {len(statuses) for statuses in seen} == {2}
    last = seen[-1]
    assert [status.state for status in last] == ["ended", "ended"]
    assert sum(status.report.records for status in last) == 20
    doing = {status.doing for statuses in seen for status in statuses}
    assert "work numbers-1 at offset 9" in doing
    assert {status.lag for statuses in seen for status in statuses if status.lag} <= set(range(21))


def test_a_fork_of_a_task_that_returns_does_not_end_the_run(path):
    app = eoslog.App(path, "shop")

    @app.task("numbers", value="json", to="out")
    def work(record, ctx):
        if record.value != 7:
            return record.value
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        return record.value if child else "of the child"

    report = app.run(processes=2, until="caught_up")
    assert report.records == 20
    assert values(path) == list(range(20))


def test_an_error_of_a_watcher_ends_the_run_and_its_processes(path):
    app = eoslog.App(path, "shop")

    @app.task("numbers", value="json")
    def work(record, ctx): ...

    pids = []

    def watch(statuses):
        pids.extend(status.pid for status in statuses)
        raise ZeroDivisionError("watch")

    with pytest.raises(ZeroDivisionError, match="watch"):
        app.run(processes=2, watch=watch)
    for pid in pids:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def test_an_app_that_runs_in_processes_does_not_run_twice(path):
    app = eoslog.App(path, "shop")

    @app.task("numbers", value="json")
    def work(record, ctx): ...

    refused = []

    def watch(statuses):
        for call in (lambda: app.run(2), app.run, app.step, app.close):
            with pytest.raises(IllegalState, match="app 'shop'") as error:
                call()
            refused.append(error)
        app.stop()

    app.run(processes=2, watch=watch)
    assert refused
    assert app.run(processes=2, until="caught_up").records <= 20
