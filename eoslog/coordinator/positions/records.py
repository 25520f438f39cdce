"""The records of `__positions`: a name, and its value.

    key      the name, UTF-8, 1 to 1,024 bytes
    value    i8 version = 0, i8 type, payload; no value: the position was deleted

| Type | Payload |
|---:|---|
| 0 | bytes |
| 1 | str, as UTF-8 |
| 2 | int, big-endian two's complement |
"""

from __future__ import annotations

import operator
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from eoslog._util.arguments import shown
from eoslog.errors import ConfigError, CorruptRecord, RecordTooLarge

MAX_NAME_BYTES = 1_024
MAX_VALUE_BYTES = 1 << 20

PositionValue: TypeAlias = int | str | bytes

_VERSION = 0
_BYTES, _STR, _INT = range(3)


class Unchecked(Enum):
    """The default of `expected`: any position may be replaced."""

    ANY = "ANY"

    def __repr__(self) -> str:
        return "ANY"


ANY = Unchecked.ANY


class PositionChange(NamedTuple):
    """One call of `set_position`, with checked arguments."""

    name: str
    value: PositionValue
    expected: PositionValue | Unchecked | None

    @classmethod
    def of(cls, name: object, value: object, expected: object) -> PositionChange:
        """Check the arguments of a call.

        Raises:
            ConfigError: if the name or a value is of another type, or the name has no legal length.
            RecordTooLarge: if a value is larger than 1 MiB.
        """
        given = check_name("set_position", name)
        if expected is not None and expected is not ANY:
            expected = _check_value(f"set_position: expected of {given!r}", expected)
        return cls(given, _check_value(f"set_position: value of {given!r}", value), expected)  # type: ignore[arg-type]

    def fits(self, found: PositionValue | None) -> bool:
        """Whether the transaction expects this position."""
        if self.expected is ANY:
            return True
        return type(found) is type(self.expected) and found == self.expected


def check_name(what: str, name: object) -> str:
    """Return a position's name if it is valid.

    Raises:
        ConfigError: if it is not a str, is empty or too long, or cannot be encoded.
    """
    if not isinstance(name, str):
        raise ConfigError(f"{what}: name must be a str, got {shown(name)}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ConfigError(
            f"{what}: name {shown(name)} has lone surrogates, which UTF-8 cannot encode; give "
            "other text"
        ) from None
    if not 0 < size <= MAX_NAME_BYTES:
        raise ConfigError(
            f"{what}: name must have 1 to {MAX_NAME_BYTES} bytes as UTF-8, got {size}"
        )
    return str.__str__(name)


def _check_value(what: str, value: Any) -> PositionValue:
    found: PositionValue
    if isinstance(value, bytes | bytearray | memoryview):
        found = bytes(value)
    elif isinstance(value, str):
        found = str.__str__(value)
    else:
        try:
            if isinstance(value, bool):
                raise TypeError
            found = operator.index(value)
        except TypeError:
            raise ConfigError(f"{what} must be an int, str or bytes, got {shown(value)}") from None
    try:
        size = len(encode_value(found)) - 2
    except UnicodeEncodeError:
        raise ConfigError(
            f"{what} has lone surrogates, which UTF-8 cannot encode; give it as bytes"
        ) from None
    if size > MAX_VALUE_BYTES:
        raise RecordTooLarge(
            f"{what} has {size} bytes, a position has at most {MAX_VALUE_BYTES}; keep the rest in "
            "a topic"
        )
    return found


def encode_value(value: PositionValue) -> bytes:
    """Return the value of a record."""
    if isinstance(value, bytes):
        return bytes((_VERSION, _BYTES)) + value
    if isinstance(value, str):
        return bytes((_VERSION, _STR)) + value.encode()
    size = value.bit_length() // 8 + 1  # one bit more, for the sign
    return bytes((_VERSION, _INT)) + value.to_bytes(size, "big", signed=True)


def decode_value(data: bytes) -> PositionValue:
    """Return the position in the value of a record.

    Raises:
        CorruptRecord: if the bytes have another version or type, or do not match their type.
    """
    if len(data) < 2:
        raise CorruptRecord(f"position has {len(data)} bytes, expected 2 or more")
    if data[0] != _VERSION:
        raise CorruptRecord("version of a position", expected=_VERSION, found=data[0])
    kind, payload = data[1], bytes(data[2:])
    if kind == _BYTES:
        return payload
    if kind == _STR:
        return _text("position", payload)
    if kind == _INT and payload:
        return int.from_bytes(payload, "big", signed=True)
    raise CorruptRecord(f"position of type {kind} with {len(payload)} bytes")


def decode_name(key: bytes | None) -> str:
    """Return the name in the key of a record.

    Raises:
        CorruptRecord: if it is missing, or is not UTF-8.
    """
    if key is None:
        raise CorruptRecord("position has no name")
    return _text("name of a position", bytes(key))


def _text(what: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptRecord(f"{what} is not UTF-8: {error}") from None
