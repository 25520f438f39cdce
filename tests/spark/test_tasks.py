"""What a reading task does on its own, without Spark around it."""

import pytest

pytest.importorskip("pyspark")
from pyspark.sql.types import BinaryType, LongType, StructField, StructType
from pyspark_eoslog.options import Options
from pyspark_eoslog.reader import EoslogReader, OffsetRange, read_range

from eoslog import TopicPartition
from eoslog.errors import OffsetOutOfRange

from .helpers import produce

SCHEMA = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])


def offsets(log, start, end, **options):
    parsed = Options.parse({"path": log.path, "subscribe": "t", **options})
    batches = read_range(parsed, SCHEMA, OffsetRange("t", 0, start, end))
    return [offset for batch in batches for offset in batch.column(0).to_pylist()]


@pytest.fixture
def topic(log):
    log.create_topic("t")
    with log.producer() as producer:
        for n in range(10):
            producer.produce("t", b"%d" % n)
    return log


def test_a_task_reads_its_range_and_nothing_else(topic):
    assert offsets(topic, 3, 7) == [3, 4, 5, 6]
    assert offsets(topic, 0, 10, batchRows="3") == list(range(10))


def test_a_task_sees_what_was_committed_after_its_handle_was_opened(topic):
    assert offsets(topic, 9, 10) == [9]
    produce(topic, "t", [(b"more", None, 0, None)])
    assert offsets(topic, 9, 11) == [9, 10]


def test_rows_that_retention_took_after_planning_are_missed_loudly(topic):
    topic.delete_records({TopicPartition("t", 0): 4})
    with pytest.raises(OffsetOutOfRange):
        offsets(topic, 2, 8)
    assert offsets(topic, 2, 8, failOnDataLoss="false") == [4, 5, 6, 7]
    assert offsets(topic, 0, 3, failOnDataLoss="false") == []


def test_a_host_that_does_not_see_the_whole_range_fails(topic):
    with pytest.raises(OffsetOutOfRange, match="planned up to 99"):
        offsets(topic, 0, 99)


def test_the_partition_spark_makes_up_for_an_empty_read_has_no_rows(topic):
    from pyspark.sql.datasource import InputPartition

    parsed = Options.parse({"path": topic.path, "subscribe": "t"})
    reader = EoslogReader(parsed, SCHEMA, [("t", 0, 5, 5)])
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_filters_are_not_taken_from_spark():
    # A pushed filter would leak into other scans of the same DataFrame in Spark 4.
    from pyspark.sql.datasource import DataSourceReader

    assert EoslogReader.pushFilters is DataSourceReader.pushFilters
