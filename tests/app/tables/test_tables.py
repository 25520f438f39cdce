"""Tables in tasks: what they hold, what commits, what is rolled back."""

from __future__ import annotations

import pytest

import eoslog
from eoslog.errors import ConfigError, IllegalState, SerializationError, TaskFailed

STORES = ("memory", "sqlite")


@pytest.fixture
def words(path):
    """A log with 60 words in two partitions, by their hash."""
    with eoslog.open(path, durability="os") as log:
        log.create_topic("words", partitions=2)
        with log.producer() as producer:
            for number in range(60):
                producer.produce("words", str(number), f"w{number % 7}")
        yield log


def counter(log, store="memory", **options):
    app = eoslog.App(log, "counter", **options)
    counts = app.table("counts", default=int, store=store)

    @app.task("words", key="string", tables=[counts])
    def count(record, ctx):
        counts[record.key] += 1

    return app


def expected(records=60):
    counts = {}
    for number in range(records):
        word = f"w{number % 7}"
        counts[word] = counts.get(word, 0) + 1
    return counts


def in_task(log, body, **table):
    """Run `body(table)` in a task of one record."""
    log.create_topic("one", exist_ok=True)
    with log.producer() as producer:
        producer.produce("one", "1", "1")
    app = eoslog.App(log, "one")
    rows = app.table("rows", **table)

    @app.task("one", tables=[rows])
    def work(record, ctx):
        body(rows)

    app.create_topics()
    app.run(until="caught_up")
    return log.table("rows", **{k: v for k, v in table.items() if k in ("key", "value")})


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once", "at_most_once"])
def test_a_table_has_the_state_of_all_records(words, store, guarantee):
    app = counter(words, store, processing_guarantee=guarantee, max_records=7)
    assert app.create_topics() == ["counts"]
    app.run(until="caught_up")
    assert dict(words.table("counts")) == expected()


@pytest.mark.parametrize("store", STORES)
def test_a_table_continues_in_the_next_run(words, store):
    app = counter(words, store, max_records=9)
    app.create_topics()
    with app:
        app.step()
        app.step()
    counter(words, store).run(until="caught_up")
    assert dict(words.table("counts")) == expected()


@pytest.mark.parametrize("store", STORES)
def test_the_changes_of_a_task_that_raises_are_dropped(words, store):
    app = eoslog.App(words, "counter", max_records=10)
    counts = app.table("counts", default=int, store=store)
    fails = [True]

    @app.task("words", key="string", tables=[counts])
    def count(record, ctx):
        counts[record.key] += 1
        if record.offset == 15 and fails:
            fails.pop()
            raise ZeroDivisionError

    app.create_topics()
    with app:
        with pytest.raises(TaskFailed):
            while True:
                app.step()
        while app.step():
            pass
    assert dict(words.table("counts")) == expected()


@pytest.mark.parametrize("store", STORES)
def test_changes_of_a_skipped_record_are_not_in_its_transaction(words, store):
    app = eoslog.App(words, "counter")
    counts = app.table("counts", default=int, store=store)

    @app.task("words", key="string", value="json", tables=[counts], on_error="skip")
    def count(record, ctx):
        counts[record.key] += 1
        if record.value == 15:
            raise ZeroDivisionError

    app.create_topics()
    assert app.run(until="caught_up").skipped == 1
    assert dict(words.table("counts")) == expected() | {"w1": expected()["w1"] - 1}


@pytest.mark.parametrize("store", STORES)
def test_changes_before_output_that_the_log_rejects_are_rolled_back(words, store):
    """After valid output, the records before it are read again by the same worker."""
    words.create_topic("out")
    app = eoslog.App(words, "counter", commit_interval=60)
    counts = app.table("counts", default=int, store=store)

    @app.task("words", key="string", value="json", tables=[counts], on_error="skip")
    def count(record, ctx):
        counts[record.key] += 1
        if record.value == 40:
            ctx.send("out", 1)
        if record.value in (15, 40):
            ctx.send("missing", 1)

    app.create_topics()
    report = app.run(until="caught_up")
    assert (report.records, report.skipped, report.aborted) == (60, 2, 1)
    assert list(words.read("out")) == []
    left = {word: count - (word in ("w1", "w5")) for word, count in expected().items()}
    assert dict(words.table("counts")) == left


