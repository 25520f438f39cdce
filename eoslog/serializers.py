"""Keys and values to bytes and back, by callable, by short name, or by Kafka's Java class name.

None stands for "as it is": bytes stay bytes, `str` becomes UTF-8 on the way in. Null passes
through every built-in one, as in Kafka, where a null value is a tombstone.

Source: Kafka `org.apache.kafka.common.serialization`.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable
from typing import Any

from eoslog.errors import ConfigError, SerializationError

Serializer = Callable[[Any], "bytes | None"]
Deserializer = Callable[["bytes | None"], Any]

_JAVA = "org.apache.kafka.common.serialization."


def _number(code: str, kind: type, name: str) -> tuple[Serializer, Deserializer]:
    layout = struct.Struct(code)

    def serialize(value: Any) -> bytes | None:
        if value is None:
            return None
        if isinstance(value, bool) or (kind is int and not isinstance(value, int)):
            raise SerializationError(f"{name}: expected {kind.__name__}, got {value!r}")
        try:
            return layout.pack(value)
        except struct.error as error:
            raise SerializationError(f"{name}: {value!r}: {error}") from None

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
        raise SerializationError(f"string: expected str, got {value!r}")
    return value.encode()


def _to_str(data: bytes | None) -> str | None:
    try:
        return None if data is None else bytes(data).decode()
    except UnicodeDecodeError as error:
        raise SerializationError(f"string: {error}") from None


def _from_json(value: Any) -> bytes | None:
    try:
        return None if value is None else json.dumps(value, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise SerializationError(f"json: {error}") from None


def _to_json(data: bytes | None) -> Any:
    try:
        return None if data is None else json.loads(data)
    except ValueError as error:
        raise SerializationError(f"json: {error}") from None


def _from_uuid(value: Any) -> bytes | None:
    return None if value is None else str(uuid.UUID(str(value))).encode()


def _to_uuid(data: bytes | None) -> uuid.UUID | None:
    try:
        return None if data is None else uuid.UUID(bytes(data).decode())
    except ValueError as error:
        raise SerializationError(f"uuid: {error}") from None


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
}
_SHORT = {"bytearray": "bytes", "str": "string", "int": "integer", "int32": "integer",
          "int64": "long", "int16": "short"}  # fmt: skip


def _find(key: str, spec: object, suffix: str) -> tuple[Serializer, Deserializer] | None:
    if isinstance(spec, str):
        name = spec.removeprefix(_JAVA).removesuffix(suffix).lower()
        name = _SHORT.get(name, name)
        if name in _PAIRS:
            return _PAIRS[name]
    raise ConfigError(f"{key}: expected a callable or one of {', '.join(_PAIRS)}, got {spec!r}")


def serializer(key: str, spec: Any) -> Serializer | None:
    """The serializer that a configuration value names; None where bytes are taken as they are."""
    pair = _pair(key, spec, "Serializer")
    return None if pair is None else pair[0]


def deserializer(key: str, spec: Any) -> Deserializer | None:
    """The deserializer that a configuration value names; None where bytes stay bytes."""
    pair = _pair(key, spec, "Deserializer")
    return None if pair is None else pair[1]


def _pair(key: str, spec: Any, suffix: str) -> tuple[Serializer, Deserializer] | None:
    if spec is None:
        return None
    if spec in (bytes, str):
        return _find(key, spec.__name__, suffix)
    return (spec, spec) if callable(spec) else _find(key, spec, suffix)
