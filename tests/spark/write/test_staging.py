"""Staged attempts return each encoded batch, from memory and files alike."""

import os
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")
import pyarrow as pa
from pyspark_eoslog.write.encoder import RowEncoder, TopicTarget

import eoslog
from eoslog import _core
from eoslog.connector import publish as publishing
from eoslog.connector import staging
from eoslog.connector.publish import publish
from eoslog.errors import (
    ConfigError,
    CorruptRecord,
    InvalidTopic,
    RecordTooLarge,
    StorageError,
    UnknownTopicOrPartition,
)
from eoslog.storage.fs import files
from eoslog.storage.log.ingest import CannotAdopt
from eoslog.storage.segment.segment import LOG, offsets_in
from tests.reference.codec import decode_batch
from tests.spark.helpers import values

TARGETS = {"t": TopicTarget(3, 1 << 20), "u": TopicTarget(1, 1000)}


class FakeProducer:
    """Remembers what is published, as one transaction."""

    def __init__(self):
        self.batches = {}
        self.offsets = None
        self.asked = 0

    def transaction(self):
        return nullcontext(self)

    def produce_batches(self, topic, partition, batches, *, trusted):
        assert trusted, "what the tasks encoded is not walked again"
        found = [batch for run in batches for batch in _core.iter_batches(bytes(run))]
        held = self.batches.setdefault((topic, partition), [])
        held.extend(batch.tobytes() for batch in found)
        return sum(batch.count for batch in found)

    @property
    def _ingest(self):
        return self

    def segment(self, topic, partition, segment):
        self.asked += 1
        if self.asked % 3 == 1:  # as where the partition is empty
            raise CannotAdopt(segment.path)
        data = os.pread(segment.file.fd, len(segment), 0)
        os.unlink(segment.path)
        return self.produce_batches(topic, partition, [data], trusted=True)

    def send_offsets_to_transaction(self, offsets, group):
        self.offsets = (offsets, group)


def stage(
    directory,
    table,
    *,
    name="0-1",
    order=0,
    limit=1 << 20,
    topic="t",
    compression="none",
    rows=None,
    segment=staging.SEGMENT_BYTES,
):
    out = staging.AttemptWriter(str(directory), "job", name, order, limit, segment_bytes=segment)
    encoder = RowEncoder(out, TARGETS, topic, compression, seed=order)
    for batch in table.to_batches(rows):
        encoder.add(batch)
    encoder.flush()
    return out.finish()


def rows_of(producer):
    rows = []
    for (topic, partition), batches in producer.batches.items():
        for batch in batches:
            for record in decode_batch(batch).records:
                rows.append((topic, partition, record.key, record.value))
    return rows


def keyed(count, start=0):
    return pa.table(
        {
            "key": pa.array([b"k%d" % (n % 17) for n in range(start, start + count)], pa.binary()),
            "value": pa.array([b"v%d" % n for n in range(start, start + count)], pa.binary()),
        }
    )


@pytest.mark.parametrize("limit", [1 << 20, 0])
def test_rows_are_partitioned_by_key_and_keep_their_order(tmp_path, limit):
    attempt = stage(tmp_path, keyed(1000), limit=limit)
    assert (attempt.data is None) == (limit == 0)
    producer = FakeProducer()
    assert publish(producer, str(tmp_path), [attempt]) == 1000
    rows = rows_of(producer)
    assert sorted(value for *_, value in rows) == sorted(b"v%d" % n for n in range(1000))
    for _, partition, key, _ in rows:
        assert partition == _core.partition_for_key(key, 3)
    for key in {row[2] for row in rows}:
        numbers = [int(value[1:]) for _, _, other, value in rows if other == key]
        assert numbers == sorted(numbers)


