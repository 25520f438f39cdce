"""A slice of `python -m tests.spark.damaged`, and the wrong reads that it found."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from pyspark_eoslog import DefaultSource

import eoslog
from eoslog import TopicPartition, _core
from eoslog.errors import CorruptRecord
from tests.spark.damaged import pairs as damaged
from tests.spark.damaged.reads import ALL, Direct, InSpark, Outcome, Read, wrong_error, wrong_rows

ROOT = Path(__file__).resolve().parents[3]
SEGMENTS = {"segment.bytes": 1000, "index.interval.bytes": 100}


@pytest.fixture(scope="module")
def templates():
    made = damaged.Directories()
    yield made
    made.close()


@pytest.mark.spark
def test_field_A2_no_spark_read_of_damaged_files_is_wrong(templates, spark, tmp_path):
    run = damaged.Run(templates, InSpark(spark, tmp_path), 7, 0.2)
    run.pairs(20)
    assert not run.violations
    assert run.counts["pairs"] >= 20


def test_field_A2_no_read_of_damaged_files_without_a_session_is_wrong(templates):
    run = damaged.Run(templates, Direct(), 8, 0.3)
    run.pairs(60)
    assert not run.violations
    assert run.counts["errors"] > 0


def test_the_row_oracle_finds_missing_wrong_and_repeated_rows():
    read = Read("all", {}, [("a", 0, n, None, b"%d" % n, n) for n in range(3)])
    assert wrong_rows(read, Outcome(list(read.rows))) is None
    assert wrong_rows(read, Outcome(read.rows[:2], error=CorruptRecord("x"))) is None
    for rows in (read.rows[:2], [*read.rows, read.rows[2]], [read.rows[1], read.rows[0]]):
        assert wrong_rows(read, Outcome(rows)) is not None
    assert wrong_rows(read, Outcome(read.rows[1:], error=CorruptRecord("x"))) is not None
    assert wrong_rows(Read("count", {}, read.rows, ALL, "count"), Outcome(count=2)) is not None


def test_the_error_oracle_requires_a_package_error_with_a_message():
    assert wrong_error(CorruptRecord("a-0: damaged")) is None
    assert wrong_error(ValueError("x")) is not None
    assert wrong_error(RuntimeError("job aborted\neoslog.errors.CorruptRecord: a-0: bad")) is None
    mixed = "struct.error: short\n\nKeyError: 1\neoslog.errors.CorruptRecord: bad"
    assert wrong_error(RuntimeError(mixed)) is not None


def test_the_damaged_files_command_reports_its_steps():
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.damaged", "--help"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "--pairs" in done.stdout


# --- what was found -------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path):
    """A closed directory with topic `t`; every third batch is aborted.

    Its two partitions have the same sizes.
    """
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t", 2, SEGMENTS)
        with log.producer({"transactional.id": "a"}) as producer:
            producer.init_transactions()
            for n in range(16):
                producer.begin_transaction()
                for partition in (0, 1):
                    for m in range(3):
                        value = b"%02d.%d of %d" % (n, m, partition) + bytes(30)
                        producer.produce("t", value, partition=partition, timestamp=1000 + 10 * n)
                producer.flush()
                producer.abort_transaction() if n % 3 == 1 else producer.commit_transaction()
        ends = {p: log.offsets("t", p).log_end for p in (0, 1)}
    return tmp_path / "log", ends


def read(path, layout="kafka", **options):
    """(partition, offset, value) of each row."""
    given = {"path": str(path), "layout": layout, "subscribe": "t", **options}
    source = DefaultSource({name: str(value) for name, value in given.items()})
    return rows(source)


def rows(source):
    reader = source.reader(source.schema())
    return [
        (row["partition"], row["offset"], row["value"])
        for task in reader.partitions()
        for batch in reader.read(task)
        for row in batch.to_pylist()
    ]


def logs(path, partition=0):
    return sorted((path / f"t-{partition}").glob("*.log"))


def flip(file, position, bit=1):
    data = bytearray(file.read_bytes())
    data[position] ^= bit
    file.write_bytes(data)


def batches(file):
    return _core.iter_batches(file.read_bytes())


def up_to(end, start=0):
    """Options of a read of partition 0 between two offsets."""
    bounds = {"startingOffsets": start, "endingOffsets": end}
    return {"subscribe": "", "assign": '{"t": [0]}'} | {
        name: json.dumps({"t": {"0": offset}}) for name, offset in bounds.items()
    }


def read_one(path, layout="kafka", **options):
    """As `read`, of partition 0."""
    given = {"path": str(path), "layout": layout, **options}
    given.pop("subscribe", None)
    return rows(DefaultSource({"assign": '{"t": [0]}', **given}))


def swap(one, other):
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


@pytest.mark.parametrize("layout", ["kafka", "eoslog"])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("which", [1, -1])
def test_field_A2_swapped_log_files_of_two_partitions_end_spark_reads(
    place, layout, isolation, which
):
    path, _ = place
    swap(logs(path)[which], logs(path, 1)[which])
    with pytest.raises(CorruptRecord):
        read(path, layout, isolationLevel=isolation)


def test_field_A2_swapped_last_log_files_end_read_segments(place):
    path, _ = place
    swap(logs(path)[-1], logs(path, 1)[-1])
    with pytest.raises(CorruptRecord):
        list(eoslog.read_segments(path / "t-0").records())


@pytest.mark.parametrize("layout", ["kafka", "eoslog"])
@pytest.mark.parametrize(
    "split", [{}, {"maxBytesPerPartition": "300", "minBytesPerPartition": "0"}]
)
def test_field_A2_a_raised_base_offset_shows_no_row_under_another_offset(place, layout, split):
    """The byte is under no CRC.

    A read that ends within or right before the batch sees no other row.
    """
    path, _ = place
    file = logs(path)[1]
    found = batches(file)
    at = next(one for one in found[1:-2] if not one.control and one.base_offset % 2 == 0)
    whole = read_one(path, layout)
    flip(file, at.position + 7)
    for end in range(at.base_offset + 1, at.last_offset + 2):
        wanted = [row for row in whole if row[1] < end]
        try:
            assert read_one(path, layout, **without_topic(up_to(end)), **split) == wanted
        except CorruptRecord:
            pass


def without_topic(options):
    return {name: value for name, value in options.items() if name not in ("subscribe", "assign")}


@pytest.mark.parametrize("layout", ["kafka", "eoslog"])
def test_field_A2_a_huge_base_offset_in_its_own_segment_is_damage(place, layout):
    path, _ = place
    flip(logs(path)[1], 3)
    for limit in ({}, {"maxRecordsPerPartition": "5"}):
        with pytest.raises(CorruptRecord):
            read(path, layout, isolationLevel="read_uncommitted", **limit)


@pytest.mark.parametrize("harm", ["removed", "emptied", "zeroed"])
@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_field_A2_a_missing_segment_of_plain_files_is_reported(place, harm, which, isolation):
    path, _ = place
    file = logs(path)[which]
    size = file.stat().st_size
    file.unlink()
    if harm != "removed":
        file.write_bytes(bytes(size) if harm == "zeroed" else b"")
    for options in ({}, {"startingTimestamp": 1001}, {"endingTimestamp": 1159}):
        with pytest.raises(CorruptRecord):
            read(path, isolationLevel=isolation, **options)


@pytest.mark.parametrize("which", [1, -1])
def test_field_A2_a_segment_emptied_after_load_is_reported(place, which):
    path, _ = place
    source = DefaultSource({"path": str(path), "layout": "kafka", "subscribe": "t"})
    logs(path)[which].write_bytes(b"")
    with pytest.raises(CorruptRecord):
        rows(source)


def test_field_A2_records_that_a_damaged_marker_may_abort_are_not_returned(place):
    """The marker of an abort is damaged; the range ends before it."""
    path, _ = place
    file = logs(path)[1]
    marker = next(one for one in batches(file) if one.control_type == 0)
    first = marker.base_offset - 3
    assert all(
        offset < first for _, offset, _ in read_one(path, **offsets(first, marker.base_offset))
    )
    flip(file, marker.position + 70)
    with pytest.raises(CorruptRecord):
        read_one(path, **offsets(first, marker.base_offset))
    assert read_one(path, **offsets(0, first))  # what comes before is whole


def offsets(start, end):
    return without_topic(up_to(end, start))


@pytest.mark.parametrize("bit", [0x10, 0x20])
def test_field_A2_a_marker_without_its_flag_does_not_end_a_read_early(place, bit):
    """Without its transactional bit the last marker would leave its transaction open."""
    path, _ = place
    file = logs(path)[-1]
    marker = [one for one in batches(file) if one.control][-1]
    flip(file, marker.position + 22, bit)
    with pytest.raises(CorruptRecord):
        read(path)


@pytest.mark.parametrize("byte", [35 + 5, 35 + 6, 21 + 1])
def test_field_A2_a_timestamp_lookup_in_a_damaged_batch_is_rejected(place, byte):
    """The greatest timestamp and the attributes of a batch count only under the CRC."""
    path, _ = place
    file = logs(path)[1]
    at = next(one for one in batches(file)[1:] if not one.control)
    timestamp = at.max_timestamp
    flip(file, at.position + byte, 0x20)
    for option in ("startingTimestamp", "endingTimestamp"):
        with pytest.raises(CorruptRecord):
            read(path, **{option: timestamp, "isolationLevel": "read_uncommitted"})


def test_field_A5_a_log_start_without_a_checksum_hides_no_segment(place):
    path, _ = place
    whole = read(path)
    (path / "eoslog.offsets").unlink()
    second = int(logs(path)[2].name[:20])
    (path / "log-start-offset-checkpoint").write_text(f"0\n1\nt 0 {second}\n")
    assert read(path) == whole
    (path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 2\n")
    assert read(path) == [row for row in whole if row[:2] > (0, 1)]


def test_a_deleted_first_segment_is_not_damage_with_a_recorded_log_start(place):
    path, _ = place
    second = int(logs(path)[1].name[:20])
    with eoslog.open(path) as log:
        log.delete_records({TopicPartition("t", 0): second + 1})
        wanted = [(r.partition, r.offset, r.value) for r in log.read("t")]
    assert read(path) == wanted
    assert int(logs(path)[0].name[:20]) == second


def test_rows_before_and_after_damage_are_read_from_plain_files(place):
    path, ends = place
    whole = read_one(path, isolationLevel="read_uncommitted")
    file = logs(path)[1]
    shutil.copy(file, path / "copy")
    damaged_at = batches(file)[1]
    flip(file, damaged_at.position + 70)
    before = damaged_at.base_offset
    last = int(logs(path)[-1].name[:20])
    for start, end in ((0, before), (last, ends[0])):
        found = read_one(path, isolationLevel="read_uncommitted", **offsets(start, end))
        assert found == [row for row in whole if start <= row[1] < end]
