"""Kinds of functions that are tasks, and what they may call."""

from __future__ import annotations

import asyncio
import functools

import pytest

import eoslog
from eoslog.errors import ConfigError, IllegalState, SerializationError, TaskFailed


def outputs(log):
    return [record.value for record in log.read("out")]


class Handler:
    """A task that is an object."""

    def __call__(self, record, ctx):
        return record.value


class Yielding:
    """A task that is an object and yields."""

    def __call__(self, record, ctx):
        yield record.value


async def yielding(record, ctx):
    yield record.value
    await asyncio.sleep(0)
    yield record.value


def test_an_asynchronous_generator_sends_a_record_for_each_value(log):
    app = eoslog.App(log, "twice")
    app.task("numbers", to="out")(yielding)
    app.create_topics()
    assert app.run(until="caught_up").records == 20
    assert sorted(outputs(log)) == sorted(2 * [str(n).encode() for n in range(20)])


@pytest.mark.parametrize(
    "handler", [yielding, Yielding(), functools.partial(Yielding.__call__, None)]
)
def test_a_task_that_yields_needs_a_topic_for_its_results(log, handler):
    """Without one, nothing would run its body."""
    with pytest.raises(ConfigError, match="task '.*ielding|task '__call__'.*yields.*set to="):
        eoslog.App(log, "silent").task("numbers")(handler)


def test_a_generator_that_a_task_returns_fails_the_record_without_a_topic(log):
    app = eoslog.App(log, "silent")
    app.task("numbers")(lambda record, ctx: (ctx.send("out", value) for value in "ab"))
    with pytest.raises(TaskFailed, match="numbers-. at offset 0 failed: ConfigError.*set to="):
        app.run(until="caught_up")


@pytest.mark.parametrize(
    ("handler", "name"),
    [(Handler(), "Handler"), (functools.partial(Handler.__call__, Handler()), "__call__")],
)
def test_the_name_of_a_task_is_the_same_in_each_process(log, handler, name):
    app = eoslog.App(log, "named")
    app.task("numbers", to="out")(handler)
    assert list(app._tasks) == [name]
    app.create_topics()
    app.run(until="caught_up")
    assert len(outputs(log)) == 20


def test_two_tasks_need_two_names(log):
    app = eoslog.App(log, "named")
    app.task("numbers")(lambda record, ctx: None)
    with pytest.raises(ConfigError, match="topic 'numbers' has the same name"):
        app.task("other")(lambda record, ctx: None)


@pytest.mark.parametrize("result", [["a", "b"], 7, object()], ids=["list", "int", "object"])
def test_a_result_without_a_format_must_be_bytes_or_text(log, result):
    app = eoslog.App(log, "formats")
    app.task("numbers", to="out")(lambda record, ctx: result)
    app.create_topics()
    with pytest.raises(TaskFailed, match=f"got {type(result).__name__}; set value=") as failed:
        app.run(until="caught_up")
    assert isinstance(failed.value.__cause__, SerializationError)


@pytest.mark.parametrize("result", [bytearray(b"a"), memoryview(b"a"), "a"])
def test_a_result_without_a_format_may_be_a_buffer_or_text(log, result):
    app = eoslog.App(log, "formats")
    app.task("numbers", to="out")(lambda record, ctx: result)
    app.create_topics()
    app.run(until="caught_up")
    assert outputs(log) == [b"a"] * 20


@pytest.mark.parametrize("call", ["run", "step", "close"])
def test_a_task_cannot_run_or_close_its_application(log, call):
    app = eoslog.App(log, "inner")

    @app.task("numbers", on_error="stop")
    def work(record, ctx):
        getattr(app, call)()

    for outer in (lambda: app.run(until="caught_up"), app.step):
        with pytest.raises(TaskFailed, match="failed: IllegalState: app 'inner'"):
            outer()
    app.close()


def test_a_task_can_stop_a_step(log):
    app = eoslog.App(log, "inner")

    @app.task("numbers")
    def work(record, ctx):
        app.stop()

    assert app.step() > 0
    assert log.groups() == [] or not log.describe_group("inner").members
    assert app.step() > 0
    app.close()


@pytest.mark.parametrize("until", ["caught_up", None])
def test_coroutine_tasks_do_not_run_in_a_running_event_loop(log, until):
    """As failures of records, they would all be skipped."""
    app = eoslog.App(log, "notebook")

    @app.task("numbers", to="out", on_error="skip")
    async def work(record, ctx):
        return record.value

    app.create_topics()

    async def main():
        with pytest.raises(IllegalState, match="await asyncio.to_thread"):
            app.run(until=until)
        return await asyncio.to_thread(app.run, until="caught_up")

    assert asyncio.run(main()).skipped == 0
    assert len(outputs(log)) == 20
