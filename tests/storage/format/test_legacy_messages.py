"""Messages of formats 0 and 1 are read as Kafka's own classes read them.

`tests/data/kafka/legacy/Legacy.java` made the segment with kafka-clients 3.9.2: both formats with
every codec they have (lz4 of format 0 with Kafka's wrong header checksum), LogAppendTime, gaps as
the cleaner leaves them, and format 2 after them, as in a log that was upgraded.
"""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from eoslog import errors
from eoslog.admin.inspect import inspect
from eoslog.client.scan.segment_scan import read_segments
from eoslog.storage.format import legacy_messages
from eoslog.storage.format.legacy_messages import LegacyBatch, as_v2
from tests.paths import KAFKA_DATA

LEGACY = KAFKA_DATA / "legacy"
LOG = LEGACY / "legacy-0" / f"{0:020}.log"
BYTES = LOG.read_bytes()


def wanted() -> list[dict[str, Any]]:
    return json.loads((LEGACY / "legacy-0.expected.json").read_text())["batches"]


def message(offset: int, magic: int = 1, value: bytes | None = b"v", attributes: int = 0) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", 5) if magic else b"")
    body += struct.pack(">i", -1)
    body += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def test_legacy_batches_read_as_kafka_reads_them() -> None:
    found = inspect(LOG)
    assert "corrupt" not in found
    assert len(found["batches"]) == len(wanted()) == 36
    for batch, expected in zip(found["batches"], wanted(), strict=True):
        kept = ("offset", "timestamp", "key", "value")
        batch["records"] = [{name: record[name] for name in kept} for record in batch["records"]]
        assert {name: batch[name] for name in expected} == expected
    assert {(b["magic"], b["compression"]) for b in found["batches"]} >= {
        (magic, codec) for magic in (0, 1) for codec in ("none", "gzip", "snappy", "lz4")
    }


@pytest.mark.parametrize("binary", ["view", "copy"])
def test_legacy_columns_have_the_types_of_format_2(binary: str) -> None:
    pytest.importorskip("pyarrow")
    scan = read_segments(LOG.parent, binary=binary)
    table = scan.to_table()
    table.validate(full=True)
    rows = [(row["offset"], row["key"], row["value"], row["headers"]) for row in table.to_pylist()]
    records = [record for batch in wanted() for record in batch["records"]]
    assert rows == [
        (
            r["offset"],
            None if r["key"] is None else bytes.fromhex(r["key"]),
            None if r["value"] is None else bytes.fromhex(r["value"]),
            [],
        )
        for r in records
    ]
    stamps = table.column("timestamp").cast("int64").to_pylist()
    assert stamps == [record["timestamp"] for record in records]
    types = {"NoTimestampType": 0, "CreateTime": 0, "LogAppendTime": 1}
    assert table.column("timestamp_type").to_pylist() == [
        types[batch["timestamp_type"]] for batch in wanted() for _ in batch["records"]
    ]


@pytest.mark.parametrize("start", [1, 5, 11, 47, 96, 107])
def test_a_scan_of_legacy_messages_starts_and_ends_at_any_offset(start: int) -> None:
    pytest.importorskip("pyarrow")
    offsets = [record["offset"] for batch in wanted() for record in batch["records"]]
    for isolation in ("read_committed", "read_uncommitted"):
        table = read_segments(LOG.parent, start=start, end=100, isolation=isolation).to_table()
        assert table.column("offset").to_pylist() == [o for o in offsets if start <= o < 100]


def test_conversion_in_small_pieces_gives_the_same_records() -> None:
    pieces, position = [], 0
    while legacy_messages.is_legacy(BYTES, position):
        made, end = as_v2(BYTES, position, 100)
        assert end > position
        pieces.append(made)
        position = end
    whole, stop = as_v2(BYTES, 0, 1 << 20)
    assert stop == position
    from eoslog import _core

    def records(data: bytes) -> list[Any]:
        return [record for batch in _core.iter_batches(data) for record in batch.records()]

    assert records(b"".join(pieces)) == records(whole)
    assert all(batch.valid for batch in _core.iter_batches(whole))


