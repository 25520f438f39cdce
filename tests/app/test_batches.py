"""Tasks that get batches of records, and `Log.process`."""

from __future__ import annotations

import time

import pytest

import eoslog
from eoslog.errors import TaskFailed


def test_a_batch_has_records_of_one_partition(log):
    app = eoslog.App(log, "batches", commit_interval=60)
    sizes = []

    @app.task("numbers", value="json", batch=4)
    def work(records, ctx):
        assert {record.partition for record in records} == {ctx.record.partition}
        assert ctx.record is records[0] or ctx.record.offset == records[0].offset
        offsets = [record.offset for record in records]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
        sizes.append(len(records))
        for record in records:
            ctx.send("out", record.value)

    log.create_topic("out")
    assert app.run(until="caught_up").records == 20
    assert sorted(sizes) == [2, 2, 4, 4, 4, 4]
    assert sorted(int(record.value) for record in log.read("out")) == list(range(20))


def test_an_arrow_batch_has_the_columns_of_its_records(log):
    pa = pytest.importorskip("pyarrow")
    seen = []

    def work(batch, ctx):
        assert isinstance(batch, pa.RecordBatch)
        assert batch.schema.names == ["topic", "partition", "offset", "timestamp", "key", "value"]
        assert batch["value"].type == pa.int64()
        seen.extend(batch["value"].to_pylist())

    report = log.process(
        "numbers", work, group_id="g", value="json", batch=100, batch_format="arrow",
        until="caught_up",
    )  # fmt: skip
    assert report.records == 20
    assert sorted(seen) == list(range(20))


def test_a_batch_that_fails_is_named_with_its_size(log):
    def work(records, ctx):
        raise ZeroDivisionError

    with pytest.raises(TaskFailed, match=r"numbers-\d at offset 0 in a batch of 10 records"):
        log.process("numbers", work, group_id="g", batch=10, commit_interval=60)


def test_a_batch_of_a_table_is_of_its_partition(log):
    app = eoslog.App(log, "batches", max_records=7)
    sums = app.table("sums", key="long", default=int)
    log.create_topic("keyed", partitions=3)
    with log.producer(key="long") as producer:
        for number in range(100):
            producer.produce("keyed", str(number), number % 10)

    @app.task("keyed", key="long", value="json", batch=3, tables=[sums])
    def work(records, ctx):
        for record in records:
            sums[record.key] += record.value

    app.create_topics()
    app.run(until="caught_up")
    expected = {key: sum(range(key, 100, 10)) for key in range(10)}
    assert dict(log.table("sums", key="long")) == expected


def test_process_takes_the_options_of_an_application_and_of_a_task(log):
    def double(record, ctx):
        return 2 * record.value

    log.create_topic("doubled")
    options = {"value": "json", "to": "doubled", "processing_guarantee": "at_least_once"}
    report = log.process("numbers", double, group_id="g", until="caught_up", **options)
    assert report.records == 20
    assert sorted(int(record.value) for record in log.read("doubled")) == list(range(0, 40, 2))
    with pytest.raises(TypeError, match="did you mean 'value'"):
        log.process("numbers", double, group_id="g", vale="json")


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once", "at_most_once"])
def test_a_batch_that_is_put_back_repeats_no_record_that_waits(path, guarantee):
    """A batch is read again with all its records, so none of them waits before."""
    calls = []

    def work(records, ctx):
        values = [record.value for record in records]
        calls.append(values)
        if values == ["slow"]:
            time.sleep(0.02)
        if ctx.attempt == 1 and "first" in values:
            raise ValueError("no")
        return ",".join(values)

    def app(log):
        made = eoslog.App(log, "shop", guarantee, commit_interval=0.01)
        made.task("in", key="string", value="string", to="out", batch=3, retries=(3600.0,))(work)
        return made

    with eoslog.open(path, durability="os") as log:
        log.create_topic("in", partitions=2)
        log.create_topic("out")
        with log.producer() as producer, app(log) as running:
            producer.produce("in", "first", "key", partition=1)
            producer.flush()
            while not calls:
                running.step()
            producer.produce("in", "slow", "other", partition=0)
            producer.produce("in", "other", "other", partition=1)
            producer.produce("in", "second", "key", partition=1)
            producer.flush()
            while ["slow"] not in calls:
                running.step()
        log._engine.use_clock(lambda: 1e12)
        app(log).run(until="caught_up")
        found = [value for record in log.read("out") for value in record.value.split(b",")]
        assert sorted(found) == [b"first", b"other", b"second", b"slow"]
