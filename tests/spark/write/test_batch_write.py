"""A Spark job's writes become visible completely and once, or not at all."""

import threading

import pytest

pytest.importorskip("pyspark")
import pyarrow as pa
from pyspark.sql.types import StructType
from pyspark_eoslog.options.options import Options
from pyspark_eoslog.write.batch import EoslogWriter

from eoslog import TopicPartition, _core
from tests.rows.tools import settled
from tests.spark.helpers import message_of, read, staged, values, write

IN_FILES = {"inlineLimitBytes": "0"}


def numbers(spark, count, tasks=3):
    return spark.range(count, numPartitions=tasks).selectExpr(
        "cast(id % 17 as string) as key", "concat('v', id) as value"
    )


def expected(count):
    return sorted(b"v%d" % n for n in range(count))


@pytest.mark.parametrize("options", [{}, IN_FILES, {"compression": "zstd"}])
def test_written_rows_are_read_back_without_registration(spark, log, options):
    log.create_topic("t", 3)
    write(numbers(spark, 2000), log, "t", **options)
    assert sorted(values(log, "t")) == expected(2000)
    back = read(spark, log, "t").collect()
    assert sorted(bytes(row.value) for row in back) == expected(2000)
    for row in back:
        assert row.partition == _core.partition_for_key(bytes(row.key), 3)
    assert staged(log) == []


def test_columns_select_topic_partition_timestamp_and_headers(spark, log):
    log.create_topic("a", 2)
    log.create_topic("b", 4)
    frame = spark.sql(
        "SELECT * FROM VALUES "
        "('a', 1, 'x', timestamp_millis(1234)), ('b', 3, 'y', timestamp_millis(5)) "
        "AS (topic, partition, value, timestamp)"
    ).selectExpr("*", "array(named_struct('key', 'h', 'value', cast('w' as binary))) as headers")
    frame.write.format("eoslog").option("path", log.path).mode("append").save()
    rows = read(spark, log, "a,b", includeHeaders="true").orderBy("topic").collect()
    assert [(row.topic, row.partition, bytes(row.value)) for row in rows] == [
        ("a", 1, b"x"),
        ("b", 3, b"y"),
    ]
    assert [row.timestamp.microsecond for row in rows] == [234_000, 5_000]
    assert [[(one.key, bytes(one.value)) for one in row.headers] for row in rows] == [
        [("h", b"w")]
    ] * 2


def fail_first_attempt(batches):
    from pyspark import TaskContext

    yield from batches
    if TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("the first attempt of every task fails after its last row")


def fail_always(batches):
    from pyspark import TaskContext

    yield from batches
    if TaskContext.get().partitionId() == 1:
        raise RuntimeError("one task fails for good")


@pytest.mark.parametrize("options", [{}, IN_FILES])
def test_a_retried_task_leaves_no_duplicate(spark, log, options):
    log.create_topic("t", 2)
    frame = numbers(spark, 3000).mapInArrow(fail_first_attempt, "key string, value string")
    write(frame, log, "t", **options)
    assert sorted(values(log, "t")) == expected(3000)
    assert sorted(values(log, "t", isolation="read_uncommitted")) == expected(3000), (
        "not even aborted ones"
    )
    assert staged(log) == []


def test_tasks_together_send_few_bytes_to_the_driver(spark, log):
    log.create_topic("t", 2)
    schema = StructType().add("value", "string")
    options = Options.parse({"path": log.path, "topic": "t"})
    writer = EoslogWriter(options, schema, overwrite=False)
    tasks, row = 32, "v" * 900_000

    def write_one(_):
        return [writer.write(iter([pa.RecordBatch.from_pydict({"value": [row]})]))]

    messages = spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(write_one)
    sent = messages.collect()
    assert sum(len(one.attempt.data or b"") for one in sent) < 20 << 20
    writer.commit(sent)
    assert sum(batch.num_rows for batch in log.scan("t", columns=["offset"])) == tasks
    assert staged(log) == []


@pytest.mark.parametrize("options", [{}, IN_FILES])
def test_a_failed_job_leaves_nothing(spark, log, options):
    log.create_topic("t", 2)
    frame = numbers(spark, 3000).mapInArrow(fail_always, "key string, value string")
    with pytest.raises(Exception, match="one task fails for good"):
        write(frame, log, "t", **options)
    assert values(log, "t", isolation="read_uncommitted") == []
    assert staged(log) == []
    write(numbers(spark, 10), log, "t")
    assert sorted(values(log, "t")) == expected(10)


