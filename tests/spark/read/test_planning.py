"""From options to ranges to tasks, without Spark.

Missing data is reported or left out.
"""

from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from pyspark_eoslog.options.options import Options
from pyspark_eoslog.read import splitting
from pyspark_eoslog.read.batch import ReadTask, read_task
from pyspark_eoslog.read.catalog import LogCatalog
from pyspark_eoslog.read.planning import pin_ranges
from pyspark_eoslog.read.splitting import plan
from pyspark_eoslog.schema import source_schema
from pyspark_eoslog.source import EoslogDataSource

from eoslog import TopicPartition
from eoslog.connector.byte_ranges import PartitionFiles
from eoslog.errors import ConfigError, OffsetOutOfRange, UnknownTopicOrPartition

LAYOUTS = pytest.mark.parametrize("layout", ["eoslog", "kafka"])


def options(log, **given):
    return Options.parse({"path": log.path, "subscribe": "t", "columns": "value", **given})


def rows(parsed, tasks):
    batches = [
        batch
        for pieces in tasks
        for batch in read_task(parsed, source_schema(parsed), ReadTask(pieces))
    ]
    return [value for batch in batches for value in batch.column(0).to_pylist()]


def read(parsed, ranges):
    return rows(parsed, plan(ranges, parsed))


def fill(log, count, *, start=0, size=0, topic="t"):
    with log.producer() as producer:
        for n in range(start, start + count):
            producer.produce(topic, b"%d" % n + bytes(size), partition=0)
            if size:
                producer.flush()


@pytest.fixture
def segments(log):
    """A partition of many small segments, and the base of the second."""
    log.create_topic("t", 1, {"segment.bytes": "1048576"})
    fill(log, 30, size=100_000)
    folder = Path(log.path) / "t-0"
    return log, folder, sorted(int(path.stem) for path in folder.glob("*.log"))[1]


@LAYOUTS
@pytest.mark.parametrize("cut", [{}, {"maxBytesPerPartition": "300k"}])
def test_retention_between_load_and_the_first_action_raises(segments, layout, cut):
    log, folder, second = segments
    strict = options(log, layout=layout, **cut)
    lenient = options(log, layout=layout, failOnDataLoss="false", **cut)
    ranges = pin_ranges(strict)
    (folder / f"{0:020d}.log").unlink()
    with pytest.raises(OffsetOutOfRange, match=f"t-0: offset 0 was deleted .* starts at {second}"):
        plan(ranges, strict)
    assert len(read(lenient, ranges)) == 30 - second


def test_a_segment_removed_during_planning_is_looked_up_again(segments, monkeypatch):
    log, folder, second = segments
    parsed = options(log, failOnDataLoss="false", maxBytesPerPartition="300k")
    ranges = pin_ranges(parsed)
    listed = splitting.open_partition

    def listed_before(*given) -> PartitionFiles:
        found = listed(*given)
        (folder / f"{0:020d}.log").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(splitting, "open_partition", listed_before)
    assert len(read(parsed, ranges)) == 30 - second


@pytest.mark.parametrize("count", [3, 10, 30])
def test_a_topic_re_created_since_load_is_not_mistaken_for_the_old_one(log, count):
    log.create_topic("t")
    fill(log, 10)
    strict, lenient = options(log), options(log, failOnDataLoss="false")
    ranges = pin_ranges(strict)
    planned = plan(ranges, strict)
    log.delete_topic("t")
    log.create_topic("t")
    fill(log, count, start=100)
    for late in (lambda: read(strict, ranges), lambda: rows(strict, planned)):
        with pytest.raises(UnknownTopicOrPartition, match="t-0 was deleted and re-created"):
            late()
    assert read(lenient, ranges) == rows(lenient, planned) == []


def test_a_task_checks_the_topic_of_a_file_with_the_planned_inode(log):
    """File systems give the inode of a deleted file to the next one that is made."""
    log.create_topic("t")
    fill(log, 10)
    strict, lenient = options(log), options(log, failOnDataLoss="false")
    planned = plan(pin_ranges(strict), strict)
    log.create_topic("u")
    fill(log, 1, topic="u")
    said = (Path(log.path) / "u-0" / "partition.metadata").read_bytes()
    (Path(log.path) / "t-0" / "partition.metadata").write_bytes(said)
    with pytest.raises(UnknownTopicOrPartition, match="t-0 was deleted and re-created"):
        rows(strict, planned)
    assert rows(lenient, planned) == []


