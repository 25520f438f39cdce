"""The fields of a batch header that no CRC covers never give wrong records.

The fields are base offset, length, leader epoch and magic. Whichever bit is flipped, each reader
returns the right records, or some of them and a typed error.
"""

from __future__ import annotations

import logging
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import TopicPartition, _core
from eoslog.errors import CorruptRecord, EoslogError, KafkaError, StorageError
from eoslog.storage.format import checkpoints
from eoslog.storage.log.reader import HEADER_SIZE
from tests.captures import unpack
from tests.paths import KAFKA_DATA

BATCHES = 9
FIELDS = {
    "base offset": range(8),
    "length": range(8, 12),
    "leader epoch": range(12, 16),
    "magic": range(16, 17),
}
Row = tuple[int, bytes, Any]

EPOCH = "leader epoch"


def rows_of(records: Any) -> list[Row]:
    return [(r.offset, r.value, r.leader_epoch) for r in records]


def consumed(directory: Path, out: list[Row]) -> None:
    with eoslog.open(directory) as log, log.consumer() as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        while record := consumer.poll(timeout=0.05):
            out.append((record.offset, record.value, record.leader_epoch))


def read(directory: Path, out: list[Row]) -> None:
    with eoslog.open(directory) as log:
        for record in log.read("t"):
            out.append((record.offset, record.value, record.leader_epoch))


def scanned(directory: Path, out: list[Row]) -> None:
    with eoslog.open(directory) as log:
        for record in log.scan("t", isolation="read_uncommitted").records():
            out.append((record.offset, record.value, record.leader_epoch))


def columns(directory: Path, out: list[Row]) -> None:
    pytest.importorskip("pyarrow")
    with eoslog.open(directory) as log:
        table(log.scan("t"), out)


def table(scan: Any, out: list[Row]) -> None:
    for batch in scan:
        found = zip(
            batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
        )
        out += [(offset, value, 0) for offset, value in found]


def segments(directory: Path, out: list[Row]) -> None:
    for record in eoslog.read_segments(directory / "t-0").records():
        out.append((record.offset, record.value, record.leader_epoch))


def segment_columns(directory: Path, out: list[Row]) -> None:
    pytest.importorskip("pyarrow")
    table(eoslog.read_segments(directory / "t-0", isolation="read_uncommitted"), out)


def spark(layout: str) -> Callable[[Path, list[Row]], None]:
    def run(directory: Path, out: list[Row]) -> None:
        pytest.importorskip("pyspark")
        from pyspark_eoslog import DefaultSource

        path = str(directory)
        source = DefaultSource({"path": path, "layout": layout, "subscribe": "t"})
        reader = source.reader(source.schema())
        for part in reader.partitions():
            for batch in reader.read(part):
                names = batch.schema.names
                found = zip(batch.column(names.index("offset")).to_pylist(),
                            batch.column(names.index("value")).to_pylist(), strict=True)  # fmt: skip
                out += [(offset, value, 0) for offset, value in found]

    return run


