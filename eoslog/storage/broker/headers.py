"""Headers of batches and messages of any format, as Kafka's recovery reads them."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from eoslog import _core
from eoslog.errors import CorruptRecord

__all__ = ["TO_MAGIC", "Header", "check_crc", "header_at"]

TO_MAGIC = 17
"""Bytes of a batch up to and including its magic number."""
_OVERHEAD, _HEADER_SIZE = 12, 61
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LEGACY = struct.Struct(">qiIbbq")
_SMALLEST = 14  # of any format's length field
_NO_TIME = -1


class Header(NamedTuple):
    """The fields of a batch, of any format, that recovery uses."""

    position: int
    size: int
    magic: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int = -1
    attributes: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    last_sequence: int = -1


def header_at(data: memoryview, position: int, end: int) -> Header | None:
    """Return the header of the batch or message at a position; None if it is incomplete.

    Raises:
        CorruptRecord: if the length is impossible.
    """
    base, length = struct.unpack_from(">qi", data, position)
    if length < _SMALLEST:
        raise CorruptRecord(
            f"batch length is {length}, expected at least {_SMALLEST}", position=position
        )
    size = length + _OVERHEAD
    if size > end - position:
        return None
    magic = struct.unpack_from(">b", data, position + TO_MAGIC - 1)[0]
    if magic < 2:
        time = _NO_TIME
        if magic == 1 and size >= _LEGACY.size:
            time = struct.unpack_from(">q", data, position + 18)[0]
        return Header(position, size, magic, base, base, time)
    if size < _HEADER_SIZE:
        raise CorruptRecord(
            f"batch has {size} bytes, fewer than its header needs", position=position
        )
    (
        base, _, leader_epoch, magic, _, attributes, delta, _, latest, producer_id, epoch,
        sequence, _,
    ) = _HEADER.unpack_from(data, position)  # fmt: skip
    last_sequence = -1 if sequence < 0 else (sequence + delta) & 0x7FFFFFFF
    return Header(
        position, size, magic, base, base + delta, latest, leader_epoch, attributes, producer_id,
        epoch, last_sequence,
    )  # fmt: skip


def check_crc(data: memoryview, header: Header) -> None:
    """Raise CorruptRecord if the checksum does not match."""
    whole = data[header.position : header.position + header.size]
    if header.magic >= 2:
        stored, actual = struct.unpack_from(">I", whole, 17)[0], _core.crc32c(whole[21:])
    else:
        stored, actual = struct.unpack_from(">I", whole, 12)[0], zlib.crc32(whole[16:])
    if stored != actual:
        raise CorruptRecord(
            f"CRC of the bytes is {actual:#010x}, but the batch header says {stored:#010x}",
            position=header.position,
        )
