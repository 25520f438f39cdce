"""`App.stop` ends one run: the one that runs, or the next one."""

from __future__ import annotations

import itertools
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
