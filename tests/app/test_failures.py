"""Records whose task raises: retries, skips, dead letters, and stops."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
import traceback

import pytest

import eoslog
from eoslog.app.dead_letters import dead_letters
from eoslog.errors import TaskFailed
from eoslog.storage.fs import files
from tests.waiting import until

SHORT = 0.02


class Failing:
    """An application whose task raises for some values, a number of times each."""

    def __init__(self, log, fails, name="shop", **options):
        self.calls = []
        self.app = eoslog.App(log, name)
        self.fails = dict(fails)

        @self.app.task("numbers", key="string", value="json", to="out", **options)
        def work(record, ctx):
            self.calls.append((record.value, ctx.attempt))
            if self.fails.get(record.value, 0) > 0:
                self.fails[record.value] -= 1
                ctx.send("out", "never", record.key)
                raise ValueError(f"no {record.value}")
            return record.value

        self.app.create_topics()

    def run(self):
        return self.app.run(until="caught_up")


def values(log, topic="out"):
    return sorted(json.loads(record.value) for record in log.read(topic))


def waiting(log, app="shop"):
    """The keys of the retry topic that have no tombstone."""
    found = {}
    for record in log.read(f"{app}.retries"):
        found[record.key] = record.value
    return [key for key, value in found.items() if value is not None]


def test_a_failed_record_is_tried_again_and_then_done(log):
    app = Failing(log, {5: 2}, retries=(SHORT, SHORT), on_error="dead_letter")
    report = app.run()
    assert (report.retried, report.dead_letters) == (2, 0)
    assert [call for call in app.calls if call[0] == 5] == [(5, 1), (5, 2), (5, 3)]
    assert values(log) == list(range(20))
    assert waiting(log) == []


def test_a_record_that_fails_too_often_is_a_dead_letter(log):
    app = Failing(log, {5: 99}, retries=(SHORT,), on_error="dead_letter")
    report = app.run()
    assert (report.retried, report.dead_letters) == (1, 1)
    assert values(log) == [n for n in range(20) if n != 5]
    [letter] = dead_letters(log, "shop")
    record = letter.record
    assert (record.key, record.value, record.headers) == (b"5", b"5", ())
    assert (record.app, record.task, record.topic) == ("shop", "work", "numbers")
    assert (record.partition, record.offset, record.attempts) == (1, 2, 2)
    assert record.cause == "ValueError: no 5" and "raise ValueError" in record.traceback
    assert waiting(log) == []


def test_a_dead_letter_has_the_record_unchanged_and_headers_after_its_own(log):
    own = [("eoslog.cause", b"mine"), ("x", None), ("x", b"\xff")]
    with log.producer() as producer:
        producer.produce("numbers", b"\xff\x00", None, headers=own, partition=0, timestamp=1234)
    app = Failing(log, {}, on_error="dead_letter")
    app.run()
    [stored] = log.read("shop.dead")
    assert (stored.key, stored.value) == (None, b"\xff\x00")
    assert stored.headers[:3] == own
    added = dict(stored.headers[3:])
    assert list(added) == [
        "eoslog.app", "eoslog.task", "eoslog.topic", "eoslog.partition", "eoslog.offset",
        "eoslog.timestamp", "eoslog.attempts", "eoslog.cause", "eoslog.traceback",
    ]  # fmt: skip
    assert (added["eoslog.offset"], added["eoslog.timestamp"]) == (b"10", b"1234")
    assert added["eoslog.cause"].startswith(b"SerializationError: numbers-0 at offset 10: json: ")


def test_a_tombstone_is_retried_as_a_tombstone(log):
    with log.producer() as producer:
        producer.produce("numbers", None, "key", partition=0)
    seen = []
    app = eoslog.App(log, "shop")

    @app.task("numbers", key="string", value="json", retries=(SHORT,))
    def work(record, ctx):
        if record.value is None:
            seen.append((record.key, record.offset, ctx.attempt))
            if ctx.attempt == 1:
                raise ValueError("again")

    app.run(until="caught_up")
    assert seen == [("key", 10, 1), ("key", 10, 2)]


def test_a_skipped_record_leaves_nothing(log):
    app = Failing(log, {5: 99}, on_error="skip")
    assert app.run().skipped == 1
    assert values(log) == [n for n in range(20) if n != 5]
    assert f"{app.app.id}.dead" not in log.topics()


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
def test_the_log_has_the_traceback_of_each_failed_attempt(log, on_error, caplog):
    Failing(log, {5: 99}, retries=(SHORT,), on_error=on_error).run()
    told = [record for record in caplog.records if "at offset 2" in record.getMessage()]
    assert len(told) == 2
    for record in told:
        [frame] = traceback.extract_tb(record.exc_info[2])
        assert (frame.name, frame.line) == ("work", 'raise ValueError(f"no {record.value}")')
    assert caplog.text.count("Traceback (most recent call last)") == 2


def test_a_task_of_any_kind_fails_with_the_frames_of_its_code_alone(log):
    log.create_topic("out")

    def fails(record):
        return record.value["price"]

    def function(record, ctx):
        return fails(record)

    def generator(record, ctx):
        yield fails(record)

    async def coroutine(record, ctx):
        return fails(record)

    async def asynchronous(record, ctx):
        yield fails(record)

    for handler in (function, generator, coroutine, asynchronous):
        app = eoslog.App(log, handler.__name__)
        app.task("numbers", value="json", to="out")(handler)
        with pytest.raises(TaskFailed, match="TypeError") as failed:
            app.run()
        frames = traceback.extract_tb(failed.value.__cause__.__traceback__)
        assert [frame.name for frame in frames] == [handler.__name__, "fails"]


def test_an_error_without_frames_of_the_task_keeps_those_of_eoslog(log):
    with log.producer() as producer:
        producer.produce("numbers", b"\xff", partition=0)
    with pytest.raises(TaskFailed, match="numbers-0 at offset 10 failed: Serial") as failed:
        Failing(log, {}).run()
    assert traceback.extract_tb(failed.value.__cause__.__traceback__)[-1].name == "decoded"


@pytest.mark.parametrize("point", ["app.processed", "txn.flushed", "txn.prepared"])
def test_a_report_counts_what_has_committed_after_an_unknown_commit(log, disarmed, point):
    app = Failing(log, {5: 99}, on_error="skip")
    files.arm_failpoint(point, "interrupt")
    with contextlib.suppress(KeyboardInterrupt):
        assert app.app.step() == 0
    report = app.run()
    assert (report.records, report.skipped, report.aborted) == (20, 1, point != "txn.prepared")
    assert values(log) == [n for n in range(20) if n != 5]


def test_stop_follows_the_last_retry(log):
    app = Failing(log, {5: 99}, retries=(SHORT,))
    with pytest.raises(TaskFailed, match="numbers-1 at offset 2 failed: ValueError: no 5"):
        app.run()
    assert [call for call in app.calls if call[0] == 5] == [(5, 1), (5, 2)]
    app.fails.clear()
    app.run()  # the record still waits
    assert values(log) == list(range(20))


def test_retry_without_delays_repeats_until_the_record_is_done(log, monkeypatch):
    monkeypatch.setattr("eoslog.app.error_policy._WITHOUT_RETRIES", (SHORT,))
    app = Failing(log, {5: 6}, on_error="retry")
    app.run()
    assert [attempt for value, attempt in app.calls if value == 5] == [1, 2, 3, 4, 5, 6, 7]
    assert values(log) == list(range(20))


def test_records_of_a_key_wait_in_order_and_other_keys_continue(log):
    log.create_topic("orders")
    with log.producer() as producer:
        for number in range(6):
            producer.produce("orders", str(number), "ab"[number % 2])
    done = []
    app = eoslog.App(log, "shop")

    @app.task("orders", key="string", value="json", on_error="retry", retries=(SHORT,))
    def work(record, ctx):
        if record.value == 0 and len(done) < 3:
            raise ValueError("later")
        done.append((record.key, record.value, ctx.attempt > 1))

    app.run(until="caught_up")
    assert done[:3] == [("b", 1, False), ("b", 3, False), ("b", 5, False)]
    assert done[3:] == [("a", 0, True), ("a", 2, False), ("a", 4, False)]


def test_records_without_a_key_do_not_wait_for_each_other(log):
    log.create_topic("orders")
    with log.producer() as producer:
        for number in range(3):
            producer.produce("orders", str(number))
    done = []
    app = eoslog.App(log, "shop")

    @app.task("orders", value="json", on_error="retry", retries=(SHORT,))
    def work(record, ctx):
        if record.value == 0 and len(done) < 2:
            raise ValueError("later")
        done.append(record.value)

    app.run(until="caught_up")
    assert done == [1, 2, 0]


def test_records_that_wait_are_found_by_the_next_run(log):
    app = Failing(log, {5: 1, 6: 1}, retries=(3600,))
    with app.app:
        while app.app.step():
            pass
    assert len(waiting(log)) == 2
    assert values(log) == [n for n in range(20) if n not in (5, 6)]
    later = Failing(log, {}, retries=(3600,))
    with later.app:
        later.app.step()
        assert len(waiting(log)) == 2  # not due


def test_a_retry_waits_while_the_run_is_idle(log):
    app = Failing(log, {19: 1}, retries=(0.7,))
    runs = threading.Thread(target=app.app.run)
    runs.start()
    until(lambda: values(log) == list(range(20)))
    app.app.stop()
    runs.join()
    assert [call for call in app.calls if call[0] == 19] == [(19, 1), (19, 2)]


def test_output_that_the_log_rejects_is_a_failure_of_the_record(log):
    app = eoslog.App(log, "shop")

    @app.task("numbers", value="json", on_error="dead_letter", retries=(SHORT,))
    def work(record, ctx):
        if record.value == 7:
            ctx.send("missing", 1)
        ctx.send("out", record.value)

    log.create_topic("out")
    report = app.run(until="caught_up")
    assert (report.retried, report.dead_letters) == (1, 1)
    assert values(log) == [n for n in range(20) if n != 7]
    [letter] = dead_letters(log, "shop")
    assert letter.record.cause.startswith("UnknownTopicOrPartition: ")


@pytest.mark.parametrize("before", [False, True], ids=["alone", "after valid output"])
@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
def test_every_record_whose_output_is_rejected_is_settled_in_one_pass(log, on_error, before):
    app, calls = eoslog.App(log, "shop", commit_interval=60), []
    table = app.table("rows", default=int)

    @app.task("in", key="string", tables=[table], on_error=on_error)
    def work(record, ctx):
        calls.append(record.offset)
        table[record.key] += 1
        if before:
            ctx.send("out", "valid")
        ctx.send("nowhere", record.value)

    log.create_topic("out")
    app.create_topics()
    with log.producer() as producer:
        for number in range(10):
            producer.produce("in", b"1", str(number))
    report = app.run(until="caught_up")
    assert report.skipped + report.dead_letters == 10
    assert calls == list(range(10))
    assert report.aborted == (10 if before else 0)
    assert list(log.read("out")) == []
    assert dict(log.table("rows")) == {}


class Unreadable(Exception):
    """An error without a text."""

    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
def test_errors_are_named_although_their_text_is_unreadable_or_long(log, on_error, caplog):
    app = eoslog.App(log, "shop")

    @app.task("numbers", value="json", on_error=on_error)
    def work(record, ctx):
        raise Unreadable if record.value % 2 else ValueError("x" * 100_000 + "\n")

    report = app.run(until="caught_up")
    assert report.skipped + report.dead_letters == 20
    about = [line for line in caplog.messages if "at offset" in line]
    assert len(about) == 20
    assert all("Unreadable: <its text" in line or "ValueError: xxx" in line for line in about)
    assert max(map(len, about)) < 2000


def test_the_error_of_a_run_is_raised_although_its_text_is_unreadable(log):
    app = eoslog.App(log, "shop")

    @app.task("numbers")
    def work(record, ctx):
        raise Unreadable

    with pytest.raises(TaskFailed, match="at offset 0 failed: .*Unreadable: <its text"):
        app.run(until="caught_up")


def test_a_record_of_the_largest_size_can_wait_and_die(log):
    log.create_topic("big", config={"max.message.bytes": 2_000_000})
    with log.producer(max_request_size=3_000_000) as producer:
        producer.produce("big", b"x" * 1_999_000, b"k")
    app = eoslog.App(log, "shop")

    @app.task("big", retries=(SHORT,), on_error="dead_letter")
    def work(record, ctx):
        raise ValueError("x" * 5000)

    assert app.run(until="caught_up").dead_letters == 1
    [letter] = dead_letters(log, "shop")
    assert len(letter.record.value) == 1_999_000


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
def test_other_guarantees_retry_and_bury_too(log, guarantee):
    app = eoslog.App(log, "shop", guarantee)

    @app.task("numbers", value="json", to="out", retries=(SHORT,), on_error="dead_letter")
    def work(record, ctx):
        if record.value == 3 or (record.value == 4 and ctx.attempt == 1):
            raise ValueError("no")
        return record.value

    app.create_topics()
    app.run(until="caught_up")
    assert values(log) == [n for n in range(20) if n != 3]
    assert [letter.record.offset for letter in dead_letters(log, "shop")] == [1]


def test_a_retry_comes_although_the_clock_was_set_back(log):
    shift = [7200.0]
    log._engine.use_clock(lambda: time.time() + shift[0])
    app = Failing(log, {5: 1, 6: 1}, retries=(SHORT,), on_error="dead_letter")
    with app.app as running:
        while not running._begun().waiting():
            running.step()
        shift[0] = 0.0
        assert running.run(until="caught_up").dead_letters == 0
    assert values(log) == list(range(20))


def test_a_retry_of_an_earlier_run_comes_although_the_clock_was_set_back(log):
    app = Failing(log, {5: 1, 6: 1}, retries=(3600.0,), on_error="dead_letter")
    with app.app as running:
        while running._begun().waiting() < 2:
            running.step()
    again = Failing(log, {}, retries=(SHORT,), on_error="dead_letter")
    again.run()
    assert values(log) == list(range(20))


def test_a_clock_of_a_test_moves_the_retries_of_an_app(eoslog_factory):
    log = eoslog_factory()
    log.create_topic("numbers")
    with log.producer() as producer:
        producer.produce("numbers", "5", "5")
    app = Failing(log, {5: 1}, retries=(60.0,))
    with app.app as running:
        while not running._begun().waiting():
            running.step()
        running.step()
        assert app.calls == [(5, 1)]
        eoslog_factory.clock.advance(60)
        running.step()
    assert app.calls == [(5, 1), (5, 2)]


def test_a_thread_that_sends_after_its_task_changes_nothing(log):
    raised = []
    app = eoslog.App(log, "shop")

    @app.task("numbers", value="json")
    def work(record, ctx):
        def late():
            ended.wait()
            try:
                ctx.send("out", "late")
            except Exception as error:
                raised.append(str(error))

        if record.value == 0:
            threads.append(threading.Thread(target=late))
            threads[0].start()
        elif threads:
            ended.set()  # the call has returned, and its transaction may still be open
            threads[0].join()

    threads, ended = [], threading.Event()
    log.create_topic("out")
    app.run(until="caught_up")
    assert "outside of its transaction" in raised[0] and "offset 0" in raised[0]
    assert values(log) == []


def test_a_batch_that_fails_is_tried_record_by_record(log):
    calls = []
    app = eoslog.App(log, "shop", commit_interval=60)

    @app.task("numbers", value="json", to="out", batch=10, on_error="dead_letter")
    def work(records, ctx):
        calls.append(len(records))
        if any(record.value == 5 for record in records):
            raise ValueError("no 5")
        for record in records:
            ctx.send("out", record.value)

    app.create_topics()
    report = app.run(until="caught_up")
    assert (report.dead_letters, report.skipped) == (1, 0)
    assert values(log) == [n for n in range(20) if n != 5]
    assert sorted(calls) == [1] * 10 + [10, 10]
    assert waiting(log) == []


def one_partition(log):
    log.create_topic("orders")
    with log.producer() as producer:
        for number in range(20):
            producer.produce("orders", str(number), str(number))


def test_changes_of_tables_follow_the_attempt_that_succeeds(log):
    one_partition(log)
    app = eoslog.App(log, "shop")
    totals = app.table("totals", default=int)

    @app.task("orders", key="string", value="json", tables=[totals], retries=(SHORT,))
    def work(record, ctx):
        totals["sum"] += record.value
        if record.value % 5 == 0 and ctx.attempt == 1:
            raise ValueError("later")

    app.create_topics()
    assert app.run(until="caught_up").retried == 4
    assert waiting(log) == []
    assert dict(log.table("totals")) == {"sum": sum(range(20))}


def test_records_wait_while_a_restored_table_is_needed_by_the_next_run(log):
    """The next run has no new input, so only the record that waits needs the table."""
    fails = True
    one_partition(log)
    app = eoslog.App(log, "shop")
    totals = app.table("totals", default=int)

    @app.task("orders", key="string", value="json", tables=[totals], retries=(3600.0,))
    def work(record, ctx):
        totals["count"] += 1
        if record.value == 5 and fails:
            raise ValueError("later")

    app.create_topics()
    with app:
        while app.step():
            pass
    fails = False
    log._engine.use_clock(lambda: 1e12)
    app.run(until="caught_up")
    assert dict(log.table("totals")) == {"count": 20}


def test_a_record_is_tried_again_only_by_a_member_that_the_commit_checks(log):
    """Without a position, no offset is committed and no membership is checked."""
    log.create_topic("one")
    with log.producer() as producer:
        producer.produce("one", b"1")
    calls = []
    app = eoslog.App(log, "shop")

    @app.task("one", retries=(0.0,))
    def work(record, ctx):
        calls.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("no")

    with app as running:
        while not running._begun().waiting():
            running.step()
    with log.producer(transactional_id="suspended") as other:
        other.init_transactions()
        other.begin_transaction()
        offset = {eoslog.TopicPartition("one", 0): 1}
        other.send_offsets_to_transaction(offset, eoslog.GroupMetadata("shop"))
        with app as running:
            for _ in range(3):
                running.step()
            assert calls == [1]
            other.abort_transaction()
            while running._begun().waiting():
                running.step()
    assert calls == [1, 2]


def test_a_record_waits_for_an_earlier_one_of_its_key_after_a_compaction(log):
    """Compaction keeps its last attempt only, which comes after the other records."""
    log.create_topic("keyed")
    with log.producer() as producer:
        for value in (b"first", b"second", b"third"):
            producer.produce("keyed", value, "k")
    calls, failing = [], {b"first"}

    def run(until):
        app = eoslog.App(log, "shop", max_records=3)

        @app.task("keyed", on_error="retry", retries=(0.0,))
        def work(record, ctx):
            calls.append(record.value)
            if record.value in failing:
                raise ValueError("no")

        with app:
            while len(calls) < until:
                app.step()

    run(4)
    assert set(calls) == {b"first"}
    log.clean("shop.retries", roll=True)
    assert [record.offset for record in log.read("shop.retries")][0] > 0
    calls.clear()
    failing.clear()
    run(3)
    assert calls == [b"first", b"second", b"third"]


@pytest.mark.parametrize("kind", ["coroutine", "function"])
def test_a_task_whose_call_was_cancelled_has_failed(log, kind):
    """CancelledError is not an Exception, but it says nothing about the run."""
    app = eoslog.App(log, "shop")
    awaited = []

    async def work(record, ctx):
        if record.value == 4:
            awaited.append(ctx.attempt)
            one = asyncio.get_running_loop().create_future()
            one.cancel()
            await one

    def wait(record, ctx):
        asyncio.run(work(record, ctx))

    task = app.task("numbers", value="json", retries=(SHORT,), on_error="dead_letter")
    task(work if kind == "coroutine" else wait)
    assert app.run(until="caught_up").dead_letters == 1
    assert awaited == [1, 2]
    [dead] = dead_letters(log, "shop")
    assert "CancelledError" in dead.record.cause


def test_a_task_that_a_person_interrupts_is_not_counted_as_an_exit(log):
    """In a notebook, the process continues."""
    calls = []
    for _ in range(4):
        app = eoslog.App(log, "shop", commit_interval=60)

        @app.task("numbers", value="json")
        def work(record, ctx):
            if record.value == 4 and calls.count(4) < 3:
                calls.append(4)
                raise KeyboardInterrupt
            calls.append((record.value, ctx.attempt))

        with app, contextlib.suppress(KeyboardInterrupt):
            app.step()
    assert calls.count(4) == 3
    assert (4, 1) in calls
    assert "shop.dead" not in log.topics()