READERS: dict[str, Callable[[Path, list[Row]], None]] = {
    "read": read,
    "records": scanned,
    "scan": columns,
    "consumer": consumed,
    "read_segments": segments,
    "read_segments_columns": segment_columns,
    "spark": spark("eoslog"),
    "spark_kafka": spark("kafka"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log of one partition in several segments, of three batches each."""
    path = tmp_path_factory.mktemp("whole") / "log"
    with eoslog.open(path) as log:
        log.create_topic("t", config={"segment.bytes": "700"})
        with log.producer() as producer:
            for i in range(BATCHES):
                producer.produce_many("t", [b"%d-%d" % (i, k) + bytes(40) for k in range(3)])
                producer.flush()
    return path


@pytest.fixture
def directory(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "log")
    return tmp_path / "log"


def expected() -> list[Row]:
    return [(3 * i + k, b"%d-%d" % (i, k) + bytes(40), 0) for i in range(BATCHES) for k in range(3)]


def places(directory: Path) -> list[tuple[Path, int]]:
    """(file, byte) of each batch of the partition."""
    return [
        (path, batch.position)
        for path in sorted((directory / "t-0").glob("*.log"))
        for batch in _core.iter_batches(path.read_bytes())
    ]


def flip(place: tuple[Path, int], byte: int, bit: int) -> None:
    path, position = place
    data = bytearray(path.read_bytes())
    data[position + byte] ^= 1 << bit
    path.write_bytes(bytes(data))


_RECORDS = 4 * BATCHES
"""In batches of four: one flipped bit makes a batch end where the next one ends."""


def by_time(log: eoslog.Log) -> list[int]:
    """The offset of each record, found by its timestamp."""
    return [log.offset_for_time("t", 0, offset) for offset in range(_RECORDS)]


def in_ranges(log: eoslog.Log) -> list[int]:
    """The offset of each record, read alone; the read ends where the record's batch ends."""
    found: list[int] = []
    for offset in range(_RECORDS):
        scan = log.scan("t", start=offset & ~3, end=(offset & ~3) + 4)
        found.append([record.offset for record in scan.records()][offset % 4])
    return found


@pytest.mark.parametrize("ask", [by_time, in_ranges])
@pytest.mark.parametrize("roll", [True, False])
def test_field_A6_a_raised_base_offset_never_answers_a_bounded_read(
    ask: Callable[[eoslog.Log], list[int]], roll: bool, tmp_path: Path
) -> None:
    """Such a read ends with the batch, so that it needs no later one."""
    path, size = tmp_path / "log", "700" if roll else str(1 << 20)
    with eoslog.open(path) as log:
        log.create_topic("t", config={"segment.bytes": size, "index.interval.bytes": "100"})
        with log.producer(linger_ms=60_000) as producer:
            for offset in range(_RECORDS):
                producer.produce("t", b"%02d" % offset * 20, timestamp=offset)
                if offset % 4 == 3:
                    producer.flush()
    for place in places(path):
        for bit in range(8):
            flip(place, 7, bit)
            try:
                with eoslog.open(path, read_only=True) as log:
                    found = ask(log)
            except CorruptRecord:
                pass
            else:
                assert found == list(range(_RECORDS)), (place, bit)
            flip(place, 7, bit)


@pytest.mark.parametrize("roll", [True, False])
def test_field_A6_a_read_before_a_cut_header_is_right_the_next_raises(
    roll: bool, tmp_path: Path
) -> None:
    """The header of the next batch is compared, and the file ends in it."""
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t", config={"index.interval.bytes": "100"})
        with log.producer(linger_ms=60_000) as producer:
            for offset in range(16):
                producer.produce("t", b"%02d" % offset * 20)
                if offset % 4 == 3:
                    producer.flush()
        if roll:
            log._engine.partition("t", 0).roll()
        path, position = places(tmp_path / "log")[2]
        for size in range(position + HEADER_SIZE - 1, position - 1, -1):
            os.truncate(path, size)
            records = log.scan("t", start=0, end=8).records()
            assert [record.offset for record in records] == list(range(8))
            with pytest.raises(CorruptRecord, match="run `eoslog repair`"):
                list(log.scan("t", start=8).records())


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("reader", READERS)
def test_field_A6_a_flipped_header_bit_never_returns_wrong_records(
    reader: str, field: str, whole: Path, directory: Path
) -> None:
    """First, middle and last batch; the low, a middle and the top bit of each byte."""
    count = len(places(whole))
    for batch in (0, count // 2, count - 1):
        for byte in FIELDS[field]:
            for bit in (0, 5, 7):
                shutil.rmtree(directory)
                shutil.copytree(whole, directory)
                flip(places(directory)[batch], byte, bit)
                out: list[Row] = []
                failed = None
                try:
                    READERS[reader](directory, out)
                except EoslogError as error:
                    failed = error
                what = (batch, byte, bit, failed)
                if reader == "spark_kafka" and batch == count - 1 and failed is None:
                    continue  # a broker's last batch may be torn: the read ends before it
                assert out == expected()[: len(out)], what
                if field == EPOCH:
                    assert failed is None, what
                if failed is None:
                    assert len(out) == len(expected()), what
                else:
                    assert isinstance(failed, (KafkaError, StorageError)), what


@pytest.mark.parametrize("reader", READERS)
def test_field_A6_wrong_leader_epochs_log_one_warning_for_each_partition(
    reader: str, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = places(directory)
    flip(found[2], 12, 0)
    flip(found[5], 13, 3)
    caplog.set_level(logging.WARNING)
    out: list[Row] = []
    READERS[reader](directory, out)
    assert out == expected()
    warnings = [r.getMessage() for r in caplog.records if "leader epoch" in r.getMessage()]
    shows_epochs = reader in ("read", "records", "consumer", "read_segments")
    assert len(warnings) == shows_epochs
    for message in warnings:
        assert message.startswith("t-0: batch at offset 6 has leader epoch 16777216")
        assert "leader-epoch-checkpoint says 0" in message


@pytest.mark.parametrize("opened", [False, True])
def test_field_A6_check_reports_the_offset_and_both_leader_epochs(
    opened: bool, directory: Path
) -> None:
    found = places(directory)
    flip(found[2], 12, 0)
    flip(found[5], 13, 3)
    flip(found[6], 13, 3)
    if opened:
        with eoslog.open(directory) as log:
            problems = log.check().problems
    else:
        problems = eoslog.check(directory).problems
    told = [(p.path, p.position, p.message) for p in problems]
    assert [(Path(path), position) for path, position, _ in told] == [
        found[2], found[5], *([found[6]] if found[5][0] != found[6][0] else [])
    ]  # fmt: skip
    assert "t-0: batches of offsets 6 to 8 have leader epoch 16777216" in told[0][2]
    assert "leader-epoch-checkpoint says 0" in told[0][2]
    assert "t-0: batches of offsets 15 to" in told[1][2]
    assert "have leader epoch 524288, but" in told[1][2]


def test_field_A6_dump_shows_the_stored_leader_epoch(directory: Path) -> None:
    flip(places(directory)[2], 12, 0)
    shown = [
        b["leader_epoch"]
        for s in eoslog.inspect(directory / "t-0")["segments"]
        for b in s["batches"]
    ]
    assert shown == [0, 0, 16777216, *[0] * (len(shown) - 3)]


@pytest.mark.parametrize(
    "text", ["", "0\n2\n3 0\n1 5\n", "0\n1\n4 0\n", "0\n1\n9999999999 0\n", None]
)
@pytest.mark.parametrize("reader", ["read", "consumer", "read_segments"])
def test_field_A6_a_damaged_epoch_checkpoint_never_returns_a_wrong_epoch(
    reader: str, text: str | None, directory: Path
) -> None:
    path = directory / "t-0" / checkpoints.LEADER_EPOCH_CHECKPOINT
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    out: list[Row] = []
    READERS[reader](directory, out)
    assert [row[:2] for row in out] == [row[:2] for row in expected()]
    assert {row[2] for row in out} <= {None, 0}


def test_field_A6_new_records_have_the_epoch_of_the_metadata(directory: Path) -> None:
    (directory / "t-0" / checkpoints.LEADER_EPOCH_CHECKPOINT).write_text("0\n1\n8 0\n")
    with eoslog.open(directory) as log, log.producer() as producer:
        producer.produce("t", b"more")
        producer.flush()
    shown = [
        b["leader_epoch"]
        for s in eoslog.inspect(directory / "t-0")["segments"]
        for b in s["batches"]
    ]
    assert set(shown) == {0}


def test_field_A6_a_record_without_an_epoch_commits_as_in_kafka() -> None:
    from eoslog.client.offset_arguments import offsets_of

    record = eoslog.Record("t", 0, 4)
    assert record.leader_epoch is None
    [(_, after)] = offsets_of(record).items()
    assert (after.offset, after.leader_epoch) == (5, -1)


@pytest.mark.parametrize("bit", [0, 3, 7])
@pytest.mark.parametrize("byte", range(12, 16))
def test_field_A6_batches_of_a_broker_have_the_epoch_of_its_checkpoint(
    byte: int, bit: int, tmp_path: Path
) -> None:
    source = KAFKA_DATA / "segments" / "plain-0"
    shutil.copytree(source, tmp_path / "plain-0")
    before = rows_of(eoslog.read_segments(tmp_path / "plain-0").records())
    epoch = before[0][2]
    assert [before[n][2] for n in (0, 71, 72, 136, 137)] == [0, 0, 1, 1, 5]
    flip((tmp_path / "plain-0" / f"{0:020}.log", 0), byte, bit)
    assert rows_of(eoslog.read_segments(tmp_path / "plain-0").records()) == before
    problems = eoslog.check(tmp_path / "plain-0").problems
    [told] = [p.message for p in problems if "leader epoch" in p.message]
    [stored] = struct.unpack_from(">i", (tmp_path / "plain-0" / f"{0:020}.log").read_bytes(), 12)
    assert told.startswith("plain-0: batches of offsets 0 ")
    assert f"have leader epoch {stored}, but" in told
    assert f"says {epoch}" in told


def test_field_A6_batches_of_several_leaders_have_the_epochs_of_their_ranges() -> None:
    def batch(offset: int, epoch: int) -> bytes:
        return bytes(
            _core.build_batch([(1, None, b"v", ())] * 2, base_offset=offset, leader_epoch=epoch)
        )

    told: list[tuple[int, int, int]] = []

    def epochs_of(*batches: tuple[int, int], entries: Any = ((1, 0), (4, 4), (9, 8))) -> list[Any]:
        table = _core.LeaderEpochs(entries, lambda *difference: told.append(difference))
        data = b"".join(batch(*one) for one in batches)
        found, _ = _core.decode_records("t", 0, data, 0, 100, epochs=table)
        return [record.leader_epoch for record in found[::2]]

    assert epochs_of((0, 1), (2, 1), (4, 4), (6, 4), (8, 9), (10, 9)) == [1, 1, 4, 4, 9, 9]
    assert told == []
    assert epochs_of((0, 1), (2, 3), (4, 4), (6, 4), (8, 8), (10, 9)) == [1, 1, 4, 4, 9, 9]
    assert told == [(2, 3, 1)]
    # Several batches that say the same: the checkpoint may be what is damaged.
    assert epochs_of((0, 1), (4, 5), (6, 5), (8, 9)) == [1, None, None, 9]
    # A deletion of records moves the first entry into a batch; offsets before it have no entry.
    assert epochs_of((0, 1), (2, 1), (4, 4), entries=[(1, 3), (4, 4)]) == [None, 1, 4]
    assert epochs_of((0, -1), (4, 4)) == [None, 4]
    assert epochs_of((0, 1), entries=[]) == [None]


@pytest.mark.parametrize("capture", ["broker-3.9.2", "broker-4.3.1", "world-3.9.2"])
def test_field_A6_every_epoch_of_a_broker_equals_that_of_its_checkpoint(
    capture: str, tmp_path: Path
) -> None:
    unpack(KAFKA_DATA / f"{capture}.tar.xz", tmp_path)
    checked = 0
    for place in sorted(tmp_path.rglob("leader-epoch-checkpoint")):
        if any(path.stat().st_size for path in place.parent.glob("*.log")):
            report = eoslog.check(place.parent, read_only_anyway=True)
            assert not [p for p in report.problems if "leader epoch" in p.message], place
            checked += report.batches
    assert checked
