"""`at_most_once` has no output twice, not even of a record that is tried again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest

import eoslog
from eoslog.errors import TaskFailed
from eoslog.storage.fs import files
from tests.app.counting import ended, forked
from tests.waiting import until

SHORT = 0.02
RETRYING = """
import sys
import time
import eoslog

app = eoslog.App(sys.argv[1], "shop", "at_most_once")

@app.task("numbers", value="json", to="out", retries=(0.02,))
def work(record, ctx):
    if record.value == 4 and ctx.attempt == 1:
        raise ValueError("no")
    return record.value

app.run(until="caught_up")
"""


def run(path: str, failpoint: str = "") -> int:
    environment = {**os.environ, "EOSLOG_FAILPOINTS": failpoint}
    command = [sys.executable, "-c", RETRYING, path]
    return subprocess.run(command, env=environment, check=False, timeout=120).returncode


def values(log: eoslog.Log) -> list[int]:
    return sorted(json.loads(record.value) for record in log.read("out"))


def lose_membership(log: eoslog.Log) -> None:
    [member] = log.describe_group("shop").members
    log._engine.groups.leave("shop", member.member_id)


class Retrying:
    """An app with the guarantee, whose task runs `handler(record, ctx)` first."""

    def __init__(self, log, handler, *, commit_interval=60.0, max_records=1000, **options):
        self.calls = []
        self.app = eoslog.App(
            log,
            "shop",
            "at_most_once",
            commit_interval=commit_interval,
            max_records=max_records,
        )

        @self.app.task("numbers", key="string", value="json", to="out", **options)
        def work(record, ctx):
            self.calls.append((record.value, ctx.attempt))
            handler(record, ctx)
            return record.value

        self.app.create_topics()

    def run(self):
        return self.app.run(until="caught_up")


@pytest.mark.process
@pytest.mark.parametrize(("point", "left"), [("output_first", [4]), ("attempt_begun", [])])
def test_a_kill_in_another_attempt_does_not_repeat_it(log, caplog, point, left):
    log.create_topic("out")
    log.close()
    assert run(log.path, f"app.{point}:1=kill") == -signal.SIGKILL
    with eoslog.open(log.path) as log:
        assert [value for value in values(log) if value == 4] == left
        retrying = Retrying(log, lambda record, ctx: None)
        retrying.run()
        assert 4 not in [value for value, _ in retrying.calls]
        assert [value for value in values(log) if value == 4] == left
    assert "attempt 2 of numbers-0 at offset 2 did not end; at_most_once" in caplog.text


@pytest.mark.process
def test_a_record_that_is_dropped_stays_dropped(log):
    log.create_topic("out")
    log.close()
    assert run(log.path, "app.attempt_begun:1=kill") == -signal.SIGKILL
    assert run(log.path) == 0
    with eoslog.open(log.path) as log:
        stored = {record.key: record.value for record in log.read("shop.retries")}
        assert list(stored.values()) == [None]


def test_an_attempt_that_fails_keeps_the_order_of_its_key(log):
    with log.producer() as producer:
        for value in (100, 101):
            producer.produce("numbers", str(value), "key", partition=0)

    def handler(record, ctx):
        if record.value == 100 and ctx.attempt < 4:
            raise ValueError("no")

    retrying = Retrying(log, handler, retries=(SHORT, SHORT, 3600.0))
    with retrying.app as running:
        while (100, 3) not in retrying.calls:
            running.step()
    log._engine.use_clock(lambda: 1e12)
    retrying.run()
    assert [value for value, _ in retrying.calls if value >= 100] == [100, 100, 100, 100, 101]
    assert values(log)[-2:] == [100, 101]


def test_output_before_a_rejected_one_is_not_repeated(log):
    def handler(record, ctx):
        if record.value == 4 and ctx.attempt == 1:
            raise ValueError("no")
        if record.value == 4:
            ctx.send("out", 4)
            ctx.send("missing", 4)

    with log.producer() as producer:
        producer.produce("numbers", "7", "4", partition=0)  # waits for 4, which is dropped
    retrying = Retrying(log, handler, retries=(SHORT, SHORT))
    retrying.run()
    assert [call for call in retrying.calls if call[0] == 4] == [(4, 1), (4, 2)]
    assert values(log).count(4) == 1
    assert values(log).count(7) == 2


def test_a_task_that_stops_the_app_can_be_corrected(log):
    def failing(record, ctx):
        if record.value == 4:
            raise ValueError("no")

    with pytest.raises(TaskFailed):
        Retrying(log, failing, retries=(SHORT,)).run()
    assert 4 not in values(log)
    Retrying(log, lambda record, ctx: None, retries=(SHORT,)).run()
    assert values(log).count(4) == 1


def test_a_worker_that_lost_its_membership_tries_no_record_again(log):
    def handler(record, ctx):
        if record.value in (4, 6) and ctx.attempt == 1:
            raise ValueError("no")
        if ctx.attempt == 2:  # another member may own the partition of the other record now
            lose_membership(log)

    retrying = Retrying(log, handler, retries=(0.0,))
    with retrying.app as running:
        while (4, 2) not in retrying.calls:
            running.step()
        assert (6, 2) not in retrying.calls
    retrying.run()
    assert [call for call in retrying.calls if call[1] == 2] == [(4, 2), (6, 2)]
    assert values(log) == list(range(20))


@pytest.mark.process
def test_a_lost_membership_in_an_attempt_that_begins_ends_it(log):
    """Another worker may have found the record before that was stored."""
    log.create_topic("out")
    environment = {**os.environ, "EOSLOG_FAILPOINTS": "app.attempt_begun:1=stop"}
    app = subprocess.Popen([sys.executable, "-c", RETRYING, log.path], env=environment)
    try:
        _, status = os.waitpid(app.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        lose_membership(log)  # as after the session timeout
        os.kill(app.pid, signal.SIGCONT)
        assert app.wait(60) == 0
    finally:
        app.kill()
        app.wait()
    assert 4 not in values(log)


def test_a_lost_membership_loses_no_record_that_is_read(log):
    def handler(record, ctx):
        if record.value == 4 and ctx.attempt == 1:
            lose_membership(log)
            raise ValueError("no")

    retrying = Retrying(log, handler, retries=(0.0,), commit_interval=0.0)
    retrying.run()
    assert values(log) == list(range(20))


def test_an_attempt_that_raised_is_repeated_after_an_error_of_another(log):
    def handler(record, ctx):
        if record.value in (4, 6) and ctx.attempt == 1 or record.value == 4 and ctx.attempt == 2:
            raise ValueError("no")
        if record.value == 6:
            ctx.send("out", 6)
            ctx.send("missing", 6)

    retrying = Retrying(log, handler, retries=(0.0, SHORT))
    retrying.run()
    assert retrying.calls[-3:] == [(4, 2), (6, 2), (4, 3)]
    assert values(log).count(4) == 1


def test_a_record_whose_output_is_rejected_in_part_is_named(log, caplog):
    def handler(record, ctx):
        if record.value == 6:
            ctx.send("out", 6)
            ctx.send("missing", 6)

    Retrying(log, handler).run()
    assert values(log) == list(range(20))
    assert "output of numbers-0 at offset 3 was rejected after other output" in caplog.text


def test_a_stop_between_records_loses_none(log):
    def handler(record, ctx):
        if record.value == 4:
            retrying.app.stop()

    retrying = Retrying(log, handler, commit_interval=0.0)
    retrying.app.run()
    assert len(values(log)) < 20
    Retrying(log, lambda record, ctx: None).run()
    assert values(log) == list(range(20))


@pytest.mark.parametrize("retries", [(), (0.0,)])
def test_a_task_that_stops_the_app_loses_no_record(log, retries):
    def failing(record, ctx):
        if record.value == 4:
            raise ValueError("no")

    with pytest.raises(TaskFailed):
        Retrying(log, failing, retries=retries, max_records=5).run()
    Retrying(log, lambda record, ctx: None).run()
    assert values(log) == list(range(20))


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_one_record_that_is_left_is_given_back_without_a_warning(log):
    def failing(record, ctx):
        if record.value == 19:
            raise ValueError("no")

    with pytest.raises(TaskFailed):
        Retrying(log, failing).run()
    Retrying(log, lambda record, ctx: None).run()
    assert values(log) == list(range(20))


def test_records_that_a_lost_membership_drops_are_named(log, caplog):
    def handler(record, ctx):
        if record.value == 4:
            lose_membership(log)
            retrying.app.stop()

    retrying = Retrying(log, handler, commit_interval=0.0)
    retrying.app.run()
    assert "so they are dropped: numbers-" in caplog.text
    assert "numbers-0 from offset 3" in caplog.text


@pytest.mark.parametrize("fails", [True, False])
def test_changes_of_tables_stay_with_the_output_of_their_calls(log, fails):
    """No later attempt makes them again after another call has failed."""
    log.create_topic("one")
    with log.producer() as producer:
        for number in range(6):
            producer.produce("one", str(number), str(number))
    app = eoslog.App(log, "shop", "at_most_once")
    table = app.table("counts", default=int)

    @app.task("one", key="string", value="json", to="out", tables=[table])
    def work(record, ctx):
        table[record.key] += 1
        if record.value == 4:
            if fails:
                raise ValueError("no")
            ctx.send("out", b"4")
            ctx.send("missing", b"4")
        return record.value

    app.create_topics()
    with pytest.raises(TaskFailed) if fails else contextlib.nullcontext():
        app.run(until="caught_up")
    changed = [int(record.key) for record in log.read("counts")]
    assert changed == ([0, 1, 2, 3] if fails else [0, 1, 2, 3, 5])


@pytest.mark.process
@pytest.mark.parametrize("nth", [1, 2])
def test_a_kill_in_an_interrupted_step_repeats_no_call(log, nth):
    """It dies after the table changes, or before the ends of its attempts."""

    log.create_topic("one")
    with log.producer() as producer:
        for number in range(20):
            producer.produce("one", str(number), str(number))
    log.close()

    def counting(log, last):
        app = eoslog.App(log, "shop", "at_most_once", max_records=10)
        table = app.table("counts", default=int)

        @app.task("one", key="string", value="json", to="out", tables=[table], retries=(0.0,))
        def work(record, ctx):
            if record.value == 4 and ctx.attempt == 1:
                raise ValueError("no")
            if record.value == last:
                files.arm_failpoint("app.output_first", "kill", nth)
                raise KeyboardInterrupt
            table[str(record.value)] += 1
            return record.value

        app.create_topics()
        app.run(until="caught_up")

    def work():
        with eoslog.open(log.path) as log_of_child:
            counting(log_of_child, 10)

    assert ended(forked(work)) == -signal.SIGKILL
    with eoslog.open(log.path) as log:
        counting(log, None)
        for topic in ("out", "counts"):
            found = [int(record.key or record.value) for record in log.read(topic)]
            assert found.count(4) == 1
            assert len(found) == len(set(found))


def test_an_attempt_that_ended_is_not_named_as_dropped(log, caplog):
    """The run ends in the same transaction, because of another record."""

    def failing(record, ctx):
        if record.value in (4, 6) and (record.value == 6 or ctx.attempt == 1):
            raise ValueError("no")

    with pytest.raises(TaskFailed):
        Retrying(log, failing, retries=(0.0,)).run()
    Retrying(log, lambda record, ctx: None).run()
    assert values(log) == list(range(20))
    assert "dropped" not in caplog.text


def test_a_record_that_fails_after_a_lost_membership_has_a_new_owner(log):
    def handler(record, ctx):
        if record.value == 100 and ctx.attempt == 1:
            lose_membership(log)
            while len(new.app._begun()._clients.consumer.assignment()) < 2:
                new.app.step()
            raise ValueError("no")

    old = Retrying(log, handler, retries=(0.0,))
    new = Retrying(log, lambda record, ctx: None, retries=(0.0,))
    old.run()
    with log.producer() as producer:
        producer.produce("numbers", "100", "100", partition=0)
    with old.app, new.app:
        while not old.calls[20:]:
            old.app.step()
        until(lambda: (100, 2) in new.calls, step=new.app.step)
    assert new.calls == [(100, 2)]
    assert values(log) == [*range(20), 100]


def test_records_whose_position_could_not_be_committed_are_read_again(log, disarmed):
    """None of them was given to the task, so each can still be."""
    app = eoslog.App(log, "shop", "at_most_once", commit_interval=60, max_records=3)

    @app.task("numbers", value="json", to="out")
    def work(record, ctx):
        return record.value

    log.create_topic("out")
    with app:
        while not app.step():
            pass
        files.arm_failpoint("group.decided", "interrupt")
        with pytest.raises(KeyboardInterrupt):
            app.step()
        app.run(until="caught_up")
    assert values(log) == list(range(20))
