"""What a reading task does on its own, without Spark around it."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.descriptors import opened_files

pytest.importorskip("pyspark")
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType
from pyspark_eoslog.options.options import Options
from pyspark_eoslog.read.batch import EoslogReader, ReadTask, read_task
from pyspark_eoslog.read.splitting import Pinned, plan

from eoslog.connector import byte_ranges as segments_module
from eoslog.errors import ConfigError, CorruptRecord, OffsetOutOfRange
from eoslog.storage.fs import filesystem
from tests.spark.helpers import produce

SCHEMA = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])


def task(log, start, end, aborted=(), **options):
    parsed = Options.parse({"path": log.path, "subscribe": "t", **options})
    return parsed, [ReadTask(one) for one in plan([Pinned("t", 0, start, end, aborted)], parsed)]


def run(parsed, tasks):
    batches = [batch for one in tasks for batch in read_task(parsed, SCHEMA, one)]
    return [offset for batch in batches for offset in batch.column(0).to_pylist()]


def offsets(log, start, end, **options):
    return run(*task(log, start, end, **options))


@pytest.fixture
def topic(log):
    log.create_topic("t")
    with log.producer() as producer:
        for n in range(10):
            producer.produce("t", b"%d" % n)
    return log


def test_a_task_reads_exactly_its_range(topic):
    assert offsets(topic, 3, 7) == [3, 4, 5, 6]
    assert offsets(topic, 0, 10, batchRows="3") == list(range(10))


def test_a_task_returns_no_record_appended_after_its_plan(topic):
    planned = task(topic, 2, 10)
    produce(topic, "t", [(b"more", None, 0, None)])
    assert run(*planned) == list(range(2, 10))
    assert offsets(topic, 9, 11) == [9, 10]


@pytest.fixture
def segments(log):
    """A partition of many small segments, with their base offsets."""
    log.create_topic("t", 1, {"segment.bytes": "1048576"})
    with log.producer() as producer:
        for n in range(40):
            producer.produce("t", b"%d" % n + bytes(100_000))
            producer.flush()
    folder = Path(log.path) / "t-0"
    bases = sorted(int(path.stem) for path in folder.glob("*.log"))
    assert len(bases) >= 3
    return log, folder, bases


def test_a_range_continues_across_segments(segments):
    log, _, bases = segments
    assert offsets(log, 0, 40) == list(range(40))
    edge = bases[1]
    for start, end in [(edge - 1, edge + 1), (edge, edge + 1), (edge - 1, edge), (0, edge)]:
        assert offsets(log, start, end) == list(range(start, end))


def test_a_task_raises_if_retention_removed_its_rows_after_planning(segments):
    log, folder, bases = segments
    planned, lenient = task(log, 2, 30), task(log, 2, 30, failOnDataLoss="false")
    gone = task(log, 0, 3, failOnDataLoss="false")
    (folder / f"{0:020d}.log").unlink()
    with pytest.raises(OffsetOutOfRange, match=f"offset 2 was deleted.*starts at {bases[1]}"):
        run(*planned)
    assert run(*lenient) == list(range(bases[1], 30))
    assert run(*gone) == []


def test_a_segment_that_the_cleaner_replaced_is_found_again_by_offset(segments):
    log, folder, bases = segments
    planned = task(log, 1, 30)
    # The second segment merged into the first one, as a cleaner may do.
    first, second = (folder / f"{base:020d}.log" for base in bases[:2])
    (folder / "new").write_bytes(first.read_bytes() + second.read_bytes())
    (folder / "new").rename(first)
    second.unlink()
    assert run(*planned) == list(range(1, 30))


def test_a_wrong_index_is_not_used(segments):
    log, folder, _ = segments
    for path in folder.glob("*.index"):
        path.write_bytes(bytes.fromhex("0000000300000007") * 4)
    assert offsets(log, 5, 40) == list(range(5, 40))


def maps_of(path):
    return f"{path}/t-0/" in Path("/proc/self/maps").read_text()


def read_on(parsed, tasks):
    """(offsets, whether the files were mapped when the first batch came)."""
    batches = iter(read_task(parsed, SCHEMA, tasks[0]))
    first = next(batches)
    mapped = maps_of(parsed.path)
    return [n for batch in (first, *batches) for n in batch.column(0).to_pylist()], mapped


@pytest.fixture
def large(log):
    """Batches of 1 to 200 KB, some of them larger than one mapping."""
    log.create_topic("t", config={"segment.bytes": 1 << 20})
    with log.producer({"batch.size": 1 << 18, "linger.ms": 60_000}) as producer:
        for n in range(60):
            for _ in range(1 + n % 20):
                producer.produce("t", bytes([n]) * 10_000)
            producer.flush()
    return log


def test_local_files_are_mapped_and_return_the_same_rows(large, monkeypatch):
    end = large.offsets("t", 0).log_end
    planned = task(large, 3, end - 2, batchRows="5")
    rows, mapped = read_on(*planned)
    assert mapped and rows == list(range(3, end - 2))
    monkeypatch.setattr(segments_module, "MAPPED_BYTES", 50_000)
    assert read_on(*planned) == (rows, True)
    assert not maps_of(large.path)
    kind = filesystem.filesystem_type(large.path)
    monkeypatch.setattr(filesystem, "REFUSED", (kind,))  # as if it were NFS
    assert read_on(*planned) == (rows, False)


def test_a_file_that_cannot_be_mapped_is_read(large, monkeypatch):
    """An older kernel knows no MADV_POPULATE_READ."""
    monkeypatch.setattr(segments_module, "_POPULATE_READ", 9999)
    end = large.offsets("t", 0).log_end
    assert read_on(*task(large, 0, end, batchRows="5")) == (list(range(end)), False)


def test_the_files_of_a_broker_are_not_mapped(large):
    """A broker that is started during the read may truncate its files."""
    parsed, tasks = task(large, 0, 10, batchRows="5")
    assert read_on(replace(parsed, layout="kafka"), tasks) == (list(range(10)), False)


def test_bytes_that_are_not_utf_8_are_reported_with_their_place(topic):
    produce(topic, "t", [(b"\xff", None, 0, None)])
    parsed, (one,) = task(topic, 3, 11)
    schema = StructType([StructField("value", StringType())])
    with pytest.raises(CorruptRecord, match=r"t-0 \[3, 11\).*not valid UTF-8.*'valueFormat'"):
        list(read_task(parsed, schema, one))


def test_a_task_on_a_host_that_sees_a_shorter_file_fails(topic):
    planned = task(topic, 0, 10)
    path = next((Path(topic.path) / "t-0").glob("*.log"))
    os.truncate(path, path.stat().st_size - 5)
    with pytest.raises(CorruptRecord, match="bytes on .*, expected"):
        run(*planned)


def test_a_directory_missing_on_the_executor_is_named_with_the_host(topic):
    parsed, tasks = task(topic, 0, 10)
    tasks[0].pieces[0] = replace(tasks[0].pieces[0], directory="/nowhere/t-0")
    with pytest.raises(ConfigError, match=f"{os.uname().nodename} can't read /nowhere/t-0"):
        run(parsed, tasks)


def test_a_task_holds_no_lock_and_no_handle(topic):
    before = opened_files(topic.path)
    assert len(offsets(topic, 0, 10)) == 10
    assert opened_files(topic.path) == before


def test_the_partition_that_spark_adds_to_an_empty_read_has_no_rows(topic):
    from pyspark.sql.datasource import InputPartition

    parsed = Options.parse({"path": topic.path, "subscribe": "t"})
    reader = EoslogReader(parsed, SCHEMA, [Pinned("t", 0, 5, 5)])
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_filters_of_spark_are_not_pushed_down():
    # A pushed filter would leak into other scans of the same DataFrame in Spark 4.
    from pyspark.sql.datasource import DataSourceReader

    assert EoslogReader.pushFilters is DataSourceReader.pushFilters


IN_A_WORKER = """
import gc, sys
from eoslog.connector.staging import AttemptWriter
from pyspark import TaskContext
from pyspark_eoslog.write.encoder import RowEncoder, TopicTarget
from pyspark_eoslog.options.options import Options
from pyspark_eoslog.read.batch import ReadTask, read_task
from pyspark_eoslog.schema import source_schema
from pyspark_eoslog.read.splitting import Pinned, plan

parsed = Options.parse({"path": sys.argv[1], "subscribe": "t"})
tasks = [ReadTask(one) for one in plan([Pinned("t", 0, 0, 10)], parsed)]
for in_a_task in (False, True):
    if in_a_task:
        TaskContext._getOrCreate()
    batches = [batch for one in tasks for batch in read_task(parsed, source_schema(parsed), one)]
    assert sum(batch.num_rows for batch in batches) == 10
    assert (gc.get_freeze_count() > 0) == in_a_task
out = AttemptWriter(sys.argv[1], "job", "attempt", 0)
encoder = RowEncoder(out, {"t": TopicTarget(3, 1 << 20)}, "t", "none", 0)
for batch in batches:
    encoder.add(batch)
encoder.flush()
assert out.finish().count == 10
assert "pyarrow" in sys.modules and "pandas" not in sys.modules
"""


def test_a_worker_imports_no_pandas_and_freezes_its_modules(topic):
    # pandas takes half a second to load; a collection of all modules, 30 ms after every task.
    subprocess.run([sys.executable, "-c", IN_A_WORKER, topic.path], check=True)
