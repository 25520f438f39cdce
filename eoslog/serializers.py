"""Serializers and deserializers, by callable, short name, or Java class name.

Without one, bytes stay bytes, and a produced `str` is encoded as UTF-8. All built-in ones pass null
through, as in Kafka, where a null value is a tombstone.

Source: Kafka `org.apache.kafka.common.serialization`.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from eoslog._util.arguments import shown
from eoslog._util.extras import package
from eoslog.errors import ConfigError, SerializationError
from eoslog.model import TopicPartition

__all__ = [
    "FORMATS",
    "Deserializer",
    "Serializer",
    "deserializer",
    "format_name",
    "serializer",
    "undecodable",
]

Serializer = Callable[[Any], "bytes | None"]
Deserializer = Callable[["bytes | None"], Any]

_json_encoder = json.JSONEncoder(separators=(",", ":"))
"""`json.dumps` with separators would create an encoder for each value."""
_decode_json = json.JSONDecoder().raw_decode
"""`json.loads` of bytes looks for their encoding first, and for blanks around the value."""
_JAVA = "org.apache.kafka.common.serialization."


def _json_pieces() -> Callable[[Any, int], Iterable[str]]:
    """Return what `JSONEncoder.encode` creates for each value, created once.

    It takes half of the time, and does not look for circular references.
    """
    compiled = getattr(json.encoder, "c_make_encoder", None)
    if compiled is None:  # as in PyPy
        return lambda value, _level: (_json_encoder.encode(value),)
    made: Callable[[Any, int], Iterable[str]] = compiled(
        None, _json_encoder.default, json.encoder.encode_basestring_ascii, None, ":", ",", False,
        False, True,
    )  # fmt: skip
    return made


_pieces_of = _json_pieces()


def _number(code: str, kind: type, name: str) -> tuple[Serializer, Deserializer]:
    layout = struct.Struct(code)

    def serialize(value: Any) -> bytes | None:
        if value is None:
            return None
        if isinstance(value, bool) or (kind is int and not isinstance(value, int)):
            raise SerializationError(f"{name}: expected {kind.__name__}, got {shown(value)}")
        try:
            return layout.pack(value)
        except struct.error as error:
            raise SerializationError(f"{name}: cannot encode {shown(value)}: {error}") from None

    def deserialize(data: bytes | None) -> Any:
        if data is None:
            return None
        if len(data) != layout.size:
            raise SerializationError(f"{name}: expected {layout.size} bytes, got {len(data)}")
        return layout.unpack(data)[0]

    return serialize, deserialize


def _from_str(value: Any) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise SerializationError(f"string: expected str, got {shown(value)}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise SerializationError(f"string: cannot encode {shown(value)}: {error}") from None


def _to_str(data: bytes | None) -> str | None:
    try:
        return None if data is None else bytes(data).decode()
    except UnicodeDecodeError as error:
        raise SerializationError(f"string: the bytes are not UTF-8: {error}") from None


def _from_json(value: Any) -> bytes | None:
    if value is None:
        return None
    try:
        return "".join(_pieces_of(value, 0)).encode()
    except (TypeError, ValueError, RecursionError):
        pass  # encoded again, for the cause
    try:
        return _json_encoder.encode(value).encode()
    except (TypeError, ValueError) as error:
        raise SerializationError(f"json: cannot encode {shown(value)}: {error}") from None


def _to_json(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        text = str(data, "utf-8")
        value, end = _decode_json(text)
        if end == len(text):
            return value
    except ValueError:
        pass  # blanks at the beginning, a byte order mark, UTF-16, or no JSON
    try:
        return json.loads(data)
    except ValueError as error:
        raise SerializationError(f"json: the bytes are not JSON: {error}") from None


def _from_msgpack(value: Any) -> bytes | None:
    import msgpack

    try:
        return None if value is None else msgpack.packb(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise SerializationError(f"msgpack: cannot encode {shown(value)}: {error}") from None


def _to_msgpack(data: bytes | None) -> Any:
    import msgpack

    try:
        return None if data is None else msgpack.unpackb(data)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise SerializationError(f"msgpack: the bytes are not one object: {error!r}") from None


def _from_uuid(value: Any) -> bytes | None:
    try:
        return None if value is None else str(uuid.UUID(str(value))).encode()
    except ValueError as error:
        raise SerializationError(f"uuid: expected a UUID, got {shown(value)}: {error}") from None


def _to_uuid(data: bytes | None) -> uuid.UUID | None:
    try:
        return None if data is None else uuid.UUID(bytes(data).decode())
    except ValueError as error:
        raise SerializationError(f"uuid: the bytes are not a UUID: {error}") from None


_PAIRS: dict[str, tuple[Serializer, Deserializer] | None] = {
    "bytes": None,
    "string": (_from_str, _to_str),
    "json": (_from_json, _to_json),
    "short": _number(">h", int, "short"),
    "integer": _number(">i", int, "integer"),
    "long": _number(">q", int, "long"),
    "float": _number(">f", float, "float"),
    "double": _number(">d", float, "double"),
    "uuid": (_from_uuid, _to_uuid),
    "msgpack": (_from_msgpack, _to_msgpack),
}
FORMATS = tuple(_PAIRS)
"""The names of the formats."""
_SHORT = {"bytearray": "bytes", "str": "string", "int": "integer", "int32": "integer",
          "int64": "long", "int16": "short"}  # fmt: skip


def _find(key: str, spec: object, suffix: str) -> tuple[Serializer, Deserializer] | None:
    if isinstance(spec, str):
        name = spec.removeprefix(_JAVA).removesuffix(suffix).lower()
        name = _SHORT.get(name, name)
        if name == "msgpack":
            package("msgpack", f"{key}={name}", "msgpack")
        if name in _PAIRS:
            return _PAIRS[name]
    raise ConfigError(
        f"{key}: expected a callable or one of {', '.join(_PAIRS)}, got {shown(spec)}"
    )


def format_name(key: str, spec: Any) -> str | None:
    """Return the name of a format, also for a Java class; None for a callable.

    Raises:
        ConfigError: if there is no such format.
    """
    if spec is bytes or spec is str:
        spec = spec.__name__
    if callable(spec):
        return None
    found = _find(key, spec, "Deserializer")
    return next(name for name, pair in _PAIRS.items() if pair is found)


def serializer(key: str, spec: Any) -> Serializer | None:
    """Return the serializer for a configuration value; None for plain bytes."""
    pair = _pair(key, spec, "Serializer")
    return None if pair is None else pair[0]


def deserializer(key: str, spec: Any) -> Deserializer | None:
    """Return the deserializer for a configuration value; None if bytes stay bytes."""
    pair = _pair(key, spec, "Deserializer")
    return None if pair is None else pair[1]


def _pair(key: str, spec: Any, suffix: str) -> tuple[Serializer, Deserializer] | None:
    if spec is None:
        return None
    if spec is bytes or spec is str:
        return _find(key, spec.__name__, suffix)
    return (spec, spec) if callable(spec) else _find(key, spec, suffix)


def undecodable(
    partition: TopicPartition, offset: int, error: Exception, advice: str
) -> SerializationError:
    """Return the error of a record that cannot be deserialized, with its place."""
    what = "" if isinstance(error, SerializationError) else f"{type(error).__name__}: "
    return SerializationError(f"{partition} at offset {offset}: {what}{error}; {advice}")
