"""`App.stop` ends one run: the one that runs, or the next one."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys

import pytest

import eoslog
import eoslog.app.app
from eoslog.reports import RunReport


def app_of(log: eoslog.Log | str) -> eoslog.App:
    app = eoslog.App(log, "stopped", max_records=1)

    @app.task("numbers")
    def work(record: eoslog.Record, ctx: eoslog.Context) -> None: ...

    return app


def run_stopped_at(app: eoslog.App, number: int, processes: int = 1) -> RunReport:
    """Run an application that is stopped at the n-th line of its own module."""
    lines = itertools.count(1)

    def trace(frame, event, argument):
        if frame.f_code.co_filename != eoslog.app.app.__file__:
            return None
        if event == "line" and next(lines) == number:
            app.stop()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return app.run(processes, until="caught_up")
    finally:
        sys.settrace(before)


def test_stop_ends_a_run_at_each_line_before_its_first_record(log):
    app = app_of(log)
    for number in itertools.count(1):
        records = run_stopped_at(app, number).records
        assert records <= 1
        if records:
            break
    assert number > 20
    assert app.run(until="caught_up").records == 19


def test_a_run_that_an_earlier_stop_ends_says_so(log, caplog):
    app = app_of(log)
    app.run(until="caught_up")
    assert "stop()" not in caplog.text
    app.stop()
    assert app.run().records == 0
    assert "stop() came before run(), the run ends" in caplog.text


@pytest.mark.process
def test_stop_ends_processes_at_each_line_before_they_start(log):
    log.close()
    app = app_of(log.path)
    for number in range(1, 15):
        assert run_stopped_at(app, number, processes=2).records == 0
    assert app.run(2, until="caught_up").records == 20


@pytest.mark.process
@pytest.mark.parametrize("processes", [1, 2])
def test_stop_before_a_run_ends_that_run_only(log, processes):
    log.close()
    with app_of(log.path) as app:
        app.stop()
        assert app.run(processes, until="caught_up").records == 0
        assert app.run(processes, until="caught_up").records == 20


def test_stop_between_steps_ends_the_membership_and_no_later_run(log):
    app = app_of(log)
    assert app.step() == 1
    app.stop()
    assert log.describe_group("stopped").members == []
    assert app.run(until="caught_up").records == 19


def test_stop_before_a_step_ends_its_membership(log):
    with app_of(log) as app:
        app.stop()
        assert app.step() == 1
        assert log.describe_group("stopped").members == []
        assert app.step() == 1
        assert len(log.describe_group("stopped").members) == 1


HANGING = """
import logging, sys, time
import eoslog

logging.basicConfig(level=logging.INFO)
app = eoslog.App(sys.argv[1], "stopped", max_records=3)

@app.task("numbers", key="string", value="json", to="out")
def work(record, ctx):
    if record.value == 7 and sys.argv[2] == "hang":
        print("hangs", flush=True)
        while True:
            time.sleep(0.01)
    return record.value

app.run(until="caught_up")
"""


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_third_signal_ends_a_task_that_hangs(log, number):
    log.create_topic("out")
    log.close()
    command = [sys.executable, "-c", HANGING, log.path]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "hang"], **pipes) as run:
        assert run.stdout.readline() == "hangs\n"
        for told in ("the run ends after", r"'work' has run for \S+ s, for numbers-1 at offset 3"):
            run.send_signal(number)
            assert next(line for line in run.stderr if re.search(told, line))
        run.send_signal(number)
        rest = run.communicate(timeout=60)[1]
    if number is signal.SIGINT:
        assert (run.returncode, rest.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")
    else:
        assert run.returncode == -signal.SIGTERM
    subprocess.run([*command, "go on"], check=True)
    with eoslog.open(log.path) as again:
        assert sorted(int(record.value) for record in again.read("out")) == list(range(20))
