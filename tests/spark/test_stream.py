"""Streams, exactly once: a micro-batch that runs again is not written again."""

import pytest

pytest.importorskip("pyspark")
from .helpers import produce, staged, values


def start(spark, log, checkpoint, **options):
    source = spark.readStream.format("eoslog").options(
        path=log.path, subscribe="in", startingOffsets="earliest", **options
    )
    sink = source.load().select("key", "value").writeStream.format("eoslog")
    sink = sink.options(path=log.path, topic="out", checkpointLocation=str(checkpoint))
    return sink.trigger(availableNow=True).start()


def run(spark, log, checkpoint, **options):
    query = start(spark, log, checkpoint, **options)
    assert query.awaitTermination(60)
    assert query.exception() is None
    return query


@pytest.fixture
def topics(log):
    log.create_topic("in", 2)
    log.create_topic("out", 2)
    return log


def test_a_stream_copies_committed_records_once_in_limited_batches(spark, topics, tmp_path):
    produce(topics, "in", [(b"%d" % n, b"k%d" % n, None, None) for n in range(300)])
    produce(topics, "in", [(b"no", None, None, None)] * 20, abort=True)
    query = run(spark, topics, tmp_path / "c", maxRecordsPerTrigger="100")
    batches = [one for one in query.recentProgress if one.numInputRows]
    assert len(batches) >= 3 and all(one.numInputRows <= 100 for one in batches)
    produce(topics, "in", [(b"%d" % n, b"k%d" % n, None, None) for n in range(300, 350)])
    run(spark, topics, tmp_path / "c")
    assert sorted(int(value) for value in values(topics, "out")) == list(range(350))
    assert staged(topics) == []


def test_a_batch_that_spark_forgot_it_committed_is_not_written_again(spark, topics, tmp_path):
    produce(topics, "in", [(b"%d" % n, None, n % 2, None) for n in range(50)])
    run(spark, topics, tmp_path / "c")
    # The driver died after the sink's commit and before Spark's own.
    commits = sorted(path for path in (tmp_path / "c" / "commits").iterdir() if path.name.isdigit())
    for path in [commits[-1], commits[-1].parent / f".{commits[-1].name}.crc"]:
        path.unlink(missing_ok=True)
    produce(topics, "in", [(b"%d" % n, None, n % 2, None) for n in range(50, 60)])
    run(spark, topics, tmp_path / "c")
    assert sorted(int(value) for value in values(topics, "out")) == list(range(60))


def test_a_new_checkpoint_is_a_new_query_and_nothing_is_skipped(spark, topics, tmp_path):
    produce(topics, "in", [(b"1", None, 0, None)])
    run(spark, topics, tmp_path / "c1")
    run(spark, topics, tmp_path / "c2")
    assert values(topics, "out") == [b"1", b"1"]


def test_options_without_meaning_in_a_stream_are_refused(spark, topics, tmp_path):
    with pytest.raises(Exception, match="endingOffsets"):
        query = start(spark, topics, tmp_path / "c", endingOffsets='{"in": {"0": 0, "1": 0}}')
        query.awaitTermination(60)
