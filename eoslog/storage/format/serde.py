"""Kafka's primitive encodings: big-endian integers, strings, arrays, tagged fields.

For metadata and coordinator records. `Reader` is in the core, because an opening process reads many
of them; few are written. The core encodes the batches around them.

    classic    string = i16 size, bytes (-1: null)      array = i32 count (-1: null)
    flexible   string = uvarint size + 1, bytes (0: null)   array = uvarint count + 1 (0: null)
    tagged     uvarint count, then (uvarint tag, uvarint size, bytes) by rising tag

Source: Kafka protocol guide, KIP-482.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from eoslog._core import Reader

__all__ = ["Reader", "Writer"]

_I8, _I16, _I32, _I64 = (struct.Struct(f) for f in (">b", ">h", ">i", ">q"))
_MAX_UVARINT = 0xFFFFFFFF


class Writer:
    """Builds one record; every method returns the writer, so that calls chain."""

    __slots__ = ("_out",)

    def __init__(self) -> None:
        """Start empty."""
        self._out = bytearray()

    def take(self) -> bytes:
        """Return everything written so far, and start again with nothing."""
        data = bytes(self._out)
        self._out = bytearray()
        return data

    def raw(self, data: bytes) -> Writer:
        """Bytes as they are."""
        self._out += data
        return self

    def i8(self, value: int) -> Writer:
        """A signed byte."""
        self._out += _I8.pack(value)
        return self

    def i16(self, value: int) -> Writer:
        """A signed 16-bit integer."""
        self._out += _I16.pack(value)
        return self

    def i32(self, value: int) -> Writer:
        """A signed 32-bit integer."""
        self._out += _I32.pack(value)
        return self

    def i64(self, value: int) -> Writer:
        """A signed 64-bit integer."""
        self._out += _I64.pack(value)
        return self

    def boolean(self, value: bool) -> Writer:
        """One byte, 0 or 1."""
        self._out.append(1 if value else 0)
        return self

    def uvarint(self, value: int) -> Writer:
        """An unsigned 32-bit integer in 1 to 5 bytes, low 7 bits first."""
        if 0 <= value <= 0x7F:  # nearly all of them
            self._out.append(value)
            return self
        if not 0 <= value <= _MAX_UVARINT:
            raise OverflowError(f"uvarint must be 0 to 2**32 - 1, got {value}")
        while value > 0x7F:
            self._out.append((value & 0x7F) | 0x80)
            value >>= 7
        self._out.append(value)
        return self

    def string(self, value: str) -> Writer:
        """A classic string."""
        data = value.encode()
        return self.i16(len(data)).raw(data)

    def nullable_string(self, value: str | None) -> Writer:
        """A classic string or null."""
        return self.i16(-1) if value is None else self.string(value)

    def bytes_(self, value: bytes) -> Writer:
        """Classic bytes: i32 size."""
        return self.i32(len(value)).raw(value)

    def nullable_bytes(self, value: bytes | None) -> Writer:
        """Classic bytes or null."""
        return self.i32(-1) if value is None else self.bytes_(value)

    def uuid(self, value: bytes) -> Writer:
        """Sixteen bytes."""
        if len(value) != 16:
            raise OverflowError(f"uuid must have 16 bytes, got {len(value)}")
        return self.raw(value)

    def compact_string(self, value: str) -> Writer:
        """A flexible string."""
        return self.compact_bytes(value.encode())

    def compact_nullable_string(self, value: str | None) -> Writer:
        """A flexible string or null."""
        return self.uvarint(0) if value is None else self.compact_string(value)

    def compact_bytes(self, value: bytes) -> Writer:
        """Flexible bytes."""
        return self.uvarint(len(value) + 1).raw(value)

    def compact_nullable_bytes(self, value: bytes | None) -> Writer:
        """Flexible bytes or null."""
        return self.uvarint(0) if value is None else self.compact_bytes(value)

    def array(self, count: int) -> Writer:
        """The count that opens a classic array, -1 for null."""
        return self.i32(count)

    def compact_array(self, count: int) -> Writer:
        """The count that opens a flexible array, -1 for null."""
        return self.uvarint(count + 1)

    def tagged(self, fields: Mapping[int, bytes] | None = None) -> Writer:
        """The tagged fields that close a flexible structure."""
        fields = fields or {}
        self.uvarint(len(fields))
        for tag in sorted(fields):
            self.uvarint(tag).uvarint(len(fields[tag])).raw(fields[tag])
        return self
