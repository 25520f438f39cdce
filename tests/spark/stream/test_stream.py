"""Streams, exactly once: a micro-batch that runs again is not written again."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from eoslog import TopicPartition
from tests.rows.tools import settled
from tests.spark.helpers import ENDED_S, TOO_SLOW, ended, message_of, produce, staged, values
from tests.waiting import until


def source(spark, log, **options):
    given = {"path": log.path, "subscribe": "in", "startingOffsets": "earliest", **options}
    return spark.readStream.format("eoslog").options(**given)


def sink(frame, log, checkpoint, **options):
    writer = frame.writeStream.format("eoslog").options(path=log.path, topic="out", **options)
    return writer.option("checkpointLocation", str(checkpoint))


def start(spark, log, checkpoint, *, to=None, **options):
    frame = source(spark, log, **options).load().select("key", "value")
    return sink(frame, log, checkpoint, **(to or {})).trigger(availableNow=True).start()


def run(spark, log, checkpoint, **options):
    return ended(lambda: start(spark, log, checkpoint, **options))


def begun(begin, log):
    """A query that has written; begun again if its worker was too slow to start."""
    query, deadline = begin(), time.monotonic() + ENDED_S
    while not numbers(log):
        if error := query.exception():
            assert TOO_SLOW in str(error)
            query = begin()
        if time.monotonic() > deadline:
            query.stop()
            raise AssertionError("it has written nothing")
        time.sleep(0.1)
    return query


def numbers(log, topic="out"):
    return sorted(int(value) for value in values(log, topic))


def feed(log, start, end, **options):
    produce(log, "in", [(b"%d" % n, b"k%d" % n, None, None) for n in range(start, end)], **options)


def forget_last_commit(checkpoint):
    """As if the driver had died after the sink's commit and before Spark's own."""
    commits = sorted(path for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for path in [commits[-1], commits[-1].parent / f".{commits[-1].name}.crc"]:
        path.unlink(missing_ok=True)


@pytest.fixture
def topics(log):
    log.create_topic("in", 2)
    log.create_topic("out", 2)
    return log


def test_a_stream_copies_committed_records_once_in_limited_batches(spark, topics, tmp_path):
    feed(topics, 0, 300)
    produce(topics, "in", [(b"no", None, None, None)] * 20, abort=True)
    query = run(spark, topics, tmp_path / "c", maxRecordsPerTrigger="100")
    batches = [one for one in query.recentProgress if one.numInputRows]
    assert len(batches) >= 3 and all(one.numInputRows <= 100 for one in batches)
    feed(topics, 300, 350)
    query = run(spark, topics, tmp_path / "c", maxOffsetsPerTrigger="30")
    assert all(one.numInputRows <= 30 for one in query.recentProgress)
    assert numbers(topics) == list(range(350))
    assert staged(topics) == []


def test_a_byte_limit_bounds_a_micro_batch_by_complete_batches(spark, topics, tmp_path):
    for n in range(8):  # each a batch of about 10 kB
        produce(topics, "in", [(b"%d" % n + b" " * 10_000, None, n % 2, None)])
    query = run(spark, topics, tmp_path / "c", maxBytesPerTrigger="21k")
    rows = [one.numInputRows for one in query.recentProgress if one.numInputRows]
    assert sum(rows) == 8 and max(rows) == 2
    produce(topics, "in", [(b"9" + b" " * 90_000, None, 0, None)])
    run(spark, topics, tmp_path / "c", maxBytesPerTrigger="1k")
    assert len(values(topics, "out")) == 9, "a batch above the limit goes through all the same"


def test_a_micro_batch_waits_for_min_offsets_but_not_forever(spark, topics, tmp_path):
    feed(topics, 0, 5)
    frame = source(spark, topics, minOffsetsPerTrigger="100", maxTriggerDelay="3s").load()
    query = begun(sink(frame.select("key", "value"), topics, tmp_path / "c").start, topics)
    try:
        assert numbers(topics) == list(range(5))
        feed(topics, 5, 200)
        query.processAllAvailable()
        assert numbers(topics) == list(range(200))
    finally:
        query.stop()


def test_a_committed_batch_that_spark_repeats_is_not_written_again(spark, topics, tmp_path):
    feed(topics, 0, 50)
    run(spark, topics, tmp_path / "c")
    forget_last_commit(tmp_path / "c")
    feed(topics, 50, 60)
    run(spark, topics, tmp_path / "c")
    assert numbers(topics) == list(range(60))


@pytest.mark.parametrize("way", ["relative", "session", "write_once"])
def test_a_checkpoint_restored_one_batch_old_is_rejected(spark, topics, tmp_path, way):
    """Each batch has one row, so that only its input differs."""
    from pyspark_eoslog import write_once

    def go():
        frame = source(spark, topics).load().select("value")
        if way == "write_once":
            writer = frame.writeStream.foreachBatch(write_once(topics.path, "out", app_id="a"))
        else:
            writer = frame.writeStream.format("eoslog").options(path=topics.path, topic="out")
        if way == "session":
            writer = writer.queryName("c")
        else:
            writer = writer.option("checkpointLocation", os.path.relpath(tmp_path / "c"))
        ended(writer.trigger(availableNow=True).start)

    if way == "session":
        spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    try:
        feed(topics, 0, 1)
        go()
        shutil.copytree(tmp_path / "c", tmp_path / "copy")
        feed(topics, 1, 2)
        go()
        forget_last_commit(tmp_path / "c")
        go()  # a repeated batch, which is skipped
        shutil.rmtree(tmp_path / "c")
        (tmp_path / "copy").rename(tmp_path / "c")
        feed(topics, 2, 3)
        with pytest.raises(Exception, match="checkpoint went back"):
            go()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert numbers(topics) == [0, 1]


def test_a_new_checkpoint_is_a_new_query_even_at_the_same_path(spark, topics, tmp_path):
    feed(topics, 0, 1)
    run(spark, topics, tmp_path / "c")
    shutil.rmtree(tmp_path / "c")
    run(spark, topics, tmp_path / "c")
    assert values(topics, "out") == [b"0", b"0"]


def test_new_partitions_are_read_from_their_start(spark, topics, tmp_path):
    feed(topics, 0, 10)
    run(spark, topics, tmp_path / "c")
    topics.create_partitions("in", 4)
    produce(topics, "in", [(b"%d" % n, None, n % 4, None) for n in range(10, 30)])
    run(spark, topics, tmp_path / "c")
    assert numbers(topics) == list(range(30))


def test_a_pattern_finds_new_topics(spark, topics, tmp_path):
    options = {"subscribe": "", "subscribePattern": "in.*"}
    del options["subscribe"]
    feed(topics, 0, 3)

    def go():
        frame = spark.readStream.format("eoslog").options(
            path=topics.path, startingOffsets="earliest", **options
        )
        query = sink(frame.load().select("value"), topics, tmp_path / "c")
        ended(query.trigger(availableNow=True).start)

    go()
    topics.create_topic("in-later")
    produce(topics, "in-later", [(b"3", None, 0, None)])
    go()
    assert numbers(topics) == [0, 1, 2, 3]


def test_retention_fails_a_stream_unless_data_loss_is_accepted(spark, topics, tmp_path):
    produce(topics, "in", [(b"%d" % n, None, 0, None) for n in range(10)])
    run(spark, topics, tmp_path / "c")
    produce(topics, "in", [(b"%d" % n, None, 0, None) for n in range(10, 30)])
    topics.delete_records({TopicPartition("in", 0): 20})
    with pytest.raises(
        Exception, match=r"start offset 11 was deleted by retention, and the log starts at 20"
    ):
        run(spark, topics, tmp_path / "c")
    run(spark, topics, tmp_path / "c", failOnDataLoss="false")
    found = numbers(topics)
    assert found[:10] == list(range(10)) and found[-1] == 29 and len(found) < 30


def test_a_re_created_topic_is_detected_by_a_stream(spark, topics, tmp_path):
    feed(topics, 0, 40)
    run(spark, topics, tmp_path / "c")
    topics.delete_topic("in")
    topics.create_topic("in", 2)
    produce(topics, "in", [(b"40", None, 0, None)])
    with pytest.raises(Exception, match="deleted and re-created"):
        run(spark, topics, tmp_path / "c")
    run(spark, topics, tmp_path / "c", failOnDataLoss="false")
    assert numbers(topics) == list(range(41))


def test_a_deleted_topic_ends_a_query_or_is_left_out(spark, topics, tmp_path):
    topics.create_topic("other", 1)
    both = {"subscribe": "in,other"}
    feed(topics, 0, 20)
    run(spark, topics, tmp_path / "c", **both)
    topics.delete_topic("other")
    feed(topics, 20, 40)
    with pytest.raises(Exception, match="there is no topic 'other'"):
        run(spark, topics, tmp_path / "c", **both)
    run(spark, topics, tmp_path / "c", **both, failOnDataLoss="false")
    assert numbers(topics) == list(range(40))


def test_starting_options_have_no_effect_after_the_first_checkpoint(spark, topics, tmp_path):
    produce(topics, "in", [(b"%d" % n, None, 0, None) for n in range(10)])
    options = {"startingOffsets": '{"in": {"0": 5, "1": 0}}'}
    run(spark, topics, tmp_path / "c", **options)
    assert numbers(topics) == [5, 6, 7, 8, 9]
    topics.delete_records({TopicPartition("in", 0): 10})
    produce(topics, "in", [(b"10", None, 0, None)])
    run(spark, topics, tmp_path / "c", **options)
    assert numbers(topics) == [5, 6, 7, 8, 9, 10]


def test_a_stream_commits_its_progress_to_a_group_and_reports_lag(spark, topics, tmp_path):
    feed(topics, 0, 30)
    settled(topics, "in")  # its markers are flushed later
    query = run(spark, topics, tmp_path / "c", maxRecordsPerTrigger="10", commitGroup="etl")
    ends = {TopicPartition("in", n): topics.offsets("in", n).last_stable for n in (0, 1)}
    committed = topics._engine.groups.fetch_offsets("etl", list(ends))
    assert {key: one.offset for key, one in committed.items()} == ends
    progress = query.recentProgress[0].sources[0]
    latest, reached = json.loads(progress.latestOffset), json.loads(progress.endOffset)
    assert sum(latest["in"].values()) - sum(reached["in"].values()) > 0, "what is left is seen"


def test_complete_mode_appends_the_complete_result(spark, topics, tmp_path):
    def counts():
        frame = source(spark, topics).load().groupBy("topic").count()
        frame = frame.selectExpr("'all' as key", "cast(count as string) as value")
        query = sink(frame, topics, tmp_path / "c").outputMode("complete")
        ended(query.trigger(availableNow=True).start)

    feed(topics, 0, 10)
    counts()
    feed(topics, 10, 15)
    counts()
    forget_last_commit(tmp_path / "c")
    counts()
    assert numbers(topics) == [10, 15]


def test_update_mode_is_rejected_and_the_helper_supports_it(spark, topics, tmp_path):
    from pyspark_eoslog import write_once

    frame = source(spark, topics).load().groupBy("topic").count()
    frame = frame.selectExpr("'all' as key", "cast(count as string) as value")
    with pytest.raises(Exception, match="[Uu]pdate"):
        ended(sink(frame, topics, tmp_path / "no").outputMode("update").start)

    def updates():
        write = write_once(topics.path, "out", app_id="totals")
        query = frame.writeStream.foreachBatch(write).outputMode("update")
        query = query.option("checkpointLocation", str(tmp_path / "c"))
        ended(query.trigger(availableNow=True).start)

    feed(topics, 0, 10)
    updates()
    feed(topics, 10, 15)
    updates()
    forget_last_commit(tmp_path / "c")
    updates()
    assert numbers(topics) == [10, 15]
    shutil.rmtree(tmp_path / "c")
    updates()
    assert numbers(topics) == [10, 15, 15], "a new checkpoint is a new query"


def test_one_query_writes_to_two_sinks_in_one_foreach_batch(spark, topics, tmp_path):
    from pyspark_eoslog import write_once

    topics.create_topic("copy")
    writes = [write_once(topics.path, topic, app_id=topic) for topic in ("out", "copy")]

    def go():
        def both(batch, batch_id):
            for write in writes:
                write(batch.select("value"), batch_id)

        query = source(spark, topics).load().writeStream.foreachBatch(both)
        query = query.option("checkpointLocation", str(tmp_path / "c"))
        ended(query.trigger(availableNow=True).start)

    feed(topics, 0, 5)
    go()
    forget_last_commit(tmp_path / "c")
    go()
    assert numbers(topics) == numbers(topics, "copy") == list(range(5))


@pytest.mark.parametrize(
    ("options", "to", "words"),
    [
        ({"endingOffsets": '{"in": {"0": 0, "1": 0}}'}, {}, ["'endingOffsets'"]),
        ({"endingTimestamp": "5"}, {}, ["'endingTimestamp'"]),
        ({"layout": "kafka"}, {}, ["'layout'", "kafka"]),
        ({"maxBytesPerTrigger": "much"}, {}, ["'maxBytesPerTrigger'", "much"]),
        ({"maxTriggerDelay": "soon"}, {}, ["'maxTriggerDelay'", "soon"]),
        ({"maxRecordsPerTrigger": "0"}, {}, ["'maxRecordsPerTrigger'", "0"]),
        ({}, {"txnVersion": "3", "txnAppId": "x"}, ["'txnVersion'", "write_once"]),
        ({}, {"txnAppId": "x"}, ["'txnAppId' = 'x' has no effect", "write_once"]),
    ],
)
def test_an_impossible_stream_is_rejected(spark, topics, tmp_path, options, to, words):
    with pytest.raises(Exception) as caught:
        run(spark, topics, tmp_path / "c", to=to, **options)
    for word in words:
        assert word in message_of(caught)
    assert values(topics, "out") == []


def test_a_query_that_ended_closes_the_directory(spark, tmp_path):
    import eoslog

    path = str(tmp_path / "log")
    with eoslog.open(path) as log:
        log.create_topic("in", 2)
        log.create_topic("out", 2)
        feed(log, 0, 3)
        run(spark, log, tmp_path / "c")
    # No other process has it open: the last one to close marks it clean.
    until((Path(path) / ".kafka_cleanshutdown").exists)
