"""The end of a micro-batch, by the headers of real segment files, without Spark."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark_eoslog.options.options import Options
from pyspark_eoslog.read import limits
from pyspark_eoslog.read.batch import read_task
from pyspark_eoslog.read.stream import EoslogStreamReader
from pyspark_eoslog.schema import source_schema

from eoslog import TopicPartition
from eoslog.errors import OffsetOutOfRange
from tests.spark.helpers import produce


@pytest.fixture
def topic(log):
    log.create_topic("t", 3)
    return log


def micro_batch_values(log, **options):
    """The values of each micro-batch until nothing is left."""
    for _, values in each_micro_batch(log, options):
        yield values


def micro_batches(log, **options):
    """(records, bytes of batches) of each micro-batch, and all values."""
    found = [(len(values), size, values) for size, values in each_micro_batch(log, options)]
    sizes = [(rows, size) for rows, size, _ in found]
    return sizes, sorted(value for _, _, values in found for value in values)


def each_micro_batch(log, options):
    """(bytes of batches, values) of each micro-batch until nothing is left."""
    given = {"path": log.path, "subscribe": "t", "startingOffsets": "earliest", **options}
    parsed = Options.parse({name: str(value) for name, value in given.items()})
    reader = EoslogStreamReader(parsed, source_schema(parsed))
    reader.prepareForTriggerAvailableNow()
    start, count = reader.initialOffset(), 0
    try:
        while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
            tasks = reader.partitions(start, end)
            rows = [
                value
                for task in tasks
                for batch in read_task(parsed, reader.schema, task)
                for value in batch.column(1).to_pylist()
            ]
            yield sum(piece.size for task in tasks for piece in task.pieces), rows
            start, count = end, count + 1
            assert count < 500, "it does not come to an end"
    finally:
        reader.stop()


def step(reader, start):
    """(end, rows) of the next micro-batch."""
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    tasks = reader.partitions(start, end)
    return end, sum(batch.num_rows for task in tasks for batch in reader.read(task))


@pytest.mark.parametrize("limit", ["maxOffsetsPerTrigger", "maxRecordsPerTrigger"])
def test_a_limit_skips_offsets_that_retention_removed(log, made, limit):
    log.create_topic("t")
    with log.producer() as producer:
        for n in range(3000):
            producer.produce("t", b"%d" % n)
    log.delete_records({TopicPartition("t", 0): 2990})
    start, rows = {"t": {"0": 5}}, 10
    reader = made(failOnDataLoss="false", **{limit: "10"})
    end, found = step(reader, start)
    assert (end["t"], found) == ({"0": 3000}, rows)
    with pytest.raises(
        OffsetOutOfRange,
        match="start offset 5 was deleted by retention, and the log starts at 2990",
    ):
        step(made(**{limit: "10"}), start)


def test_a_segment_removed_while_a_limit_is_computed_is_looked_up_again(log, made, monkeypatch):
    log.create_topic("t", 1, {"segment.bytes": "1048576"})
    for n in range(30):
        produce(log, "t", [(b"%d" % n + bytes(100_000), None, 0, None)])
    folder = Path(log.path) / "t-0"
    listed = limits.PartitionFiles

    def listed_before(directory):
        found = listed(directory)
        (folder / f"{0:020d}.log").unlink(missing_ok=True)
        return found

    reader = made(failOnDataLoss="false", maxBytesPerTrigger="2m")
    start = reader.initialOffset()
    monkeypatch.setattr(limits, "PartitionFiles", listed_before)
    end, rows = step(reader, start)
    assert rows > 0 and end["t"]["0"] > 0


def test_the_deleted_start_of_a_new_partition_is_data_loss(log, made):
    log.create_topic("t", 2)
    for n in range(10):
        produce(log, "t", [(b"%d" % n, None, 1, None)])
    start = {"t": {"0": 0}}  # as if it had had one partition
    assert step(made(), start)[1] == 10
    log.delete_records({TopicPartition("t", 1): 6})
    with pytest.raises(OffsetOutOfRange, match="t-1: start offset 0 was deleted"):
        step(made(), start)
    assert step(made(failOnDataLoss="false"), start)[1] == 7


def test_the_first_batch_after_a_start_does_not_wait(log, made):
    log.create_topic("t")
    produce(log, "t", [(b"1", None, 0, None)])
    reader = made(minOffsetsPerTrigger="100")
    end, rows = step(reader, {"t": {"0": 0}})
    assert rows == 1
    produce(log, "t", [(b"2", None, 0, None)])
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end


def test_a_record_limit_does_not_count_markers_and_aborted_records(topic):
    for n in range(12):
        produce(topic, "t", [(b"%03d" % (n * 10 + k), None, k % 3, None) for k in range(10)])
        produce(topic, "t", [(b"no", None, k % 3, None) for k in range(30)], abort=True)
    batches, values = micro_batches(topic, maxRecordsPerTrigger=30)
    assert values == [b"%03d" % n for n in range(120)]
    assert max(rows for rows, _ in batches) <= 30
    # 120 records among 480 and their markers: by offsets it would take four times as many.
    assert len([rows for rows, _ in batches if rows]) <= 8


def test_an_offset_limit_counts_every_offset(topic):
    produce(topic, "t", [(b"%03d" % n, None, n % 3, None) for n in range(60)])
    batches, values = micro_batches(topic, maxOffsetsPerTrigger=7)
    assert values == [b"%03d" % n for n in range(60)] and max(batches)[0] <= 7


@pytest.mark.slow
@pytest.mark.parametrize("limit", [3000, 5000, 20_000])
def test_a_byte_limit_is_exceeded_only_by_a_single_batch(topic, limit):
    for n in range(30):
        produce(topic, "t", [(b"%03d" % n + bytes(1000 + 37 * n), None, n % 3, None)])
    batches, values = micro_batches(topic, maxBytesPerTrigger=limit)
    assert [value[:3] for value in values] == [b"%03d" % n for n in range(30)]
    assert all(size <= limit for _, size in batches)
    one_too_large, _ = micro_batches(topic, maxBytesPerTrigger=10)
    assert all(rows <= 1 for rows, _ in one_too_large), "one batch at a time"


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": 20}, {"maxRecordsPerTrigger": 20}])
def test_a_small_partition_does_not_wait_for_a_large_one(topic, limit):
    produce(topic, "t", [(b"few", None, 0, None)] * 3)
    produce(topic, "t", [(b"many", None, 1, None)] * 2000)
    first = next(micro_batch_values(topic, **limit))
    assert 0 < first.count(b"few") < len(first) <= 20


def test_a_large_batch_does_not_wait_forever_for_small_ones(topic):
    produce(topic, "t", [(bytes(5000), None, 0, None)])
    for _ in range(60):
        produce(topic, "t", [(b"small", None, 1, None)])
    batches = list(micro_batch_values(topic, maxBytesPerTrigger=1000))
    assert bytes(5000) in [value for values in batches[: len(batches) - 3] for value in values]


def test_the_smallest_of_several_limits_applies(topic):
    produce(topic, "t", [(b"%03d" % n, None, 0, None) for n in range(50)])
    batches, _ = micro_batches(topic, maxOffsetsPerTrigger=20, maxRecordsPerTrigger=5)
    assert max(rows for rows, _ in batches) == 5


def test_trigger_once_ignores_limits(topic):
    produce(topic, "t", [(b"%03d" % n, None, 0, None) for n in range(50)])
    parsed = Options.parse({"path": topic.path, "subscribe": "t", "startingOffsets": "earliest",
                            "maxOffsetsPerTrigger": "3"})  # fmt: skip
    reader = EoslogStreamReader(parsed, source_schema(parsed))
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert sum(end["t"].values()) >= 50
    reader.stop()
