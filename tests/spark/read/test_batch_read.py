"""Batch reads of topics with Spark: columns, ranges, visible transactions."""

import datetime

import pytest

pytest.importorskip("pyspark")

from tests.spark.helpers import message_of, produce, read, reader, write

DAY = 86_400_000


def rows(frame, *names):
    return sorted(tuple(row) for row in frame.select(*names).collect())


def test_columns_and_types_equal_those_of_the_kafka_source(spark, log):
    log.create_topic("t", 2)
    with log.producer() as producer:
        producer.produce(
            "t", b"v", b"k", partition=1, timestamp=1500, headers=[("h", b"1"), ("h", None)]
        )
        producer.produce("t", None, None, partition=0, timestamp=DAY)
    frame = read(spark, log, "t", includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert read(spark, log, "t").columns == frame.columns[:-1]
    first, second = sorted(frame.collect(), key=lambda row: -row.partition)
    assert (bytes(first.key), bytes(first.value), first.topic) == (b"k", b"v", "t")
    assert (first.partition, first.offset, first.timestampType) == (1, 0, 0)
    assert first.timestamp.astimezone(datetime.UTC).replace(tzinfo=None) == datetime.datetime(
        1970, 1, 1, 0, 0, 1, 500_000
    )
    assert [(one.key, one.value and bytes(one.value)) for one in first.headers] == [
        ("h", b"1"),
        ("h", None),
    ]
    assert (second.key, second.value, second.partition) == (None, None, 0)
    assert not second.headers


def test_a_partition_is_a_task_unless_options_split_it(spark, log):
    log.create_topic("t", 3)
    produce(log, "t", [(b"%d" % n, None, n % 2, None) for n in range(200)])
    whole = read(spark, log, "t", minBytesPerPartition="0")
    assert whole.rdd.getNumPartitions() == 2, "the empty partition needs no task"
    packed = read(spark, log, "t")
    assert packed.rdd.getNumPartitions() == 1, "small partitions share a task"
    split = read(spark, log, "t", minPartitions="6")
    assert split.rdd.getNumPartitions() == 6
    capped = read(spark, log, "t", maxRecordsPerPartition="30")
    assert capped.rdd.getNumPartitions() == 8
    expected = rows(whole, "partition", "offset", "value")
    assert len(expected) == 200
    assert rows(packed, "partition", "offset", "value") == expected
    assert rows(split, "partition", "offset", "value") == expected
    assert rows(capped, "partition", "offset", "value") == expected


def test_columns_and_the_user_schema_select_what_is_read(spark, log):
    log.create_topic("t")
    produce(log, "t", [("é", b"k", 0, None)])
    assert read(spark, log, "t", columns="offset,value").columns == ["offset", "value"]
    assert rows(read(spark, log, "t", valueFormat="string"), "value") == [("é",)]
    projected = reader(spark, log, subscribe="t").schema("value string, offset long").load()
    assert rows(projected, "value", "offset") == [("é", 0)]
    with pytest.raises(
        Exception, match="column 'value' cannot be read as int; use binary or string"
    ):
        reader(spark, log, subscribe="t").schema("value int").load().count()
    with pytest.raises(Exception, match="column 'worth' cannot be read: the columns are key"):
        reader(spark, log, subscribe="t").schema("worth string").load().count()


@pytest.mark.parametrize("column", ["key", "value"])
def test_a_schema_with_a_non_nullable_key_or_value_is_rejected(spark, log, column):
    """Spark relies on the schema.

    A tombstone ended the read by a NullPointerException.
    """
    log.create_topic("t", 1)
    produce(log, "t", [(b"a", b"k", 0, None), (None, b"k", 0, None), (b"b", None, 0, None)])
    given = reader(spark, log, subscribe="t").schema(f"{column} binary NOT NULL")
    with pytest.raises(Exception, match=f"column '{column}' cannot be NOT NULL"):
        given.load().collect()
    whole = "offset bigint NOT NULL, topic string NOT NULL, value string"
    assert (
        reader(spark, log, subscribe="t").schema(whole).load().where("value IS NULL").count() == 1
    )


def test_topics_are_selected_by_name_pattern_or_assignment(spark, log):
    for name in ("orders-eu", "orders-us", "refunds"):
        log.create_topic(name, 2)
        produce(log, name, [(name.encode(), None, n, None) for n in (0, 1)])
    assert read(spark, log, "orders-eu, refunds").count() == 4
    by_pattern = reader(spark, log, subscribePattern="orders-.*").load()
    assert rows(by_pattern.distinct(), "topic", "partition") == [
        ("orders-eu", 0),
        ("orders-eu", 1),
        ("orders-us", 0),
        ("orders-us", 1),
    ]
    assigned = reader(spark, log, assign='{"refunds": [1], "orders-us": [0]}').load()
    assert rows(assigned, "topic", "partition") == [("orders-us", 0), ("refunds", 1)]
    assert reader(spark, log, subscribePattern="nothing").load().count() == 0


def test_offsets_select_the_range(spark, log):
    log.create_topic("t", 2)
    with log.producer() as producer:
        for n in range(20):
            producer.produce("t", b"%d" % n, partition=n % 2)
    frame = read(
        spark,
        log,
        "t",
        startingOffsets='{"t": {"0": 3, "1": -2}}',
        endingOffsets='{"t": {"0": 5, "1": -1}}',
    )
    assert rows(frame, "partition", "offset") == [(0, 3), (0, 4)] + [(1, n) for n in range(10)]
    assert read(spark, log, "t", startingOffsets="earliest", endingOffsets="latest").count() == 20


def test_timestamps_select_the_range(spark, log):
    log.create_topic("t", 2)
    with log.producer() as producer:
        for day in range(10):
            for partition in (0, 1):
                producer.produce("t", b"%d" % day, partition=partition, timestamp=day * DAY)
    frame = read(spark, log, "t", startingTimestamp=3 * DAY, endingTimestamp=5 * DAY)
    assert rows(frame, "partition", "value") == [(p, b"%d" % d) for p in (0, 1) for d in (3, 4)]
    frame = read(
        spark,
        log,
        "t",
        startingOffsetsByTimestamp=f'{{"t": {{"0": {8 * DAY - 1}, "1": {9 * DAY}}}}}',
    )
    assert rows(frame, "partition", "value") == [(0, b"8"), (0, b"9"), (1, b"9")]
    with pytest.raises(Exception, match="no record at or after") as caught:
        read(spark, log, "t", startingTimestamp=99 * DAY).count()
    assert "'startingTimestamp'" in message_of(caught)
    late = read(
        spark, log, "t", startingTimestamp=99 * DAY, startingOffsetsByTimestampStrategy="latest"
    )
    assert late.count() == 0
    frame = read(
        spark,
        log,
        "t",
        endingOffsetsByTimestamp=f'{{"t": {{"0": {DAY}, "1": {99 * DAY}}}}}',
        keyFormat="string",
    )
    assert rows(frame, "partition", "value") == [(0, b"0"), *((1, b"%d" % d) for d in range(10))]
    assert frame.schema["key"].dataType.simpleString() == "string"
    assert read(spark, log, "t", endingTimestamp=99 * DAY).count() == 20


def test_aborted_records_are_not_read_by_default(spark, log):
    log.create_topic("t")
    produce(log, "t", [(b"kept", None, 0, None)] * 3)
    produce(log, "t", [(b"aborted", None, 0, None)] * 5, abort=True)
    produce(log, "t", [(b"kept", None, 0, None)] * 2)
    assert rows(read(spark, log, "t"), "value") == [(b"kept",)] * 5
    assert read(spark, log, "t", isolationLevel="read_uncommitted").count() == 10
    pieces = read(spark, log, "t", maxRecordsPerPartition="1")
    assert rows(pieces, "value") == [(b"kept",)] * 5, "no piece may lose sight of the abort"


def test_a_read_splits_no_transaction(spark, log):
    log.create_topic("a")
    log.create_topic("b")
    produce(log, "a", [(b"0", None, 0, None)])
    with log.producer({"transactional.id": "open"}) as holder:
        holder.init_transactions()
        holder.begin_transaction()
        holder.produce("a", b"open")
        holder.flush()
        # Committed in both topics, but after the open transaction in one of them.
        with log.producer({"transactional.id": "both"}) as both:
            both.init_transactions()
            with both.transaction():
                both.produce("a", b"pair")
                both.produce("b", b"pair")
        assert rows(read(spark, log, "a,b"), "topic", "value") == [("a", b"0")]
        holder.commit_transaction()
    assert rows(read(spark, log, "a,b"), "topic", "value") == [
        ("a", b"0"),
        ("a", b"open"),
        ("a", b"pair"),
        ("b", b"pair"),
    ]


def test_a_dataframe_keeps_its_end_while_the_log_grows(spark, log):
    log.create_topic("t", 2)
    produce(log, "t", [(b"%d" % n, None, n % 2, None) for n in range(100)])
    before = read(spark, log, "t")
    assert before.where("offset >= 25").count() == 50
    produce(log, "t", [(b"%d" % n, None, n % 2, None) for n in range(100, 150)])
    after = read(spark, log, "t")
    assert (before.count(), after.count()) == (100, 150)
    assert before.join(before, ["partition", "offset"]).count() == 100
    assert before.union(after).count() == 250


def test_the_end_is_fixed_at_load_or_with_a_schema_at_the_first_action(spark, log):
    log.create_topic("t")
    produce(log, "t", [(b"1", None, 0, None)])
    loaded = read(spark, log, "t", columns="value")
    # Spark does not ask the source for anything before it needs to, if it knows the schema.
    with_schema = reader(spark, log, subscribe="t").schema("value binary").load()
    produce(log, "t", [(b"2", None, 0, None)])
    assert (loaded.count(), with_schema.count()) == (1, 2)
    produce(log, "t", [(b"3", None, 0, None)])
    assert (loaded.count(), with_schema.count()) == (1, 2)


def test_a_missing_range_raises_unless_data_loss_is_accepted(spark, log):
    from eoslog import TopicPartition

    log.create_topic("t")
    produce(log, "t", [(b"%d" % n, None, 0, None) for n in range(10)])
    with pytest.raises(Exception, match="offset 99 is beyond 1"):
        read(spark, log, "t", endingOffsets='{"t": {"0": 99}}').count()
    assert (
        read(spark, log, "t", endingOffsets='{"t": {"0": 99}}', failOnDataLoss="false").count()
        == 10
    )
    log.delete_records({TopicPartition("t", 0): 4})
    with pytest.raises(
        Exception, match="start offset 2 was deleted by retention, and the log starts at 4"
    ):
        read(spark, log, "t", startingOffsets='{"t": {"0": 2}}').count()
    kept = read(spark, log, "t", startingOffsets='{"t": {"0": 2}}', failOnDataLoss="false")
    assert kept.count() == 6 and read(spark, log, "t").count() == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "nowhere"}, ["nowhere"]),
        ({"assign": '{"t": [7]}'}, ["'assign'", "t-7"]),
        (
            {"subscribe": "t", "startingOffsets": '{"t": {"0": 0}}'},
            ["'startingOffsets'", "missing: t-1"],
        ),
        (
            {"subscribe": "t", "endingOffsets": '{"x": {"0": 0}}'},
            ["'endingOffsets'", "not read: x-0"],
        ),
        ({"subscribe": "t", "startingOffsets": "latest"}, ["'startingOffsets'", "'latest'"]),
        ({"subscribe": "t", "columns": "offset,worth"}, ["'columns'", "worth"]),
        ({"subscribe": "t", "subscribes": "x"}, ["subscribes", "'subscribe'"]),
        ({}, ["subscribe", "assign"]),
    ],
)
def test_an_impossible_read_is_rejected_with_its_reason(spark, log, options, words):
    log.create_topic("t", 2)
    produce(log, "t", [(b"x", None, 0, None)])
    with pytest.raises(Exception) as caught:
        reader(spark, log, **options).load().count()
    for word in words:
        assert word in message_of(caught)


