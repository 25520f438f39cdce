"""Record batch v2 in pure Python, written from the layout and from nothing else.

It is the second opinion on every byte: no cleverness, no speed, no import of eoslog.
Source: Kafka's message format v2 (KIP-98, KIP-534 for the delete horizon).
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import compression

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
CRC_FROM = 21
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40
MAX_SEQUENCE = 2**31 - 1

Header = tuple[str, bytes | None]
Plain = tuple[int, bytes | None, bytes | None, Sequence[Header]]
"""(timestamp in ms, key, value, headers): what `build_batch` takes."""


class Malformed(Exception):
    """The bytes are not a batch that a reader may accept."""


@dataclass
class RefRecord:
    """One record, with the offset and the timestamp a reader sees."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


@dataclass
class RefBatch:
    """Every field of the 61-byte header, and the records after it."""

    base_offset: int
    size: int
    leader_epoch: int
    magic: int
    crc: int
    valid: bool
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    position: int = 0
    records: list[RefRecord] = field(default_factory=list)

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        return (
            -1
            if self.base_sequence < 0
            else sequence_add(self.base_sequence, self.last_offset_delta)
        )

    @property
    def compression(self) -> str:
        return CODECS[self.attributes & 7]

    @property
    def timestamp_type(self) -> int:
        return 1 if self.attributes & LOG_APPEND_TIME else 0

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def control_type(self) -> int | None:
        if not self.control or not self.records:
            return None
        key = self.records[0].key or b""
        if len(key) < 4 or struct.unpack_from(">h", key)[0] < 0:
            raise Malformed(f"control key of {len(key)} bytes")
        return int(struct.unpack_from(">h", key, 2)[0])

    @property
    def coordinator_epoch(self) -> int:
        value = self.records[0].value or b""
        if len(value) < 6:
            raise Malformed(f"marker value of {len(value)} bytes")
        return int(struct.unpack_from(">i", value, 2)[0])


def sequence_add(sequence: int, count: int) -> int:
    """Sequence numbers count modulo 2**31 and are never negative."""
    return (sequence + count) % (MAX_SEQUENCE + 1)


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes, value: int = 0) -> int:
    """CRC-32C (Castagnoli), one byte at a time; `value` continues an earlier one."""
    crc = value ^ 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def encode_varint(number: int) -> bytes:
    """Zigzag, then 7 bits a byte, low ones first."""
    rest = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while rest > 0x7F:
        out.append(0x80 | rest & 0x7F)
        rest >>= 7
    out.append(rest)
    return bytes(out)


