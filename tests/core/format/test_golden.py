"""The reference codec and the core agree with bytes that Kafka wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest

import eoslog.storage.format.codecs  # noqa: F401  (binds the codecs)
from eoslog import _core
from tests.paths import KAFKA_DATA
from tests.reference import codec

BATCHES = KAFKA_DATA / "batches"
NAMES = sorted(path.stem for path in BATCHES.glob("*.bin"))

A = (
    "00000000000000000000003affffffff02716a618900000000000000000000000003e800000000000003e8"
    "ffffffffffffffffffffffffffff0000000110000000026b027600"
)
B = (
    "000000000000006400000050000000090262b5bd660010000000020000018bcfe568000000018bcfe568050000"
    "0000000010920007" "7ffffffe000000031e000000026102310402680278026e010c000a020100000e00050402630100"
)  # fmt: skip
COMMIT = (
    "000000000000002a0000004200000000020e5f75350030000000000000018bcfe568000000018bcfe568000000"
    "0000000003e80005ffffffff000000012000000008000000010c00000000000300"
)
ABORT = (
    "000000000000002b000000420000000002fa61a37d0030000000000000018bcfe568000000018bcfe568000000"
    "0000000003e80005ffffffff000000012000000008000000000c00000000000300"
)
EMPTIED = (
    "0000000000000064000000310000000902b1e73768001000000002ffffffffffffffff0000018bcfe568050000"
    "0000000010920007" "7ffffffe00000000"
)  # fmt: skip
TS = 1_700_000_000_000
B_RECORDS: list[codec.Plain] = [
    (TS, b"a", b"1", [("h", b"x"), ("n", None)]),
    (TS + 5, None, b"", []),
    (TS - 3, b"c", None, []),
]
B_OPTIONS: dict[str, Any] = dict(
    base_offset=100,
    leader_epoch=9,
    producer_id=4242,
    producer_epoch=7,
    base_sequence=2147483646,
    transactional=True,
)
VARINTS = {
    0: "00", -1: "01", 1: "02", 63: "7e", -64: "7f", 64: "8001", 8191: "fe7f", 8192: "808001",
    2**31 - 1: "feffffff0f", -(2**31): "ffffffff0f",
}  # fmt: skip


def golden(name: str) -> tuple[bytes, list[dict[str, Any]]]:
    """The bytes of a fixture and what Kafka's own classes read in them."""
    return (BATCHES / f"{name}.bin").read_bytes(), json.loads(
        (BATCHES / f"{name}.json").read_text()
    )


def test_the_golden_fixtures_exist() -> None:
    assert len(NAMES) >= 16


@pytest.mark.parametrize(("number", "hexed"), VARINTS.items())
def test_the_reference_codec_writes_varints_as_the_format_says(number: int, hexed: str) -> None:
    assert codec.encode_varint(number).hex() == hexed
    assert codec.Cursor(bytes.fromhex(hexed)).varint() == number


def test_the_reference_crc_has_the_check_value_of_castagnoli() -> None:
    assert codec.crc32c(b"123456789") == 0xE3069283


def test_the_reference_codec_builds_the_golden_batches() -> None:
    assert codec.encode_batch([(1000, b"k", b"v", ())], leader_epoch=-1).hex() == A
    assert codec.encode_batch(B_RECORDS, **B_OPTIONS).hex() == B
    marker = dict(timestamp=TS, coordinator_epoch=3)
    assert codec.encode_marker(1000, 5, True, base_offset=42, **marker).hex() == COMMIT
    assert codec.encode_marker(1000, 5, False, base_offset=43, **marker).hex() == ABORT


def test_the_reference_codec_reads_an_emptied_batch() -> None:
    batch = codec.decode_batch(bytes.fromhex(EMPTIED))
    assert (batch.base_offset, batch.last_offset, batch.count, batch.records) == (100, 102, 0, [])
    assert (batch.valid, batch.transactional, batch.delete_horizon_ms) == (True, True, None)
    assert (batch.base_sequence, batch.last_sequence) == (2147483646, 0)


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_codec_reads_batches_that_kafka_wrote(name: str) -> None:
    data, expected = golden(name)
    assert [codec.as_inspect(batch) for batch in codec.iter_batches(data)] == expected


def fixed(name: str) -> bool:
    """Whether readers see all bytes: nothing compressed, removed or overwritten."""
    batch = codec.decode_batch((BATCHES / f"{name}.bin").read_bytes())
    return batch.compression == "none" and batch.count > 0 and not batch.timestamp_type


@pytest.mark.parametrize("name", [name for name in NAMES if fixed(name)])
def test_the_reference_codec_and_kafka_write_the_same_uncompressed_bytes(name: str) -> None:
    data = golden(name)[0]
    batch = codec.decode_batch(data)
    records = [(r.timestamp, r.key, r.value, r.headers) for r in batch.records]
    again = codec.encode_batch(
        records, base_offset=batch.base_offset, producer_id=batch.producer_id, producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence, transactional=batch.transactional, control=batch.control,
        leader_epoch=batch.leader_epoch,
    )  # fmt: skip
    assert again.hex() == data.hex()


@pytest.mark.parametrize("name", NAMES)
def test_the_core_reads_batches_that_kafka_wrote(name: str) -> None:
    data, expected = golden(name)
    batches = _core.iter_batches(data)
    assert len(batches) == len(expected)
    for batch, row in zip(batches, expected, strict=True):
        for field in ("base_offset", "last_offset", "position", "size", "magic", "crc", "valid", "compression",
                      "max_timestamp", "producer_id", "producer_epoch", "base_sequence", "last_sequence",
                      "leader_epoch", "transactional", "control", "delete_horizon_ms", "count"):  # fmt: skip
            assert getattr(batch, field) == row[field], field
        found = [
            (o, t, k, v, [list(h) for h in headers or ()])
            for o, t, k, v, headers in batch.records()
        ]

        def raw(hexed: str | None) -> bytes | None:
            return None if hexed is None else bytes.fromhex(hexed)

        assert found == [
            (
                r["offset"],
                r["timestamp"],
                raw(r["key"]),
                raw(r["value"]),
                [[n, raw(c)] for n, c in r["headers"]],
            )
            for r in row["records"]
        ]


def test_the_core_builds_the_golden_batches() -> None:
    assert bytes(_core.build_batch([(1000, b"k", b"v", ())], leader_epoch=-1)).hex() == A
    assert bytes(_core.build_batch(B_RECORDS, **B_OPTIONS)).hex() == B
    marker: dict[str, Any] = dict(timestamp=TS, coordinator_epoch=3)
    assert (
        bytes(_core.build_marker(1000, 5, True, base_offset=42, leader_epoch=0, **marker)).hex()
        == COMMIT
    )
    assert (
        bytes(_core.build_marker(1000, 5, False, base_offset=43, leader_epoch=0, **marker)).hex()
        == ABORT
    )