def test_all_partitions_of_all_topics_become_visible_together(spark, log):
    log.create_topic("a", 3)
    log.create_topic("b", 2)
    frame = spark.range(900, numPartitions=3).selectExpr(
        "if(id % 3 = 0, 'b', 'a') as topic",
        "cast(id as string) as key",
        "cast(id as string) as value",
    )
    seen, stop = set(), threading.Event()

    def watch():
        while not stop.wait(0.01):
            cut = log.snapshot(["a", "b"])
            counts = []
            for topic in ("a", "b"):
                ends = {key: end for key, end in cut.items() if key.topic == topic}
                scan = log.scan(topic, end=ends, columns=["offset"])
                counts.append(sum(batch.num_rows for batch in scan))
            seen.add(tuple(counts))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(3):
            frame.write.format("eoslog").options(path=log.path, **IN_FILES).mode("append").save()
    finally:
        stop.set()
        watcher.join()
    assert seen <= {(600 * n, 300 * n) for n in range(4)} and len(seen) > 1
    assert len(values(log, "a")) == 1800 and len(values(log, "b")) == 900


def test_a_write_version_is_published_once(spark, log):
    log.create_topic("t", 2)
    log.create_topic("u")

    def run(topic, app, version):
        write(numbers(spark, 10), log, topic, txnAppId=app, txnVersion=str(version), **IN_FILES)

    run("t", "daily", 3)
    run("t", "daily", 3)
    assert len(values(log, "t")) == 10, "a replay is skipped"
    run("t", "daily", 2)
    assert len(values(log, "t")) == 10, "an older version was replaced by a newer one"
    run("u", "daily", 3)
    assert len(values(log, "u")) == 10, "another topic has versions of its own"
    run("t", "daily", 4)
    run("t", "hourly", 0)
    assert len(values(log, "t")) == 30
    assert staged(log) == []


def test_an_empty_job_records_its_version(spark, log):
    log.create_topic("t")
    write(numbers(spark, 0), log, "t", txnAppId="x", txnVersion="1")
    write(numbers(spark, 5), log, "t", txnAppId="x", txnVersion="1")
    assert values(log, "t") == []
    write(numbers(spark, 0), log, "t")


def test_a_job_that_only_stages_does_not_block_readers(spark, log):
    log.create_topic("t")
    write(numbers(spark, 5), log, "t")
    settled(log)  # its marker is flushed later
    before = log.offsets("t", 0)

    def look(batches):
        import eoslog

        yield from batches
        with eoslog.open(path, create=False, read_only=True) as other:
            ends = other.offsets("t", 0)
            assert (ends.log_end, ends.last_stable) == (before.log_end, before.log_end), ends

    path = log.path
    write(numbers(spark, 50).mapInArrow(look, "key string, value string"), log, "t", **IN_FILES)
    assert len(values(log, "t")) == 55


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("id", {"topic": "t"}, ["no column 'value'", "id"]),
        ("id as value", {"topic": "t"}, ["'value'", "bigint", "binary or string"]),
        ("'x' as value", {}, ["'topic'"]),
        ("'x' as value", {"topic": "nowhere"}, ["nowhere"]),
        ("'x' as value", {"topic": "t", "txnVersion": "1"}, ["'txnAppId'", "'txnVersion'"]),
        (
            "'x' as value",
            {"topic": "t", "txnAppID": "a", "txnVersions": "1"},
            ["txnversions", "txnVersion"],
        ),
        ("'x' as value, 9 as partition", {"topic": "t"}, ["'partition' is 9", "0 to 1"]),
        ("'x' as value, cast(null as string) as topic", {}, ["'topic' is null"]),
        ("repeat('x',2000000) as value", {"topic": "t"}, ["max.message.bytes = 1048588"]),
    ],
)
def test_an_impossible_write_is_rejected_and_writes_nothing(spark, log, columns, options, words):
    log.create_topic("t", 2)
    with pytest.raises(Exception) as caught:
        frame = spark.range(1).selectExpr(*columns.split(", "))
        frame.write.format("eoslog").options(path=log.path, **options).mode("append").save()
    for word in words:
        assert word in message_of(caught)
    assert values(log, "t", isolation="read_uncommitted") == [] and staged(log) == []


def test_overwrite_mode_is_rejected(spark, log):
    log.create_topic("t")
    with pytest.raises(Exception, match="only appended to"):
        numbers(spark, 1).write.format("eoslog").options(path=log.path, topic="t").mode(
            "overwrite"
        ).save()
    assert log.offsets("t", 0).log_end == 0
    assert TopicPartition("t", 0) in log.snapshot(["t"])