class Cursor:
    """Reads forward and never past the end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = bytes(data), 0

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self.data) - self.at:
            raise Malformed(f"{size} bytes wanted, {len(self.data) - self.at} left")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self, bits: int = 32) -> int:
        value = 0
        for index in range(5 if bits == 32 else 10):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                value &= 2**bits - 1
                return (value >> 1) ^ -(value & 1)
        raise Malformed("varint too long")

    def nullable(self) -> bytes | None:
        size = self.varint()
        return None if size < 0 else self.take(size)  # as Kafka reads it; -1 is what is written


def _nullable(data: bytes | None) -> bytes:
    return encode_varint(-1) if data is None else encode_varint(len(data)) + data


def encode_record(record: Plain, offset_delta: int, base_timestamp: int) -> bytes:
    """One record with its length in front."""
    timestamp, key, value, headers = record
    body = b"\0" + encode_varint(timestamp - base_timestamp) + encode_varint(offset_delta)
    body += _nullable(key) + _nullable(value) + encode_varint(len(headers))
    for name, content in headers:
        body += _nullable(name.encode()) + _nullable(content)
    return encode_varint(len(body)) + body


def encode_batch(
    records: Sequence[Plain],
    *,
    base_offset: int = 0,
    compression: str = "none",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = 0,
    timestamp_type: int = 0,
    max_timestamp: int | None = None,
) -> bytes:
    """One complete batch, as `_core.build_batch` with the same arguments builds it."""
    base_timestamp = records[0][0] if records else -1
    payload = b"".join(encode_record(r, i, base_timestamp) for i, r in enumerate(records))
    attributes = CODECS.index(compression) | (LOG_APPEND_TIME if timestamp_type else 0)
    attributes |= (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    if max_timestamp is None:
        max_timestamp = max((r[0] for r in records), default=-1)
    return seal(
        base_offset=base_offset, leader_epoch=leader_epoch, attributes=attributes,
        last_offset_delta=len(records) - 1, base_timestamp=base_timestamp, max_timestamp=max_timestamp,
        producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence,
        count=len(records), payload=compress(compression, payload),
    )  # fmt: skip


def seal(
    *, base_offset: int, leader_epoch: int, attributes: int, last_offset_delta: int, base_timestamp: int,
    max_timestamp: int, producer_id: int, producer_epoch: int, base_sequence: int, count: int, payload: bytes,
) -> bytes:  # fmt: skip
    """Build a batch from the fields themselves, unchecked, so that tests can lie."""
    rest = struct.pack(
        ">hiqqqhii", attributes, last_offset_delta, base_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, count,
    ) + payload  # fmt: skip
    start = struct.pack(
        ">qiibI", base_offset, CRC_FROM - 12 + len(rest), leader_epoch, 2, crc32c(rest)
    )
    return start + rest


def encode_marker(
    producer_id: int, producer_epoch: int, commit: bool, *, timestamp: int,
    coordinator_epoch: int = 0, base_offset: int = 0, leader_epoch: int = 0,
) -> bytes:  # fmt: skip
    """The 78 bytes that end a transaction in one partition."""
    key, value = struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, coordinator_epoch)
    return encode_batch(
        [(timestamp, key, value, ())], base_offset=base_offset, producer_id=producer_id,
        producer_epoch=producer_epoch, transactional=True, control=True, leader_epoch=leader_epoch,
    )  # fmt: skip


def compress(codec: str, payload: bytes) -> bytes:
    """`payload` in the framing that Kafka writes for `codec`."""
    if codec == "none":
        return payload
    return gzip.compress(payload) if codec == "gzip" else compression.compress(codec, payload)


def decompress(codec: str, payload: bytes) -> bytes:
    """The inverse, for whatever any Kafka client writes."""
    try:
        if codec == "none":
            return payload
        return (
            gzip.decompress(payload) if codec == "gzip" else compression.decompress(codec, payload)
        )
    except Malformed:
        raise
    except Exception as error:  # every codec library has exceptions of its own
        raise Malformed(f"{codec}: {error}") from error


def decode_records(batch: RefBatch, payload: bytes) -> list[RefRecord]:
    """The records of one batch, with every check that the format asks of a reader."""
    cursor = Cursor(decompress(batch.compression, payload))
    if batch.count < 0 or batch.last_offset_delta < 0:
        raise Malformed(f"{batch.count} records, last offset delta {batch.last_offset_delta}")
    records = []
    for _ in range(batch.count):
        body = Cursor(cursor.take(cursor.varint()))
        body.take(1)
        timestamp = batch.base_timestamp + body.varint(64)
        offset = batch.base_offset + body.varint()
        key, value, count = body.nullable(), body.nullable(), body.varint()
        if count < 0 or count > len(body.data) - body.at:
            raise Malformed(f"{count} headers")
        headers: list[Header] = []
        for _ in range(count):
            name = body.take(body.varint())
            headers.append((name.decode(errors="replace"), body.nullable()))
        if body.at != len(body.data):
            raise Malformed(f"record of {len(body.data)} bytes ends at {body.at}")
        if batch.timestamp_type:
            timestamp = batch.max_timestamp
        records.append(RefRecord(offset, timestamp, key, value, headers))
    if cursor.at != len(cursor.data):
        raise Malformed(f"{len(cursor.data) - cursor.at} bytes behind the last record")
    return records


def decode_batch(data: bytes, position: int = 0, *, records: bool = True) -> RefBatch:
    """The batch that begins at `position` and is whole."""
    fields = HEADER.unpack_from(data, position)
    base_offset, length, leader_epoch, magic, crc, attributes, *rest = fields
    end = position + 12 + length
    crc_found = crc32c(data[position + CRC_FROM : end])
    batch = RefBatch(
        base_offset,
        12 + length,
        leader_epoch,
        magic,
        crc,
        crc == crc_found,
        attributes,
        *rest,
        position,
    )
    if records:
        batch.records = decode_records(batch, data[position + HEADER_SIZE : end])
    return batch


def iter_batches(data: bytes, *, records: bool = True) -> Iterable[RefBatch]:
    """All complete batches; a partial one at the end is silently the end."""
    position = 0
    while len(data) - position > 17:
        length = struct.unpack_from(">i", data, position + 8)[0]
        if length < HEADER_SIZE - 12:
            raise Malformed(f"batch length {length} at {position}")
        if length > len(data) - position - 12:
            return
        yield decode_batch(data, position, records=records)
        position += 12 + length


def as_inspect(batch: RefBatch) -> dict[str, Any]:
    """The form of `eoslog.inspect` and of the fixtures' JSON."""

    def hexed(data: bytes | None) -> str | None:
        return None if data is None else data.hex()

    rows: list[dict[str, Any]] = []
    for record in batch.records:
        delta = record.offset - batch.base_offset
        row: dict[str, Any] = {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "sequence": -1 if batch.base_sequence < 0 else sequence_add(batch.base_sequence, delta),
            "key": hexed(record.key),
            "value": hexed(record.value),
            "headers": [[name, hexed(content)] for name, content in record.headers],
        }
        if batch.control:
            row["control_type"] = ("ABORT", "COMMIT")[batch.control_type or 0]
            row["coordinator_epoch"] = batch.coordinator_epoch
        rows.append(row)
    return {
        "base_offset": batch.base_offset, "last_offset": batch.last_offset, "position": batch.position,
        "size": batch.size, "magic": batch.magic, "crc": batch.crc, "valid": batch.valid,
        "compression": batch.compression,
        "timestamp_type": ("CreateTime", "LogAppendTime")[batch.timestamp_type],
        "max_timestamp": batch.max_timestamp, "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch, "base_sequence": batch.base_sequence,
        "last_sequence": batch.last_sequence, "leader_epoch": batch.leader_epoch,
        "transactional": batch.transactional, "control": batch.control,
        "delete_horizon_ms": batch.delete_horizon_ms, "count": batch.count, "records": rows,
    }  # fmt: skip