def test_attempts_are_published_in_task_order_with_their_offsets(tmp_path):
    second = stage(tmp_path, keyed(10, 100), name="1-7", order=1, limit=0)
    first = stage(tmp_path, keyed(10), name="0-3", order=0)
    producer = FakeProducer()
    publish(producer, str(tmp_path), [second, first], offsets={"x": 5}, group="g")
    assert producer.offsets == ({"x": 5}, "g")
    for partition in range(3):
        numbers = [
            int(value[1:]) for _, number, _, value in rows_of(producer) if number == partition
        ]
        assert numbers == sorted(numbers)


def test_rows_without_a_key_reach_every_partition(tmp_path):
    table = pa.table({"value": pa.array([b"x" * 500] * 400, pa.binary())})
    producer = FakeProducer()
    publish(producer, str(tmp_path), [stage(tmp_path, table)])
    counts = {
        key: sum(decode_batch(batch).count for batch in batches)
        for key, batches in producer.batches.items()
    }
    assert set(counts) == {("t", 0), ("t", 1), ("t", 2)} and sum(counts.values()) == 400


def test_columns_of_the_kafka_sink_are_applied(tmp_path):
    table = pa.table(
        {
            "topic": ["t", "u"],
            "partition": pa.array([2, None], pa.int32()),
            "key": pa.array(["k", None]),
            "value": pa.array([None, "v"]),
            "timestamp": pa.array([1_500, None], pa.timestamp("us", tz="UTC")),
            "headers": pa.array(
                [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    producer = FakeProducer()
    publish(producer, str(tmp_path), [stage(tmp_path, table, topic=None, compression="zstd")])
    record = decode_batch(producer.batches["t", 2][0]).records[0]
    assert (record.key, record.value, record.timestamp) == (b"k", None, 1)
    assert [tuple(header) for header in record.headers] == [("h", b"1"), ("h", None)]
    record = decode_batch(producer.batches["u", 0][0]).records[0]
    assert (record.key, record.value) == (None, b"v") and record.timestamp > 1_600_000_000_000


def test_batches_stay_below_the_size_limit_of_the_topic(tmp_path):
    table = pa.table({"value": pa.array([b"x" * 300] * 20, pa.binary())})
    producer = FakeProducer()
    publish(producer, str(tmp_path), [stage(tmp_path, table, topic="u")])
    assert all(len(batch) <= 1000 for batch in producer.batches["u", 0])


@pytest.mark.parametrize(
    ("columns", "topic", "error", "words"),
    [
        (
            {"value": [b"x"], "topic": pa.array([None], pa.string())},
            None,
            ConfigError,
            "'topic' is null",
        ),
        (
            {"value": [b"x"], "topic": ["nowhere"]},
            None,
            UnknownTopicOrPartition,
            "column 'topic' is 'nowhere'",
        ),
        (
            {"value": [b"x"], "topic": ["__consumer_offsets"]},
            None,
            InvalidTopic,
            "column 'topic' is '__consumer_offsets', an internal topic",
        ),
        (
            {"value": [b"x"], "partition": pa.array([3], pa.int32())},
            "t",
            ConfigError,
            "partitions 0 to 2",
        ),
        ({"value": [b"x" * 1000]}, "u", RecordTooLarge, "max.message.bytes = 1000"),
    ],
)
def test_a_row_that_cannot_be_written_is_rejected(tmp_path, columns, topic, error, words):
    with pytest.raises(error, match=words):
        stage(tmp_path, pa.table(columns), topic=topic)


def test_a_damaged_staged_file_is_not_published(tmp_path):
    attempt = stage(tmp_path, keyed(100), limit=0)
    with pytest.raises(CorruptRecord, match="CRC"):
        publish(FakeProducer(), str(tmp_path), [replace(attempt, manifest_crc=1)])
    path = tmp_path / staging.STAGING / "job" / "0-1.0.batches"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(CorruptRecord, match="bytes, the task wrote"):
        publish(FakeProducer(), str(tmp_path), [attempt])


def flip(path):
    """Changes a byte of a record in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def blank(path):
    """What a file system shows that has a file's size and lost its bytes."""
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("segment", [1, staging.SEGMENT_BYTES])
@pytest.mark.parametrize("name", ["1-1.0.batches", "1-1.1.batches", "1-1.manifest"])
@pytest.mark.parametrize("harm", [flip, blank, os.unlink, lambda path: path.write_bytes(b"")])
def test_a_lost_staged_file_is_detected_and_nothing_becomes_visible(
    log, monkeypatch, name, harm, segment
):
    monkeypatch.setattr(staging, "PIECE_BYTES", 1)
    monkeypatch.setattr(publishing, "PIECE_BYTES", 1)
    monkeypatch.setattr(staging, "_HELD_BYTES", 4000)
    log.create_topic("t", 3)
    # Of a segment to be, the first piece is the empty one of those that are not.
    name = name.replace(".0.", ".2.") if segment == 1 else name
    attempts = [
        stage(log.path, keyed(1000), name=f"{n}-1", order=n, limit=0, rows=100, segment=segment)
        for n in range(2)
    ]
    harm(Path(log.path) / staging.STAGING / "job" / name)
    with log.producer({"transactional.id": "x"}) as producer:
        producer.init_transactions()
        with pytest.raises(CorruptRecord):
            publish(producer, log.path, attempts)
    assert values(log, "t") == []


def test_other_valid_batches_in_a_piece_are_not_accepted(tmp_path):
    attempt = stage(tmp_path, keyed(100), limit=0)
    path = tmp_path / staging.STAGING / "job" / "0-1.0.batches"
    first = _core.iter_batches(path.read_bytes())[0]
    fewer = bytearray(first.tobytes())
    fewer[57:61] = (first.count - 1).to_bytes(4, "big")
    fewer[17:21] = _core.crc32c(bytes(fewer[21:])).to_bytes(4, "big")
    with path.open("r+b") as file:
        file.write(fewer)
    with pytest.raises(CorruptRecord, match="99 records are staged, the tasks wrote 100"):
        publish(FakeProducer(), str(tmp_path), [attempt])


def test_an_error_raised_by_close_fails_the_attempt(tmp_path, monkeypatch):
    def refuse(fd):
        name = os.readlink(f"/proc/self/fd/{fd}")
        close(fd)
        if name.endswith(what):
            raise OSError(5, "Input/output error")

    close = os.close
    monkeypatch.setattr(os, "close", refuse)
    for what in (".batches", ".manifest"):
        with pytest.raises(StorageError, match=what):
            stage(tmp_path, keyed(100), limit=0)


@given(
    st.lists(st.lists(st.integers(1, 400), max_size=8), min_size=1, max_size=4),
    st.integers(0, 3000),
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.integers(1, 2000),
    st.integers(1, 600),
    st.integers(1, 3000),
    st.integers(1, 3),
    st.integers(0, 3000),
)
def test_pieces_and_sections_change_neither_rows_nor_order(
    sizes, limit, held, piece, share, write, segment, own, kept
):
    """This holds for any sizes of batches, writes, pieces, sections and windows.

    It also holds for any share that becomes a segment or is left to the end of the job.
    """
    constants = [
        (staging, "_OWN_PIECES", own),
        (staging, "_OWN_BYTES", piece),
        (staging, "_WRITEBACK_BYTES", share),
        (staging, "_HELD_BYTES", held),
        (staging, "_WRITE_BYTES", write),
        (staging, "PIECE_BYTES", piece),
        (publishing, "PIECE_BYTES", piece),
        (publishing, "_SHARE_BYTES", share),
        (publishing, "_KEPT_BYTES", kept),
        (publishing, "GROUP_BYTES", share),
    ]
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as directory:
        for module, name, value in constants:
            patched.setattr(module, name, value)
        expected = {}
        attempts = []
        for order, attempt in enumerate(sizes):
            out = staging.AttemptWriter(
                directory, "job", f"a-{order}", order, limit, segment_bytes=segment
            )
            for number, size in enumerate(attempt):
                value = b"%d.%d:" % (order, number) + bytes(size)
                out.add("t", size % 3, _core.build_batch([(1, None, value, ())]), 1)
                expected.setdefault(("t", size % 3), []).append(value)
            attempts.append(out.finish())
        producer = FakeProducer()
        assert publish(producer, directory, attempts[::-1]) == sum(map(len, sizes))
        found = {}
        for topic, partition, _, value in rows_of(producer):
            found.setdefault((topic, partition), []).append(value)
        assert found == expected
        left = sum(path.stat().st_size for path in Path(directory).rglob("*.batches"))
        assert left <= kept, "more of what was published is still there"


def segments_of(log, topic):
    return [offsets_in(os.path.join(log.path, f"{topic}-{n}"), LOG) for n in range(3)]


@pytest.mark.parametrize("durability", ["strict", "os"])
def test_large_pieces_become_segments_and_a_later_job_appends_to_them(tmp_path, durability):
    with eoslog.open(tmp_path, durability=durability) as log, log.producer() as other:
        log.create_topic("t", 3)
        with log.producer({"transactional.id": "x"}) as producer:
            producer.init_transactions()
            for job in range(3):
                attempts = [
                    stage(
                        log.path,
                        keyed(5000, 5000 * (2 * job + n)),
                        name=f"{job}-{n}",
                        order=n,
                        limit=0,
                        segment=20_000,
                    )
                    for n in range(2)
                ]
                assert publish(producer, log.path, attempts) == 10_000
                other.produce("t", b"other")
                other.flush()
        # The first file of each partition became a segment of an empty log; the small rest was
        # appended.
        assert [len(bases) for bases in segments_of(log, "t")] == [6, 6, 6]
        left = (tmp_path / staging.STAGING / "job").glob("*.batches")
        assert all(path.stat().st_size < 20_000 for path in left), "only what is no segment"
        assert sorted(v for v in values(log, "t") if v != b"other") == sorted(
            b"v%d" % n for n in range(30_000)
        )
        assert values(log, "t").count(b"other") == 3
        assert log.check(full=True).problems == []
        before = [log.offsets("t", n) for n in range(3)]
    with eoslog.open(tmp_path) as log:
        assert [log.offsets("t", n) for n in range(3)] == before
        assert log.check(full=True).problems == []


def test_no_row_of_a_segment_is_visible_if_its_transaction_is_aborted(log):
    log.create_topic("t", 3)
    attempts = [
        stage(log.path, keyed(3000, 3000 * n), name=f"0-{n}", order=n, limit=0, segment=1)
        for n in range(2)
    ]
    with log.producer({"transactional.id": "x"}) as producer:
        producer.init_transactions()
        files.arm_failpoint("staging.published", "interrupt")
        try:
            with pytest.raises(KeyboardInterrupt):
                publish(producer, log.path, attempts)
        finally:
            files.disarm_failpoints()
        assert any(len(bases) > 1 for bases in segments_of(log, "t"))
        assert values(log, "t") == []
        assert log.check(full=True).problems == []
        again = stage(log.path, keyed(10), name="1-0", order=0, limit=0, segment=1)
        assert publish(producer, log.path, [again]) == 10
        assert len(values(log, "t")) == 10


@pytest.mark.parametrize("rows", [10, 300, 5000])
def test_batch_size_does_not_depend_on_the_rows_per_call(tmp_path, rows):
    attempt = stage(tmp_path, keyed(5000), rows=rows)
    producer = FakeProducer()
    publish(producer, str(tmp_path), [attempt])
    held = [len(batches) for batches in producer.batches.values()]
    assert held == [1, 1, 1] if rows >= 256 else max(held) > 0
    assert len(rows_of(producer)) == 5000


def test_orphans_are_removed_only_after_their_age_limit(tmp_path):
    stage(tmp_path, keyed(100), limit=0)
    assert staging.sweep(str(tmp_path), 3600) == []
    folder = tmp_path / staging.STAGING / "job"
    for path in [*folder.iterdir(), folder]:
        os.utime(path, (1, 1))
    assert staging.sweep(str(tmp_path), 3600) == ["job"]
    assert not folder.exists()


@pytest.mark.parametrize("made_by", ["driver", "task"])
def test_a_job_is_kept_for_as_long_as_it_requested(tmp_path, made_by):
    if made_by == "driver":
        staging.begin_job(str(tmp_path), "job", 86_400)
    asked = 86_400 if made_by == "task" else None
    out = staging.AttemptWriter(str(tmp_path), "job", "0-1", 0, 0, retention_s=asked)
    out.add("t", 0, b"x" * 100, 1)
    out.finish()
    folder = tmp_path / staging.STAGING / "job"

    def grows_old(seconds):
        then = time.time() - seconds
        for path in [*folder.iterdir(), folder]:
            os.utime(path, (then, then))

    grows_old(7200)
    assert staging.sweep(str(tmp_path), 3600) == [], "another job's hour is not this one's"
    grows_old(90_000)
    assert staging.sweep(str(tmp_path), 100_000) == []
    assert staging.sweep(str(tmp_path), 3600) == ["job"]


def test_discarding_twice_has_no_effect(tmp_path):
    attempt = stage(tmp_path, keyed(100), limit=0)
    staging.discard(str(tmp_path), [attempt, attempt])
    staging.discard_job(str(tmp_path), "job")
    staging.discard_job(str(tmp_path), "job")
    assert list((tmp_path / staging.STAGING).iterdir()) == []


def test_a_name_cannot_leave_the_staging_folder(tmp_path):
    with pytest.raises(ConfigError, match="cannot name"):
        staging.AttemptWriter(str(tmp_path), "..", "x", 0)
    with pytest.raises(ConfigError, match="cannot name"):
        staging.AttemptWriter(str(tmp_path), "job", "a/b", 0)


def test_a_retired_job_is_hidden_immediately_and_its_files_removed_later(tmp_path):
    stage(tmp_path, keyed(100), limit=0)
    stage(tmp_path, keyed(100), limit=0, name="0-2")
    thread = staging.retire(str(tmp_path), ["job", "never made"], 3600)
    assert not (tmp_path / staging.STAGING / "job").exists()
    thread.join()
    assert list((tmp_path / staging.STAGING).iterdir()) == []


def test_files_of_a_retired_job_of_a_dead_process_are_removed_at_any_age(tmp_path):
    stage(tmp_path, keyed(100), limit=0)
    folder = tmp_path / staging.STAGING
    (folder / "job").rename(folder / "job.5eed.done")
    stage(tmp_path, keyed(100), limit=0)
    assert staging.sweep(str(tmp_path), 3600) == ["job.5eed.done"]
    assert [path.name for path in folder.iterdir()] == ["job"]


def test_an_attempt_that_outlives_its_job_fails_and_leaves_nothing(tmp_path):
    staging.begin_job(str(tmp_path), "job")
    late = staging.AttemptWriter(str(tmp_path), "job", "0-1", 0, 0, make_folder=False)
    staging.retire(str(tmp_path), ["job"], 3600).join()
    with pytest.raises((FileNotFoundError, StorageError)):
        late.add("t", 0, b"x" * 100, 1)
        late.finish()
    assert list((tmp_path / staging.STAGING).iterdir()) == []


def test_a_staged_attempt_calls_no_flush(tmp_path):
    staging.begin_job(str(tmp_path), "job")
    for call in ("fdatasync", "fsync"):
        files.arm_failpoint(call, "EIO")
    try:
        attempt = stage(tmp_path, keyed(1000), limit=0)
    finally:
        files.disarm_failpoints()
    assert publish(FakeProducer(), str(tmp_path), [attempt]) == 1000