@pytest.mark.parametrize("position", range(0, 1200, 7))
def test_a_flipped_bit_in_a_message_raises_with_file_and_position(
    position: int, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / LOG.name
    damaged = bytearray(BYTES)
    damaged[position] ^= 0x10
    path.write_bytes(damaged)
    hit = next(b for b in wanted() if b["position"] <= position < b["position"] + b["size"])
    before = [
        r["offset"] for b in wanted() if b["position"] < hit["position"] for r in b["records"]
    ]
    found: list[int] = []
    try:
        for batch in read_segments(path, isolation="read_uncommitted"):
            found += batch.column("offset").to_pylist()
    except errors.CorruptRecord as error:
        assert str(path) in str(error)
        assert found == before or position - hit["position"] < 8
    else:  # the checksum does not cover an offset: a wrong one is not detected here
        assert position - hit["position"] < 8


@pytest.mark.parametrize("cut", range(0, len(BYTES), 31))
def test_a_truncated_legacy_file_ends_at_the_last_complete_message(
    cut: int, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / LOG.name
    path.write_bytes(BYTES[:cut])
    whole = [
        record["offset"]
        for batch in wanted()
        if batch["position"] + batch["size"] <= cut
        for record in batch["records"]
    ]
    for isolation in ("read_committed", "read_uncommitted"):
        assert read_segments(path, isolation=isolation).to_table().num_rows == len(whole)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (message(7, attributes=4), "codec of a message of format 1 is 4, expected 0 to 3"),
        (message(7, attributes=1, value=None), "has no value"),
        (message(7, attributes=1, value=zlib.compress(b"x")), "gzip payload"),
        (message(7)[:-1] + b"w", "message does not match its CRC-32"),
        (struct.pack(">qi", 7, 20) + message(7)[12:32], "expected at least 34"),
        (struct.pack(">qi", 7, 2_000_000_000) + message(7)[12:], None),
    ],
    ids=["codec", "empty wrapper", "no gzip", "crc", "too short", "absurd length"],
)
def test_malformed_legacy_messages_are_rejected(data: bytes, reason: str | None) -> None:
    if reason is None:  # longer than the file: a tail that was not written to its end
        assert as_v2(data, 0, 100) == (b"", 0)
        return
    with pytest.raises(errors.CorruptRecord, match=reason):
        as_v2(data, 0, 100)


def test_a_compressed_wrapper_inside_a_wrapper_is_rejected() -> None:
    inner = message(0, attributes=1, value=zlib.compress(b"", wbits=31))
    outer = message(9, attributes=1, value=zlib.compress(inner, wbits=31))
    with pytest.raises(
        errors.CorruptRecord, match="of format 1 contains a message of format 1 and codec 1"
    ):
        LegacyBatch(outer, 0).records()


def test_a_size_beyond_the_message_is_rejected_before_it_is_read() -> None:
    data = bytearray(message(7, value=b"abc"))
    data[30:34] = struct.pack(">i", 1 << 30)
    data[12:16] = struct.pack(">I", zlib.crc32(data[16:]))
    with pytest.raises(
        errors.CorruptRecord, match="value has 1073741824 bytes, but the message has 3 left"
    ):
        LegacyBatch(bytes(data), 0).records()


def test_message_formats_may_alternate_in_one_segment(tmp_path: Path) -> None:
    """A log whose message format was lowered again has format 1 after format 2."""
    pytest.importorskip("pyarrow")
    directory = tmp_path / "mixed-0"
    shutil.copytree(LOG.parent, directory)
    with (directory / LOG.name).open("ab") as file:
        file.write(message(200) + message(201, magic=0))
    for isolation in ("read_committed", "read_uncommitted"):
        offsets = read_segments(directory, isolation=isolation).to_table().column("offset")
        assert offsets.to_pylist()[-3:] == [107, 200, 201]
    assert inspect(directory)["log_end_offset"] == 202