@pytest.mark.parametrize("store", STORES)
def test_a_table_is_a_mapping_with_values_of_its_own(path, store):
    def first(rows):
        rows["a"] = [1]
        rows["a"].append(2)
        assert rows["a"] == [1]
        kept = rows["a"]
        kept.append(3)
        assert rows.get("a") == [1]
        assert "b" not in rows and rows.get("b") is None and rows.get("b", 7) == 7
        with pytest.raises(KeyError):
            rows["b"]
        with pytest.raises(KeyError):
            del rows["b"]
        assert rows.setdefault("b", {"x": 1}) == {"x": 1}
        assert sorted(rows) == ["a", "b"] and len(rows) == 2
        assert rows.pop("a") == [1] and rows.pop("a", None) is None
        assert list(rows) == ["b"] and len(rows) == 1
        rows.update(c=1, d=2)

    def second(rows):
        assert sorted(rows) == ["b", "c", "d"]
        del rows["c"]
        rows["b"] = 5
        assert len(rows) == 2
        assert dict(rows.items()) == {"b": 5, "d": 2}

    def third(rows):
        assert sorted(rows.items()) == [("b", 5), ("d", 2)]
        rows.clear()
        assert not rows

    with eoslog.open(path, durability="os") as log:
        assert dict(in_task(log, first, store=store)) == {"b": {"x": 1}, "c": 1, "d": 2}
        assert dict(in_task(log, second, store=store)) == {"b": 5, "d": 2}
        assert dict(in_task(log, third, store=store)) == {}


def test_a_default_is_returned_and_not_stored(path):
    def body(rows):
        assert rows["x"] == []
        rows["x"].append(1)
        assert "x" not in rows
        assert rows.get("x") is None

    with eoslog.open(path, durability="os") as log:
        assert dict(in_task(log, body, default=list)) == {}


def test_a_table_has_keys_and_values_of_its_formats(path):
    def body(rows):
        rows[7] = 1.5
        assert rows[7] == 1.5
        assert list(rows) == [7]
        with pytest.raises(SerializationError, match="table 'rows': key"):
            rows["seven"] = 1.0
        with pytest.raises(SerializationError, match="None is not a value"):
            rows[8] = None

    with eoslog.open(path, durability="os") as log:
        assert dict(in_task(log, body, key="long", value="double")) == {7: 1.5}


def test_a_key_of_another_partition_is_rejected(words):
    app = eoslog.App(words, "counter")
    counts = app.table("counts", default=int)

    @app.task("words", key="string", tables=[counts])
    def count(record, ctx):
        counts["w0"] += 1

    app.create_topics()
    with pytest.raises(TaskFailed, match="'w0' belongs to partition") as failed:
        app.run(until="caught_up")
    assert isinstance(failed.value.__cause__, IllegalState)
    assert dict(words.table("counts")) == {}


def test_a_table_is_used_in_tasks_that_name_it_only(words):
    app = eoslog.App(words, "counter")
    counts = app.table("counts")

    @app.task("words")
    def count(record, ctx):
        counts["a"] = 1

    with pytest.raises(TaskFailed, match=r"in tables=\[...\]"):
        app.run(until="caught_up")
    with pytest.raises(IllegalState, match=r"log.table\('counts'\)"):
        counts["a"]


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_a_value_that_is_too_large_for_the_topic_fails_its_record(words, on_error):
    app = eoslog.App(words, "large")
    table = app.table("large", value="string")

    @app.task("words", key="string", tables=[table], on_error=on_error)
    def work(record, ctx):
        table[record.key] = "x" * (2_000_000 if record.key == "w1" else 1_048_000)

    app.create_topics()
    if on_error == "stop":
        with pytest.raises(TaskFailed, match=r"words-. at offset .*'w1'.* max.message.bytes = 10"):
            app.run(until="caught_up")
    else:
        assert app.run(until="caught_up").skipped
        assert set(words.table("large", value="string")) == {"w0", "w2", "w3", "w4", "w5", "w6"}


