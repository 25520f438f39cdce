"""Output that the log rejects after other output, which aborts the transaction."""

from __future__ import annotations

import json

import pytest

import eoslog
from eoslog.errors import TaskFailed


def values(log, topic="out"):
    return sorted(json.loads(record.value) for record in log.read(topic))


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_rejected_attempt_counts_once(log, guarantee):
    """The next attempt is a call, although it may be in the same transaction."""
    calls = []
    app = eoslog.App(log, "shop", guarantee)

    @app.task("numbers", value="json", retries=(0.0, 0.0), on_error="dead_letter")
    def work(record, ctx):
        if record.value == 4:
            calls.append(ctx.attempt)
        if record.value == 4 and ctx.attempt == 1:
            raise ValueError("no")
        ctx.send("out", record.value)
        if record.value == 4 and ctx.attempt == 2:
            ctx.send("missing", 4)

    log.create_topic("out")
    report = app.run(until="caught_up")
    assert calls == [1, 2, 3]
    assert (report.retried, report.dead_letters) == (2, 0)
    assert set(values(log)) == set(range(20))


def test_a_rejected_batch_gives_up_no_record_that_is_read_alone(log):
    """The records of a batch differ after an abort; the first one is not the culprit."""
    calls = []
    app = eoslog.App(log, "shop", commit_interval=60, max_records=2)

    @app.task("first", value="json", batch=2)
    def other(records, ctx): ...

    @app.task("second", value="json", batch=2, on_error="dead_letter")
    def work(records, ctx):
        calls.append([record.value for record in records])
        for record in records:
            ctx.send("out", record.value)
            if record.value == 1:
                ctx.send("missing", 1)

    app.create_topics()
    log.create_topic("out")
    with log.producer(value="json") as producer, app:
        producer.produce("second", 0)
        producer.produce("second", 1)
        producer.flush()
        while not calls:
            app.step()
        producer.produce("first", 0)
        producer.flush()
        app.run(until="caught_up")
    assert calls[:2] == [[0, 1], [0]]
    assert values(log) == [0]
    assert values(log, "shop.dead") == [1]


def test_a_rejected_attempt_that_stopped_a_step_can_be_corrected(log):
    app = eoslog.App(log, "shop")

    @app.task("numbers", value="json")
    def work(record, ctx):
        ctx.send("out", record.value)
        ctx.send("late", record.value)

    log.create_topic("out")
    with app:
        with pytest.raises(TaskFailed, match="topic 'late' does not exist"):
            while True:
                app.step()
        log.create_topic("late")
        app.run(until="caught_up")
        assert values(log) == values(log, "late") == list(range(20))


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize(
    ("config", "sent"),
    [
        ({"cleanup.policy": "compact"}, {}),
        ({"message.timestamp.before.max.ms": "1000"}, {"timestamp": 1}),
    ],
    ids=["no key", "timestamp"],
)
def test_output_that_only_the_log_can_reject_fails_its_record(log, guarantee, config, sent):
    """The log rejects it when its batch is sent, maybe in the call of a later record."""
    app = eoslog.App(log, "shop", guarantee)

    @app.task("numbers", value="json", on_error="dead_letter")
    def work(record, ctx):
        for _ in range(500):
            ctx.send("out", record.value)
        if record.value in (4, 9):
            ctx.send("checked", record.value, **sent)

    log.create_topic("out")
    log.create_topic("checked", config=config)
    report = app.run(until="caught_up")
    assert report.dead_letters == 2
    assert values(log, "shop.dead") == [4, 9]
    assert set(values(log)) >= set(range(20)) - {4, 9}
    if guarantee == "exactly_once":
        assert values(log) == sorted([n for n in range(20) if n not in (4, 9)] * 500)


def test_output_that_only_the_log_can_reject_stops_with_the_record(log):
    app = eoslog.App(log, "shop")

    @app.task("numbers", value="json")
    def work(record, ctx):
        ctx.send("compacted", record.value, str(record.value) if record.value != 4 else None)

    log.create_topic("compacted", config={"cleanup.policy": "compact"})
    with pytest.raises(TaskFailed, match="numbers-0 at offset 2 failed: InvalidRecord"):
        app.run(until="caught_up")
