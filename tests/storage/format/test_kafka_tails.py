"""Tails of compressed payloads and damaged messages are read as Kafka reads them.

`tests/kafka/generators/Tails.java` made the bytes with Kafka's own classes and noted what these read.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from eoslog import _core, check, inspect, read_segments
from eoslog.errors import CorruptRecord
from eoslog.storage.format import codecs
from eoslog.storage.format.legacy_messages import LegacyBatch, as_v2
from tests.paths import KAFKA_DATA

TAILS = json.loads((KAFKA_DATA / "tails.json").read_text())


def segment(tmp_path: Path, data: bytes) -> Path:
    place = tmp_path / "t-0"
    place.mkdir()
    (place / f"{0:020}.log").write_bytes(data)
    return place


def decoded(data: bytes) -> list[int]:
    records, _ = _core.decode_records("t", 0, data, 0, 1 << 40)
    return [record.offset for record in records]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_field_D2_bytes_after_a_payload_are_read_as_kafka_reads_them(codec: str) -> None:
    ours, kafkas = {}, {}
    for name, tail, data, found in TAILS["batches"]:
        if name != codec:
            continue
        kafkas[tail] = found
        try:
            ours[tail] = len(decoded(bytes.fromhex(data)))
        except CorruptRecord:
            ours[tail] = None
    assert ours == kafkas
    assert 2 in kafkas.values() and kafkas["nothing"] == 2


@pytest.mark.parametrize("codec", ["gzip", "lz4"])
def test_field_D2_every_reader_passes_over_bytes_after_a_payload(
    codec: str, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    [data] = [
        bytes.fromhex(d) for c, tail, d, _ in TAILS["batches"] if (c, tail) == (codec, "30 letters")
    ]
    place = segment(tmp_path, data)
    for binary in ("view", "copy"):
        table = read_segments(place, binary=binary).to_table()
        assert table.column("value").to_pylist() == [b"one value", b"another value"]
    assert [record.offset for record in read_segments(place).records()] == [0, 1]
    assert len(inspect(place)["segments"][0]["batches"][0]["records"]) == 2


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_field_D2_a_bomb_after_a_payload_is_not_decompressed(codec: str) -> None:
    data = codecs.compress(codec, b"a" * 100) + codecs.compress(codec, bytes(10 << 20))
    if codec == "lz4":
        assert codecs.decompress(codec, data, 1 << 20) == b"a" * 100
        return
    with pytest.raises(CorruptRecord, match="more than 1048576 bytes"):
        codecs.decompress(codec, data, 1 << 20)


def test_field_D2_a_gzip_member_after_a_payload_needs_a_complete_header() -> None:
    first, more = codecs.compress("gzip", b"a"), zlib.compressobj(6, zlib.DEFLATED, -15)
    body = more.compress(b"b") + more.flush()
    end = zlib.crc32(b"b").to_bytes(4, "little") + (1).to_bytes(4, "little")
    head = b"\x1f\x8b\x08%c\x00\x00\x00\x00\x00\x03"
    crc = (zlib.crc32(head % 2) & 0xFFFF).to_bytes(2, "little")
    for extra in (head % 0, head % 2 + crc, head % 8 + b"name\0", head % 16 + b"comment\0",
                  head % 4 + b"\x03\x00abc"):  # fmt: skip
        assert codecs.decompress("gzip", first + extra + body + end) == b"ab"
    for wrong in (head % 2 + b"\x00\x00", b"\x1f\x8b\x07" + head[3:] % 0, head % 8):
        tail = wrong + (body + end).replace(b"\0", b"\1") + bytes(0)
        assert codecs.decompress("gzip", first + tail) == b"a"


def wrappers() -> list[Any]:
    return TAILS["wrappers"]


@pytest.mark.parametrize(("magic", "codec", "data", "kafkas"), wrappers())
def test_field_D3_the_crc_of_an_inner_message_is_checked_as_kafka_does(
    magic: int, codec: str, data: str, kafkas: list[list[Any]], tmp_path: Path
) -> None:
    raw = bytes.fromhex(data)
    batch = LegacyBatch(raw, 0)
    assert batch.valid
    assert [[record[0], whole] for record, whole in batch.unfolded()] == kafkas
    whole = all(valid for _, valid in kafkas)
    place = segment(tmp_path, raw)
    [shown] = inspect(place)["segments"][0]["batches"]
    assert [[r["offset"], r.get("valid", True)] for r in shown["records"]] == kafkas
    assert (shown["count"], shown["base_offset"]) == (3, 0)
    for full in (False, True):
        problems = [p for p in check(place, full=full).problems if p.path.endswith(".log")]
        assert bool(problems) is not whole
    if whole:
        assert [r.value for r in read_segments(place).records()] == [b"v1", b"v2", b"v3"]
        return
    [bad] = [offset for offset, valid in kafkas if not valid]
    assert f"message at offset {bad}" in problems[0].message
    assert f"message at offset {bad}" in shown["error"]
    with pytest.raises(
        CorruptRecord, match=f"message at offset {bad}, within a compressed message"
    ):
        as_v2(raw, 0, 1 << 20)
    with pytest.raises(CorruptRecord, match=rf"(?s)message at offset {bad}.*{0:020}\.log"):
        list(read_segments(place).records())


@pytest.mark.parametrize("magic", [0, 1])
def test_field_D3_the_crc_of_a_plain_message_is_checked(magic: int, tmp_path: Path) -> None:
    [raw] = [
        bytes.fromhex(d)
        for m, c, d, k in wrappers()
        if (m, c) == (magic, "gzip") and all(v for _, v in k)
    ]
    raw = raw[:-1] + bytes([raw[-1] ^ 1])
    place = segment(tmp_path, raw)
    assert [b["valid"] for b in inspect(place)["segments"][0]["batches"]] == [False]
    with pytest.raises(CorruptRecord, match="CRC-32"):
        list(read_segments(place).records())
