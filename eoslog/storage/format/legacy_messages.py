"""Message sets of formats 0 and 1, which brokers before 0.11 wrote. eoslog only reads them.

They are at the beginning of logs that were upgraded and never rewritten. One message, big-endian:

     0 offset i64 | 8 size i32 (bytes after itself) | 12 crc u32 (CRC-32 of byte 16 to the end)
    16 magic i8   | 17 attributes i8 | 18 timestamp i64 (format 1 only)
    then key and value, each i32 size (-1: null) and bytes

Attributes: bits 0 to 2 the codec (gzip, snappy, lz4), bit 3 LogAppendTime (format 1). The value of
a compressed message contains messages of the same format, which are not compressed again. Its
offset is that of the last of them. Inner offsets are absolute in format 0. In format 1 they count
from the first one, and the timestamp of a LogAppendTime wrapper applies to all inner messages. The
lz4 frames of format 0 have a header checksum that Kafka computed over the wrong bytes (KAFKA-3160).

Readers get these messages as record batches of format 2 (`as_v2`), made in memory, so that there is
one decoder and one result type. A message without a timestamp has -1.

Source: Kafka's message format pages 0.8 to 0.10, KIP-31, KIP-32.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

from eoslog import _core
from eoslog.errors import CorruptRecord, UnsupportedFormat
from eoslog.storage.format import codecs

__all__ = ["LegacyBatch", "as_v2", "batches", "is_legacy"]

MAGIC_AT = 16
_LOG_OVERHEAD = 12
_HEADER = struct.Struct(">qiIbb")
_SMALLEST = {0: 26, 1: 34}  # bytes of a message with null key and value
_CODEC, _LOG_APPEND_TIME = 0x07, 0x08
_HIGHEST_CODEC = 3
_NO_TIMESTAMP = -1
_MOST_RECORDS = 4096  # per converted batch
_LZ4_MAGIC = b"\x04\x22\x4d\x18"

Record = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def is_legacy(data: Any, position: int) -> bool:
    """Whether a message of format 0 or 1 begins at a byte, according to its magic."""
    return len(data) - position > MAGIC_AT and data[position + MAGIC_AT] in (0, 1) and (
        int.from_bytes(bytes(data[position + 8 : position + 12]), "big", signed=True) > 0
    )  # fmt: skip


class LegacyBatch:
    """One message, or a compressed message with its inner messages; same API as `_core.Batch`.

    Attributes:
        position, size: bytes.
        last_offset: inclusive; for a compressed message, that of the last inner message.
        max_timestamp: the timestamp in the message's own header; -1 in format 0.
    """

    producer_id = -1
    producer_epoch = -1
    base_sequence = -1
    last_sequence = -1
    leader_epoch = -1
    transactional = False
    control = False
    control_type: int | None = None
    coordinator_epoch: int | None = None
    delete_horizon_ms: int | None = None

    def __init__(self, data: bytes, position: int) -> None:
        """Take the bytes of one complete message.

        Raises:
            CorruptRecord: if there are too few bytes for the format.
        """
        fields: tuple[int, ...] = _HEADER.unpack_from(data)
        self.last_offset, _, self.crc, self.magic, self.attributes = fields
        self.position, self.size, self._data = position, len(data), data
        if len(data) < _SMALLEST[self.magic]:
            raise CorruptRecord(
                f"message of format {self.magic} has {len(data)} bytes, expected at least "
                f"{_SMALLEST[self.magic]}",
                position=position,
            )
        self.max_timestamp: int = _NO_TIMESTAMP
        if self.magic:
            (self.max_timestamp,) = struct.unpack_from(">q", data, 18)

    @property
    def valid(self) -> bool:
        """Whether the checksum is right. Computed at each access."""
        return zlib.crc32(memoryview(self._data)[MAGIC_AT:]) == self.crc

    @property
    def fault(self) -> str | None:
        """What is wrong with the message or its inner messages; None if nothing is."""
        if not self.valid:
            return "CRC does not match"
        try:
            self.records()
        except (CorruptRecord, UnsupportedFormat) as error:
            return str(error)
        return None

    @property
    def timestamp_type(self) -> int:
        """The timestamp type: 0 CreateTime (also in format 0), 1 LogAppendTime."""
        return 1 if self.magic and self.attributes & _LOG_APPEND_TIME else 0

    @property
    def compression(self) -> str:
        """The name of the codec."""
        codec = self.attributes & _CODEC
        return codecs.CODECS[codec] if codec <= _HIGHEST_CODEC else f"unknown-{codec}"

    @property
    def base_offset(self) -> int:
        """The offset of the first message, decompressing if necessary.

        For a damaged compressed message, its own offset.
        """
        if not self.attributes & _CODEC:
            return self.last_offset
        try:
            return self.unfolded()[0][0][0]
        except CorruptRecord:
            return self.last_offset

    @property
    def count(self) -> int:
        """The number of messages; -1 if a compressed message cannot be decompressed."""
        if not self.attributes & _CODEC:
            return 1
        try:
            return len(self.unfolded())
        except CorruptRecord:
            return -1

    def records(self) -> list[Record]:
        """Return (offset, timestamp in ms, key, value, no headers) of each message.

        Does not check the message's own checksum.

        Raises:
            CorruptRecord: if a size or the inner set is invalid, or an inner checksum is wrong.
            UnsupportedFormat: if these formats do not have the codec.
        """
        return [record for record, _ in self.unfolded(strict=True)]

    def unfolded(self, *, strict: bool = False) -> list[tuple[Record, bool]]:
        """Return the records, each with whether its own checksum is right.

        Args:
            strict: raise an error for a wrong checksum.

        Raises:
            CorruptRecord, UnsupportedFormat: as `records`.
        """
        codec = self.attributes & _CODEC
        key, value = self._key_and_value()
        if codec == 0:
            return [((self.last_offset, self.max_timestamp, key, value, []), self.valid)]
        if codec > _HIGHEST_CODEC:
            raise UnsupportedFormat(
                f"codec of a message of format {self.magic} is {codec}, expected 0 to 3",
                position=self.position,
            )
        if value is None:
            raise CorruptRecord("compressed message has no value", position=self.position)
        if codec == 3 and self.magic == 0:
            value = _repair_lz4(value)
        unfolded = codecs.decompress(codecs.CODECS[codec], value)
        return self._unwrap(unfolded, strict)

    def _key_and_value(self) -> tuple[bytes | None, bytes | None]:
        at = _SMALLEST[self.magic] - 8
        fields = []
        for name in ("key", "value"):
            if len(self._data) - at < 4:
                raise CorruptRecord(
                    f"message ends within the size of its {name}", position=self.position
                )
            (size,) = struct.unpack_from(">i", self._data, at)
            at += 4
            if size < -1 or size > len(self._data) - at:
                raise CorruptRecord(
                    f"{name} has {size} bytes, but the message has {len(self._data) - at} left",
                    position=self.position,
                )
            fields.append(None if size < 0 else self._data[at : at + size])
            at += max(size, 0)
        if at != len(self._data):
            raise CorruptRecord(
                f"{len(self._data) - at} bytes follow the value of a message",
                position=self.position,
            )
        return fields[0], fields[1]

    def _unwrap(self, data: bytes, strict: bool) -> list[tuple[Record, bool]]:
        inner = list(_shallow(data, 0, len(data)))
        used = inner[-1].position + inner[-1].size if inner else 0
        if not inner or used != len(data):
            raise CorruptRecord(
                f"compressed message has {len(data)} bytes, but its {len(inner)} messages fill "
                f"{used}",
                position=self.position,
            )
        shift = self.last_offset - inner[-1].last_offset if self.magic else 0
        found: list[tuple[Record, bool]] = []
        for message in inner:
            if message.magic != self.magic or message.attributes & _CODEC:
                raise CorruptRecord(
                    f"compressed message of format {self.magic} contains a message of format "
                    f"{message.magic} and codec {message.attributes & _CODEC}",
                    position=self.position,
                )
            [((offset, timestamp, key, value, headers), valid)] = message.unfolded()
            if strict and not valid:
                raise CorruptRecord(
                    f"message at offset {offset + shift}, within a compressed message, does not "
                    f"match its CRC-32 {message.crc:#010x}",
                    position=self.position,
                )
            time = self.max_timestamp if self.timestamp_type else timestamp
            found.append(((offset + shift, time, key, value, headers), valid))
        return found

    def tobytes(self) -> bytes:
        """Return the bytes of the message."""
        return self._data

    def __repr__(self) -> str:
        return (
            f"LegacyBatch(magic={self.magic}, last_offset={self.last_offset}, "
            f"position={self.position}, size={self.size})"
        )


def batches(data: Any, position: int, end: int) -> Iterator[LegacyBatch]:
    """Yield the messages from a byte on, up to one of another format or a partial one."""
    return _shallow(data, position, end)


def _shallow(data: Any, position: int, end: int) -> Iterator[LegacyBatch]:
    while end - position > MAGIC_AT and is_legacy(data, position):
        length = int.from_bytes(bytes(data[position + 8 : position + 12]), "big", signed=True)
        if length > end - position - _LOG_OVERHEAD:
            return
        size = length + _LOG_OVERHEAD
        if size < _HEADER.size:
            raise CorruptRecord(f"message size {size} is out of range", position=position)
        yield LegacyBatch(bytes(data[position : position + size]), position)
        position += size


def as_v2(data: Any, position: int, size: int) -> tuple[bytes, int]:
    """Convert messages from a byte on to record batches of format 2.

    Keeps offsets, times and nulls, but not the compression.

    Args:
        data: the bytes of a segment file.
        position: where a message of format 0 or 1 begins.
        size: approximate number of bytes to convert.

    Returns:
        (batches, position after the last converted message). If the data ends with a partial
        message at `position`, nothing is converted and the position is the same.

    Raises:
        CorruptRecord, UnsupportedFormat: if the first message is damaged. Damage in a later
            message ends the conversion before it.
    """
    out: list[bytes] = []
    run: list[Record] = []
    kind = 0
    last = -1
    end = position

    def close() -> None:
        if run:
            base = run[0][0]
            out.append(
                _core.build_batch(
                    [record[1:] for record in run], base_offset=base, leader_epoch=-1,
                    timestamp_type=kind, max_timestamp=run[0][1] if kind else None,
                    offset_deltas=[record[0] - base for record in run],
                )
            )  # fmt: skip
            run.clear()

    try:
        for message in _shallow(data, position, len(data)):
            if not message.valid:
                raise CorruptRecord("message does not match its CRC-32", position=message.position)
            found = message.records()
            for record in found:
                if record[0] <= last or record[0] < 0:
                    raise CorruptRecord(
                        f"message offset {record[0]} follows {last}; offsets must rise",
                        position=message.position,
                    )
                # A batch has one timestamp type, and with LogAppendTime a single time.
                if run and (
                    message.timestamp_type != kind
                    or (kind and record[1] != run[0][1])
                    or len(run) >= _MOST_RECORDS
                    or record[0] - run[0][0] > 0x7FFFFFFF
                ):
                    close()
                kind, last = message.timestamp_type, record[0]
                run.append(record)
            end = message.position + message.size
            if end - position >= size:
                break
    except CorruptRecord:
        if end == position:
            raise
    close()
    return b"".join(out), end


def _repair_lz4(frame: bytes) -> bytes:
    """Return a format 0 frame with the right header checksum."""
    if frame[:4] != _LZ4_MAGIC or len(frame) < 7:
        return frame
    at = 6 + (8 if frame[4] & 0x08 else 0)  # after the content size, if there is one
    if at >= len(frame):
        return frame
    return frame[:at] + bytes([_xxh32(frame[4:at]) >> 8 & 0xFF]) + frame[at + 1 :]


def _xxh32(data: bytes) -> int:
    """Return XXH32 with seed 0 of fewer than 16 bytes: a frame's descriptor is that short."""
    mask = 0xFFFFFFFF
    prime1, prime2, prime3, prime4, prime5 = (
        2654435761, 2246822519, 3266489917, 668265263, 374761393,
    )  # fmt: skip
    h = (prime5 + len(data)) & mask
    at = 0
    while len(data) - at >= 4:
        h = (h + int.from_bytes(data[at : at + 4], "little") * prime3) & mask
        h = ((h << 17 | h >> 15) & mask) * prime4 & mask
        at += 4
    for byte in data[at:]:
        h = (h + byte * prime5) & mask
        h = ((h << 11 | h >> 21) & mask) * prime1 & mask
    h = (h ^ h >> 15) * prime2 & mask
    h = (h ^ h >> 13) * prime3 & mask
    return h ^ h >> 16
