"""Scans over files of a partition that is not open: Kafka's, and broken ones."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eoslog import errors
from eoslog.admin.inspect import inspect
from eoslog.client.scan.scan import Scan
from eoslog.client.scan.segment_scan import read_segments
from eoslog.model import TopicPartition
from tests.paths import KAFKA_DATA
from tests.reference import codec

pa = pytest.importorskip("pyarrow")

SEGMENTS = KAFKA_DATA / "segments"
TS = 1_700_000_000_000


def wanted(name: str) -> dict[str, Any]:
    return json.loads((SEGMENTS / f"{name}.expected.json").read_text())


def offsets(scan: Scan) -> list[int]:
    return [offset for batch in scan for offset in batch.column("offset").to_pylist()]


def write_partition(directory: Path, *segments: list[bytes], first: int = 0) -> Path:
    """A partition directory of batches of two records each; offsets are assigned."""
    directory.mkdir(parents=True)
    offset = first
    for batches in segments:
        stamped = b""
        base = offset
        for batch in batches:
            stamped += offset.to_bytes(8, "big") + batch[8:]
            offset += int.from_bytes(batch[23:27], "big") + 1
        (directory / f"{base:020}.log").write_bytes(stamped)
    return directory


def two(**options: Any) -> bytes:
    return codec.encode_batch([(TS, b"k", b"v" * 30, ()), (TS + 1, None, None, ())], **options)


@pytest.mark.parametrize("binary", ["view", "copy"])
@pytest.mark.parametrize("name", ["plain-0", "txn-0"])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_each_isolation_level_shows_the_records_that_kafka_shows(
    name: str, isolation: str, binary: str
) -> None:
    expected = wanted(name)
    scan = read_segments(SEGMENTS / name, isolation=isolation, binary=binary)
    table = scan.to_table()
    table.validate(full=True)
    assert table.column("offset").to_pylist() == expected[f"{isolation}_offsets"]
    records = {
        record["offset"]: record
        for segment in expected["segments"]
        for batch in segment["batches"]
        for record in batch["records"]
    }
    for row in table.to_pylist():
        record = records[row["offset"]]
        assert (row["topic"], row["partition"]) == (name[:-2], 0)
        assert [None if row[c] is None else row[c].hex() for c in ("key", "value")] == [
            record["key"], record["value"],
        ]  # fmt: skip
        assert row["timestamp"].timestamp() * 1000 == pytest.approx(record["timestamp"], abs=0.5)
        found = [
            [h["key"], None if h["value"] is None else h["value"].hex()] for h in row["headers"]
        ]
        assert found == record["headers"]


@pytest.mark.slow
def test_a_range_returns_the_same_records_as_a_cut_of_all() -> None:
    everything = wanted("plain-0")["read_committed_offsets"]
    for start in range(0, 201, 7):
        for end in (start, start + 1, start + 40, None):
            cut = [o for o in everything if o >= start and (end is None or o < end)]
            assert offsets(read_segments(SEGMENTS / "plain-0", start=start, end=end)) == cut
    tp = TopicPartition("plain", 0)
    assert offsets(read_segments(SEGMENTS / "plain-0", start={tp: 190}, end={tp: 195})) == list(
        range(190, 195)
    )


@pytest.mark.parametrize("rows", [1, 3, 10, 1000])
def test_batches_have_at_most_the_requested_rows(rows: int) -> None:
    batches = list(
        read_segments(SEGMENTS / "plain-0", batch_rows=rows, columns=["offset", "value"])
    )
    assert all(0 < batch.num_rows <= rows for batch in batches)
    assert [o for b in batches for o in b.column("offset").to_pylist()] == list(range(200))


def test_a_single_segment_file_uses_the_markers_of_the_next() -> None:
    expected = wanted("txn-0")["read_committed_offsets"]
    for base in (0, 23):
        path = SEGMENTS / "txn-0" / f"{base:020}.log"
        limits = (0, 23) if base == 0 else (23, 41)
        assert offsets(read_segments(path)) == [o for o in expected if limits[0] <= o < limits[1]]


def test_the_schema_is_the_documented_one() -> None:
    scan = read_segments(SEGMENTS / "plain-0")
    binary = pa.binary_view()
    assert scan.schema == pa.schema([
        ("topic", pa.dictionary(pa.int32(), pa.utf8())), ("partition", pa.int32()), ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")), ("timestamp_type", pa.int8()), ("key", binary),
        ("value", binary), ("headers", pa.list_(pa.struct([("key", pa.utf8()), ("value", binary)]))),
    ])  # fmt: skip
    copied = read_segments(SEGMENTS / "plain-0", binary="copy", columns=["value", "topic"])
    assert copied.schema == pa.schema([
        ("value", pa.binary()), ("topic", pa.dictionary(pa.int32(), pa.utf8())),
    ])  # fmt: skip


def test_a_scan_can_be_read_repeatedly_through_the_arrow_protocol() -> None:
    scan = read_segments(SEGMENTS / "txn-0", columns=["offset", "topic"])
    expected = wanted("txn-0")["read_committed_offsets"]
    assert pa.table(scan).column("offset").to_pylist() == expected
    assert pa.RecordBatchReader.from_stream(scan).read_all().num_rows == len(expected)
    assert offsets(scan) == offsets(scan) == expected


def test_values_outlive_the_scan_and_the_mapping(tmp_path: Path) -> None:
    directory = write_partition(tmp_path / "t-0", [two() for _ in range(10)])
    column = next(iter(read_segments(directory, columns=["value"]))).column(0)
    shutil.rmtree(directory)
    assert column.to_pylist() == [b"v" * 30, None] * 10


def test_an_open_transaction_ends_a_read_committed_scan(tmp_path: Path) -> None:
    txn = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    directory = write_partition(tmp_path / "t-0", [two(), two(**txn)], [two()])
    assert offsets(read_segments(directory)) == [0, 1]
    assert offsets(read_segments(directory, end=100)) == [0, 1]
    assert offsets(read_segments(directory, isolation="read_uncommitted")) == list(range(6))


def test_a_torn_tail_is_skipped_but_an_earlier_one_raises(tmp_path: Path) -> None:
    directory = write_partition(tmp_path / "t-0", [two(), two()], [two(), two()])
    last = directory / f"{4:020}.log"
    last.write_bytes(last.read_bytes()[:-5])
    for isolation in ("read_committed", "read_uncommitted"):
        assert offsets(read_segments(directory, isolation=isolation)) == list(range(6))
    first = directory / f"{0:020}.log"
    first.write_bytes(first.read_bytes()[:-5])
    for isolation in ("read_committed", "read_uncommitted"):
        seen: list[int] = []
        with pytest.raises(
            errors.CorruptRecord, match=f"are not a complete batch .*{0:020}.log at"
        ):
            for batch in read_segments(directory, isolation=isolation):
                seen += batch.column("offset").to_pylist()
        assert seen == [0, 1]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("at", [8, 16, 70])
def test_records_before_damage_are_returned_first(tmp_path: Path, isolation: str, at: int) -> None:
    directory = write_partition(tmp_path / "t-0", [two(), two(), two()])
    log = directory / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[len(data) // 3 + at] ^= 0x80
    log.write_bytes(data)
    seen: list[int] = []
    with pytest.raises(errors.CorruptRecord):
        for batch in read_segments(directory, isolation=isolation):
            seen += batch.column("offset").to_pylist()
    assert seen == [0, 1]
    assert offsets(read_segments(directory, isolation=isolation, end=2)) == [0, 1]


def test_a_wrong_index_is_not_followed(tmp_path: Path) -> None:
    directory = write_partition(tmp_path / "t-0", [two() for _ in range(20)])
    size = len(two())
    for entry in ((9, 3 * size), (9, 7), (9, 10**6), (9, -1), (2**31 - 1, 0)):
        (directory / f"{0:020}.index").write_bytes(
            b"".join(n.to_bytes(4, "big", signed=True) for n in entry)
        )
        assert offsets(read_segments(directory, start=15)) == list(range(15, 40))
    (directory / f"{0:020}.index").write_bytes(
        (9).to_bytes(4, "big") + (4 * size).to_bytes(4, "big")
    )
    assert offsets(read_segments(directory, start=15)) == list(range(15, 40))


def test_an_empty_partition_has_no_rows_and_a_missing_file_raises(tmp_path: Path) -> None:
    directory = write_partition(tmp_path / "t-0", [], first=7)
    assert read_segments(directory).to_table().num_rows == 0
    with pytest.raises(errors.ConfigError, match="not a partition directory"):
        read_segments(tmp_path)
    with pytest.raises(errors.StorageError):
        read_segments(tmp_path / "nothing.log")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": ["offset", "vlaue"]}, "unknown column 'vlaue'"),
        ({"columns": []}, "at least one"),
        ({"columns": ["key", "key"]}, "none twice"),
        ({"binary": "both"}, '"view" or "copy"'),
        ({"isolation": "serializable"}, "read_uncommitted"),
        ({"batch_rows": 0}, "batch_rows"),
    ],
)
def test_wrong_scan_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.ConfigError, match=words):
        read_segments(SEGMENTS / "plain-0", **options)


@pytest.mark.slow
def test_a_missing_pyarrow_is_reported_in_one_line_with_the_extra() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import eoslog\n"
        "from eoslog.client.scan.segment_scan import read_segments\n"
        "try:\n    read_segments(sys.argv[1]).to_table()\n"
        "except eoslog.errors.ConfigError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(SEGMENTS / "plain-0")],
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = "pyarrow batches need the package 'pyarrow', which is missing; pip install pyarrow (or, in a checkout of eoslog, pip install '.[arrow]')"
    assert done.stdout.strip() == wanted


def test_read_segments_changes_no_file(tmp_path: Path) -> None:
    directory = shutil.copytree(SEGMENTS / "txn-0", tmp_path / "txn-0")
    before = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in directory.iterdir()}
    read_segments(directory).to_table()
    inspect(directory)
    assert {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in directory.iterdir()} == before


def test_bounds_by_partition_apply_and_other_bounds_are_rejected(tmp_path: Path) -> None:
    place = write_partition(tmp_path / "a-0", [two(), two()])
    assert offsets(read_segments(place, start={("a", 0): 1}, end={("a", 0): 3})) == [1, 2]
    for bound in ({"a-0": 1}, {("a", 0): "1"}, 1.5):
        with pytest.raises(errors.ConfigError, match=r"^start: .*expected"):
            read_segments(place, start=bound)
        with pytest.raises(errors.ConfigError, match=r"^end: .*expected"):
            read_segments(place, end=bound)


@pytest.mark.parametrize("call", [read_segments, inspect])
def test_read_segments_rejects_an_argument_that_is_not_a_path(call: Any) -> None:
    with pytest.raises(errors.ConfigError, match="path: expected a path, got None"):
        call(None)