def test_a_missing_directory_is_named(spark, tmp_path):
    with pytest.raises(Exception) as caught:
        spark.read.format("eoslog").options(path=str(tmp_path / "no"), subscribe="t").load()
    assert "'path'" in message_of(caught) and str(tmp_path / "no") in message_of(caught)
    assert not (tmp_path / "no").exists()


def test_a_temporary_view_is_read_in_sql(spark, log):
    log.create_topic("t")
    write(spark.range(5).selectExpr("cast(id as string) as value"), log, "t")
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW seen USING eoslog "
        f"OPTIONS (path '{log.path}', subscribe 't')"
    )
    assert spark.sql(
        "SELECT count(*) AS n, max(cast(value AS string)) AS m FROM seen"
    ).collect() == [(5, "4")]


def test_spark_applies_filters_although_push_down_is_enabled(spark, log):
    log.create_topic("t", 2)
    produce(log, "t", [(b"%d" % n, None, n % 2, None) for n in range(100)])
    frame = read(spark, log, "t")
    half = frame.where("partition = 0")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert half.count() == 50
        assert half.union(frame).count() == 150, "the other scan of the same frame keeps its rows"
        assert half.select("offset").join(frame.select("offset"), "offset").count() == 100
        assert frame.where("offset >= 40").union(half.where("offset < 5")).count() == 25
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
