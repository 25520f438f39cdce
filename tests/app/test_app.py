"""Runs of an application: transactions, output, positions, guarantees."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import eoslog
from eoslog.errors import (
    ConfigError,
    IllegalState,
    InvalidTopic,
    SerializationError,
    TaskFailed,
    TaskTimeout,
    UnknownTopicOrPartition,
)

GUARANTEES = ("exactly_once", "at_least_once", "at_most_once")


def values(log, topic):
    return sorted(int(record.value) for record in log.read(topic))


def doubler(log, name="doubler", **options):
    """An application that writes twice each number to `doubled`."""
    app = eoslog.App(log, name, **options)

    @app.task("numbers", key="string", value="json", to="doubled")
    def double(record, ctx):
        return 2 * record.value

    return app


@pytest.mark.parametrize(
    "guarantee", [*GUARANTEES, "exactly-once", "exact_once", "EXACTLY_ONCE_V2"]
)
def test_a_run_until_caught_up_processes_each_record(log, guarantee):
    app = doubler(log, processing_guarantee=guarantee)
    assert app.create_topics() == ["doubled"]
    report = app.run(until="caught_up")
    assert report.records == 20
    assert report.transactions >= 1
    assert values(log, "doubled") == [2 * number for number in range(20)]
    assert not any(log.lag("doubler").values())
    assert doubler(log).run(until="caught_up").records == 0


def test_a_step_is_one_transaction(log):
    app = doubler(log, max_records=7, commit_interval=60)
    app.create_topics()
    with app:
        assert app.step() == 7
        assert len(values(log, "doubled")) == 7
        assert [app.step(), app.step(), app.step()] == [7, 6, 0]
    assert values(log, "doubled") == [2 * number for number in range(20)]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_output_is_in_the_log_when_a_step_has_returned(log, guarantee):
    """Positions are committed by then, so output in a buffer could be lost."""
    app = doubler(log, processing_guarantee=guarantee, max_records=1)
    app.create_topics()
    with app:
        for number in range(1, 9):
            while not app.step():
                pass
            assert len(values(log, "doubled")) == number


def test_an_app_opens_the_log_at_a_path(log):
    app = doubler(log.path)
    app.create_topics()
    assert app.run(until="caught_up").records == 20
    assert app.run(until="caught_up").records == 0


def test_results_that_are_yielded_are_sent_with_the_key_of_the_record(log):
    app = eoslog.App(log, "twice")

    @app.task("numbers", value="string", to="out")
    def twice(record, ctx):
        yield record.value
        yield record.value + "!"

    app.create_topics()
    app.run(until="caught_up")
    sent = [(record.key, record.value) for record in log.read("out") if record.key == b"7"]
    assert sent == [(b"7", b"7"), (b"7", b"7!")]


def test_a_result_is_not_used_without_a_topic(log):
    app = eoslog.App(log, "silent")

    @app.task("numbers")
    def silent(record, ctx):
        return object()

    assert app.run(until="caught_up").records == 20


def test_coroutine_functions_are_tasks(log):
    import asyncio

    app = eoslog.App(log, "async")

    @app.task("numbers", value="json", to="out")
    async def later(record, ctx):
        await asyncio.sleep(0)
        ctx.send("out", record.value, record.key)
        return record.value

    app.create_topics()
    app.run(until="caught_up")
    assert values(log, "out") == sorted([*range(20), *range(20)])


@pytest.mark.parametrize("guarantee", GUARANTEES[:2])
def test_nothing_of_a_record_that_fails_is_sent(log, guarantee):
    app = eoslog.App(log, "fails", guarantee)
    fails = True

    @app.task("numbers", value="json", to="out")
    def work(record, ctx):
        ctx.send("out", record.value, record.key)
        if record.value == 5 and fails:
            raise ZeroDivisionError("five")

    app.create_topics()
    with pytest.raises(TaskFailed, match="ZeroDivisionError: five; nothing") as failed:
        app.run(until="caught_up")
    error = failed.value
    assert (error.app, error.task, error.topic) == ("fails", "work", "numbers")
    assert (error.partition, error.offset) == (1, 2)
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert 5 not in values(log, "out")
    fails = False
    app.run(until="caught_up")
    assert set(values(log, "out")) == set(range(20))
    if guarantee == "exactly_once":
        assert values(log, "out") == list(range(20))


def test_a_record_that_does_not_parse_names_its_place(log):
    with log.producer() as producer:
        producer.produce("numbers", "{", partition=1)
    app = doubler(log)
    app.create_topics()
    with pytest.raises(TaskFailed, match=r"numbers-1 at offset 10.*not JSON") as failed:
        app.run(until="caught_up")
    assert isinstance(failed.value.__cause__, SerializationError)


def test_output_that_the_log_rejects_fails_the_task_that_sent_it(log):
    app = eoslog.App(log, "rejected", commit_interval=60)

    @app.task("numbers", value="json")
    def work(record, ctx):
        ctx.send("out", record.value)
        if record.value == 4:
            ctx.send("nowhere", record.value)

    log.create_topic("out")
    with pytest.raises(TaskFailed, match="numbers-0 at offset 2.*'nowhere'") as failed:
        app.run(until="caught_up")
    assert isinstance(failed.value.__cause__, UnknownTopicOrPartition)
    assert values(log, "out") == []


def test_a_context_is_closed_when_its_task_has_returned(log):
    app = eoslog.App(log, "kept")
    kept = []

    @app.task("numbers")
    def keep(record, ctx):
        kept.append(ctx)
        if len(kept) == 2:
            kept[0].send("numbers", "late")

    with pytest.raises(TaskFailed) as failed:
        app.run(until="caught_up")
    assert isinstance(failed.value.__cause__, IllegalState)
    with pytest.raises(IllegalState, match=r"app 'kept', task 'keep': send .* numbers-"):
        kept[0].send("numbers", "late")


def test_a_task_that_is_too_slow_is_rolled_back(log):
    import time

    app = eoslog.App(log, "slow")

    @app.task("numbers", to="out", task_timeout=0.01)
    def slow(record, ctx):
        time.sleep(0.05)
        return record.value

    app.create_topics()
    with pytest.raises(TaskTimeout, match=r"numbers-\d at offset 0 took .* task_timeout is 0.01 s"):
        app.run()
    assert values(log, "out") == []


@pytest.mark.slow
def test_a_coroutine_that_hangs_is_cancelled_and_fails_its_record(log):
    import asyncio

    app = eoslog.App(log, "hangs")
    cancelled = []

    @app.task("numbers", value="json", to="out", task_timeout=10, on_error="dead_letter")
    async def work(record, ctx):
        if record.value == 5:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                cancelled.append(record.value)
                raise
        if record.value == 6:
            raise TimeoutError("of the task")
        return record.value

    app.create_topics()
    assert app.run(until="caught_up").dead_letters == 2
    assert cancelled == [5]
    assert values(log, "out") == [n for n in range(20) if n not in (5, 6)]
    causes = sorted(dict(letter.headers)["eoslog.cause"] for letter in log.read("hangs.dead"))
    assert causes[0].startswith(b"TaskTimeout: app 'hangs', task 'work': numbers-1 at offset 2 was")
    assert causes[1] == b"TimeoutError: of the task"


def test_stop_ends_a_run_after_its_transaction(log):
    app = eoslog.App(log, "stopped")
    seen = threading.Event()

    @app.task("numbers", value="json", to="out")
    def work(record, ctx):
        seen.set()
        return record.value

    app.create_topics()
    reports = []
    thread = threading.Thread(target=lambda: reports.append(app.run()))
    thread.start()
    assert seen.wait(30)
    with pytest.raises(IllegalState, match="runs already"):
        app.step()
    app.stop()
    thread.join(30)
    [report] = reports
    assert report.records == len(values(log, "out")) > 0


def test_invalid_options_are_rejected_with_the_name_of_the_task(log):
    app = eoslog.App(log, "options")
    for options, text in (
        ({"on_error": "ignore"}, "on_error: expected stop, skip"),
        ({"value": "xml"}, "value: expected a callable or one of"),
        ({"batch": 0}, "batch: expected 1 or more"),
        ({"batch_format": "arrow"}, "batch_format='arrow' needs batch"),
        ({"retries": "5s"}, "retries: expected a list of delays"),
        ({"task_timeout": 0}, "task_timeout: expected more than 0"),
    ):
        with pytest.raises(ConfigError, match=f"task 'work': {text}"):

            @app.task("numbers", **options)
            def work(record, ctx): ...

    for name in ("", "a/b", "..", "ä", "x" * 201, 7):
        with pytest.raises(ConfigError, match="id"):
            eoslog.App(log, name)
    with pytest.raises(ConfigError, match="processing_guarantee: expected exactly_once"):
        eoslog.App(log, "a", "twice")
    with pytest.raises(ConfigError, match="it has no task"):
        eoslog.App(log, "a").run()


def test_invalid_topic_names_are_rejected_at_the_declaration(log):
    app = eoslog.App(log, "options")

    def work(record, ctx): ...

    for name in ("bad name", "", "..", "x" * 250, ["a", "b"], None, 7):
        with pytest.raises(InvalidTopic, match="topic name"):
            app.task(name)(work)
        with pytest.raises(InvalidTopic, match="topic name"):
            app.table(name)
    for name in ("bad name", "", ["a", "b"], 7):
        with pytest.raises(InvalidTopic, match="topic name"):
            app.task("numbers", to=name)(work)
    app.task("numbers", to="out")(work)


def test_a_task_without_parentheses_is_rejected_with_the_correct_form(log):
    app = eoslog.App(log, "options")
    with pytest.raises(ConfigError, match="app 'options': .*write @app.task.\"topic\"."):

        @app.task
        def work(record, ctx): ...


def test_a_task_cannot_take_longer_than_a_transaction(log):
    def work(record, ctx): ...

    app = eoslog.App(log, "options")
    with pytest.raises(ConfigError, match="task 'work': task_timeout: expected at most 869.9 s"):
        app.task("numbers", task_timeout=870)(work)
    with pytest.raises(ConfigError, match="commit_interval=869, got 60"):
        eoslog.App(log, "options", commit_interval=869).task("numbers")(work)
    with pytest.raises(ConfigError, match="commit_interval: expected less than 870 s .*got 900"):
        eoslog.App(log, "options", commit_interval=900)
    app.task("numbers", task_timeout=869.9)(work)
    app.run(until="caught_up")
    more = eoslog.App(log, "more", "at_least_once", commit_interval=900)
    more.task("numbers", task_timeout=3600)(work)
    more.run(until="caught_up")


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("seconds", [math.inf, 1e12, 3e6])
def test_a_time_that_no_member_of_a_group_can_have_is_refused(log, guarantee, seconds):
    def work(record, ctx): ...

    with pytest.raises(ConfigError, match=r"task 'work': task_timeout: expected at most 2\.14745e"):
        eoslog.App(log, "long", guarantee).task("numbers", task_timeout=seconds)(work)
    with pytest.raises(ConfigError, match=r"commit_interval: expected less than 2\.14745e"):
        eoslog.App(log, "long", guarantee, commit_interval=seconds)


def test_a_topic_has_one_task(log):
    app = doubler(log)
    with pytest.raises(ConfigError, match="topic 'numbers' has task 'double'"):

        @app.task("numbers")
        def other(record, ctx): ...


def test_a_missing_topic_is_named_with_the_call_that_creates_it(log):
    with pytest.raises(UnknownTopicOrPartition, match=r"'doubled' does not.*create_topics\(\)"):
        doubler(log).run(until="caught_up")


def test_a_fenced_run_continues_with_new_clients(log):
    """Records that the old producer could not send are read again."""
    app = eoslog.App(log, "fenced")
    fenced = []

    @app.task("numbers", key="string", value="json", to="doubled")
    def double(record, ctx):
        if not fenced:
            fenced.append(record.offset)
            with log.producer(transactional_id="fenced-0") as rival:
                rival.init_transactions()
        elif len(fenced) == 1:
            fenced.append(record.offset)
            time.sleep(0.3)  # the producer's thread finds out that it is fenced
        return 2 * record.value

    app.create_topics()
    assert app.run(until="caught_up").records >= 20
    assert values(log, "doubled") == [2 * number for number in range(20)]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_run_that_loses_its_membership_joins_again(log, guarantee):
    """As after a suspension that is longer than the session."""
    app = eoslog.App(log, "suspended", guarantee, max_records=4)
    calls = []

    @app.task("numbers", key="string", value="json", to="doubled")
    def double(record, ctx):
        calls.append(record.value)
        if len(calls) == 6:
            [member] = log.describe_group("suspended").members
            log._engine.groups.leave("suspended", member.member_id)
        return 2 * record.value

    app.create_topics()
    app.run(until="caught_up")
    doubled = values(log, "doubled")
    assert sorted(set(doubled)) == [2 * number for number in range(20)]
    assert len(doubled) == len(calls) if guarantee != "exactly_once" else len(doubled) == 20


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_batch_of_a_partition_that_is_released_has_one_reader(log, guarantee):
    """A second worker joins while the first one waits for records of a batch."""
    calls = []

    def worker(commit_interval):
        app = eoslog.App(log, "shared", guarantee, commit_interval=commit_interval)

        @app.task("numbers", value="json", to="doubled", batch=100)
        def double(records, ctx):
            calls.extend(record.value for record in records)
            return [2 * record.value for record in records]

        app.create_topics()
        return app

    with worker(2.0) as first, worker(0.0) as second:
        with ThreadPoolExecutor(1) as pool:
            step = pool.submit(first._begun().step, 1.0, linger=True)
            while not (step.done() or first._begun()._batches._waiting):
                time.sleep(0.01)
            while not step.done():
                second.step()
                time.sleep(0.05)
            step.result()
        first.close()
        second.run(until="caught_up")
    assert sorted(calls) == list(range(20))
