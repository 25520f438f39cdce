"""Kafka's primitive encodings: big-endian integers, strings, arrays, tagged fields.

For metadata and coordinator records, which are few. The core encodes the batches around them.

    classic    string = i16 size, bytes (-1: null)      array = i32 count (-1: null)
    flexible   string = uvarint size + 1, bytes (0: null)   array = uvarint count + 1 (0: null)
    tagged     uvarint count, then (uvarint tag, uvarint size, bytes) by rising tag

Source: Kafka protocol guide, KIP-482.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, TypeVar

from eoslog.errors import CorruptRecord

_I8, _I16, _I32, _I64 = (struct.Struct(f) for f in (">b", ">h", ">i", ">q"))
_T = TypeVar("_T")
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


class Reader:
    """Reads one record; every read is bounded by the data, and short data is CorruptRecord."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        """Read from the first byte."""
        self._data = bytes(data)
        self._at = 0
        self._end = len(self._data)

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self._at

    @property
    def remaining(self) -> int:
        """Bytes not read yet."""
        return self._end - self._at

    def raw(self, size: int) -> bytes:
        """The next `size` bytes as they are."""
        if size < 0 or size > self._end - self._at:
            raise CorruptRecord(
                f"field has {size} bytes, but {self._end - self._at} are left", position=self._at
            )
        start = self._at
        self._at += size
        return self._data[start : self._at]

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        """The next fields, by one format for all of them."""
        start = self._at
        if form.size > self._end - start:
            raise CorruptRecord(
                f"fields have {form.size} bytes, but {self._end - start} are left", position=start
            )
        self._at = start + form.size
        return form.unpack_from(self._data, start)

    def i8(self) -> int:
        """A signed byte."""
        return int(self.unpack(_I8)[0])

    def i16(self) -> int:
        """A signed 16-bit integer."""
        return int(self.unpack(_I16)[0])

    def i32(self) -> int:
        """A signed 32-bit integer."""
        return int(self.unpack(_I32)[0])

    def i64(self) -> int:
        """A signed 64-bit integer."""
        return int(self.unpack(_I64)[0])

    def boolean(self) -> bool:
        """One byte, anything but 0 is true."""
        return self.raw(1) != b"\x00"

    def uvarint(self) -> int:
        """An unsigned 32-bit integer of 1 to 5 bytes."""
        at = self._at
        if at < self._end and self._data[at] < 0x80:  # nearly all of them
            self._at = at + 1
            return self._data[at]
        value = 0
        for shift in range(0, 35, 7):
            byte = self.raw(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > _MAX_UVARINT:
                    break
                return value
        raise CorruptRecord("uvarint has more than 32 bits", position=self._at)

    def _text(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise CorruptRecord(f"string is not UTF-8: {error}", position=self._at) from None

    def nullable_string(self) -> str | None:
        """A classic string or null."""
        size = self.i16()
        return None if size == -1 else self._text(self.raw(size))

    def string(self) -> str:
        """A classic string."""
        return self._present(self.nullable_string())

    def nullable_bytes(self) -> bytes | None:
        """Classic bytes or null."""
        size = self.i32()
        return None if size == -1 else self.raw(size)

    def bytes_(self) -> bytes:
        """Classic bytes."""
        return self._present(self.nullable_bytes())

    def uuid(self) -> bytes:
        """Sixteen bytes."""
        return self.raw(16)

    def compact_nullable_bytes(self) -> bytes | None:
        """Flexible bytes or null."""
        size = self.uvarint()
        return None if size == 0 else self.raw(size - 1)

    def compact_bytes(self) -> bytes:
        """Flexible bytes."""
        return self._present(self.compact_nullable_bytes())

    def compact_nullable_string(self) -> str | None:
        """A flexible string or null."""
        data = self.compact_nullable_bytes()
        return None if data is None else self._text(data)

    def compact_string(self) -> str:
        """A flexible string."""
        return self._present(self.compact_nullable_string())

    def _count(self, count: int) -> int:
        # Every element takes at least a byte, so a larger count is a lie that would cost memory.
        if count < -1 or count > self.remaining:
            raise CorruptRecord(
                f"array has {count} elements, but {self.remaining} bytes are left",
                position=self._at,
            )
        return count

    def array(self) -> int:
        """The count that opens a classic array, -1 for null."""
        return self._count(self.i32())

    def compact_array(self) -> int:
        """The count that opens a flexible array, -1 for null."""
        return self._count(self.uvarint() - 1)

    def tagged(self) -> dict[int, bytes]:
        """The tagged fields that close a flexible structure."""
        fields: dict[int, bytes] = {}
        last = -1
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            if tag <= last:
                raise CorruptRecord(
                    f"tag {tag} follows tag {last}; tags must rise", position=self._at
                )
            last = tag
            fields[tag] = self.raw(self.uvarint())
        return fields

    def _present(self, value: _T | None) -> _T:
        if value is None:
            raise CorruptRecord("null where a value is required", position=self._at)
        return value