def test_a_topic_deleted_since_load_is_named(log):
    log.create_topic("t")
    log.create_topic("u")
    fill(log, 3)
    fill(log, 2, topic="u")
    strict = options(log, subscribe="t,u")
    lenient = options(log, subscribe="t,u", failOnDataLoss="false")
    ranges = pin_ranges(strict)
    planned = plan(ranges, strict)
    log.delete_topic("t")
    for late in (lambda: read(strict, ranges), lambda: rows(strict, planned)):
        with pytest.raises(UnknownTopicOrPartition, match="t-0 was deleted after"):
            late()
    assert read(lenient, ranges) == rows(lenient, planned) == [b"0", b"1"]


def test_a_missing_directory_is_not_reported_as_a_deleted_topic(log):
    log.create_topic("t")
    fill(log, 3)
    ranges = pin_ranges(options(log))
    with pytest.raises(ConfigError, match="'path' = '/nowhere/log': t-0 cannot be read"):
        plan(ranges, options(log, path="/nowhere/log"))


@pytest.mark.parametrize("loss", ["true", "false"])
def test_records_deleted_beyond_the_readable_end_leave_an_empty_range(log, loss):
    log.create_topic("t")
    fill(log, 3)
    with log.producer({"transactional.id": "open"}) as holder:
        holder.init_transactions()
        holder.begin_transaction()
        holder.produce("t", b"open")
        holder.flush()
        fill(log, 6, start=4)
        log.delete_records({TopicPartition("t", 0): 7})
        assert log.offsets("t", 0).last_stable == 7
        parsed = options(log, failOnDataLoss=loss)
        assert read(parsed, pin_ranges(parsed)) == []
        strict = options(log, startingOffsets='{"t": {"0": 0}}')
        with pytest.raises(
            OffsetOutOfRange,
            match="start offset 0 was deleted by retention, and the log starts at 7",
        ):
            pin_ranges(strict)
        beyond = options(log, endingOffsets='{"t": {"0": 9}}')
        with pytest.raises(OffsetOutOfRange, match="'endingOffsets': t-0: offset 9 is beyond"):
            pin_ranges(beyond)
        holder.commit_transaction()
    assert read(parsed, pin_ranges(parsed)) == [b"7", b"8", b"9"]


def test_a_pattern_leaves_out_only_internal_topics(log):
    log.create_topic("__mine")
    log.create_topic("_b")
    log.create_topic("c")
    for topic in ("__mine", "_b", "c"):
        fill(log, 1, topic=topic)
    log.reset_offsets("g", {TopicPartition("c", 0): 0})  # makes __consumer_offsets
    for layout in ("eoslog", "kafka"):
        parsed = Options.parse({"path": log.path, "subscribePattern": ".*", "layout": layout})
        assert [one.topic for one in pin_ranges(parsed)] == ["__mine", "_b", "c"]


def test_the_end_of_a_batch_read_is_fixed_at_load(log):
    log.create_topic("t")
    fill(log, 3)
    source = EoslogDataSource({"path": log.path, "subscribe": "t"})
    fill(log, 3, start=3)
    assert [one.end for one in source.reader(source.schema()).ranges] == [3]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_internal_topics_can_be_read_together_with_others(log, isolation):
    """A snapshot, by which whole transactions are read, tells no end of theirs."""
    log.create_topic("t", 1)
    fill(log, 3)
    log.reset_offsets("group", {TopicPartition("t", 0): 1})
    parsed = options(log, subscribe="t,__consumer_offsets", isolationLevel=isolation)
    ranges = pin_ranges(parsed)
    assert read(parsed, [one for one in ranges if one.topic == "t"]) == [b"0", b"1", b"2"]
    own = [one for one in ranges if one.topic == "__consumer_offsets"]
    assert read(parsed, own) == [one.value for one in log.read("__consumer_offsets")] != []


def test_the_ends_of_a_recreated_topic_without_a_partition_are_reported(log):
    log.create_topic("t", 2)
    keys = [("t", 0), ("t", 1)]
    log.delete_topic("t")
    log.create_topic("t", 1)
    with pytest.raises(UnknownTopicOrPartition, match="t-1 was deleted"):
        LogCatalog(log, "read_committed").latest(keys)