def test_topics_of_tables_are_checked(words):
    app = counter(words)
    words.create_topic("counts", partitions=3, config={"cleanup.policy": "compact"})
    for call in (app.run, app.create_topics):
        with pytest.raises(
            ConfigError,
            match=r"'words' has 2 partitions, and table 'counts' has 3.*log.delete_topic\('counts'\)",
        ):
            call()
    words.delete_topic("counts")
    words.create_topic("counts", partitions=2)
    with pytest.raises(ConfigError, match=r"not compacted.*log.alter_topic\('counts'"):
        app.run()
    words.alter_topic("counts", {"cleanup.policy": "compact"})
    app.run(until="caught_up")
    assert dict(words.table("counts")) == expected()


def test_a_table_with_rows_is_not_to_be_deleted_when_its_input_grows(words):
    app = counter(words)
    app.create_topics()
    app.run(until="caught_up")
    words.create_partitions("words", 3)
    for call in (app.run, app.create_topics):
        with pytest.raises(
            ConfigError, match="'words' has 3 .* 'counts' has 2.* another id"
        ) as error:
            call()
        assert "delete_topic" not in str(error.value)


def test_topics_that_share_a_table_must_have_as_many_partitions(words):
    words.create_topic("more", partitions=3)
    app = eoslog.App(words, "both")
    counts = app.table("counts")

    @app.task("words", tables=[counts])
    def count(record, ctx): ...

    @app.task("more", tables=[counts])
    def count_more(record, ctx): ...

    with pytest.raises(ConfigError, match="'more' has 3 partitions, and topic 'words' has 2"):
        app.create_topics()
    assert "counts" not in words.topics()
    words.create_topic("counts", partitions=2, config={"cleanup.policy": "compact"})
    with pytest.raises(ConfigError, match="'more' has 3 partitions, and topic 'words' has 2"):
        app.run()


def test_invalid_tables_are_rejected(words):
    app = eoslog.App(words, "tables")
    with pytest.raises(ConfigError, match="store: expected memory or sqlite"):
        app.table("a", store="disk")
    with pytest.raises(ConfigError, match="default: expected a function"):
        app.table("a", default=0)
    with pytest.raises(ConfigError, match="key: a table needs the name of a format"):
        app.table("a", key=lambda data: data)
    table = app.table("a")
    with pytest.raises(ConfigError, match="'a' is a table already"):
        app.table("a")
    with pytest.raises(ConfigError, match="is not a table of this application"):

        @eoslog.App(words, "other").task("words", tables=[table])
        def work(record, ctx): ...


def test_two_tasks_share_a_table_by_partition(words):
    words.create_topic("more", partitions=2)
    with words.producer() as producer:
        for number in range(60):
            producer.produce("more", str(number), f"w{number % 7}")
    apps = []
    for _ in range(2):
        app = counter(words, max_records=5)

        def more(record, ctx, counts=app._tables["counts"]):
            counts[record.key] += 10

        app.task("more", key="string", tables=list(app._tables.values()))(more)
        apps.append(app)
    apps[0].create_topics()
    apps[0].step()
    while len(lag := words.lag("counter")) < 4 or any(lag.values()):
        for app in apps:
            app.step()
    for app in apps:
        app.stop()
    assert dict(words.table("counts")) == {key: 11 * n for key, n in expected().items()}


def test_partitions_wait_until_a_worker_has_those_that_share_their_table(words):
    words.create_topic("more", partitions=2)
    app = counter(words)
    app.task("more", tables=list(app._tables.values()))(lambda record, ctx: None)
    app.create_topics()
    with app:
        app.step()
        worker, consumer = app._worker, app._worker._clients.consumer
        owned = set(consumer.assignment())
        assert len(owned) == 4 and consumer.paused() == []
        worker._pause(owned - {eoslog.TopicPartition("more", 1)})
        assert consumer.paused() == [eoslog.TopicPartition("words", 1)]
        worker._pause(owned)
        assert consumer.paused() == []


def test_an_aborted_transaction_of_many_calls_leaves_no_change(words):
    app = eoslog.App(words, "counter")
    counts = app.table("counts", default=int)
    aborts = [True, True]

    @app.task("words", key="string", tables=[counts], to="out")
    def count(record, ctx):
        counts[record.key] += 1
        if record.offset > 10 and aborts:
            aborts.pop()
            words.abort_transaction("counter-0")

    app.create_topics()
    app.run(until="caught_up")
    assert not aborts
    assert dict(words.table("counts")) == expected()
