"""Columns in a format: a batch of keys or values becomes a typed Arrow array.

pyarrow parses JSON, a batch at a time. A batch that fails is parsed in halves, until the record is
found.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eoslog._util.arguments import shown
from eoslog.client.arrow.schema import nulls, primitive, require_pyarrow
from eoslog.errors import ConfigError, SerializationError
from eoslog.serializers import deserializer, format_name

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BadValue", "ColumnFormat"]

_NUMBERS = {
    "short": (">i2", "int16"), "integer": (">i4", "int32"), "long": (">i8", "int64"),
    "float": (">f4", "float32"), "double": (">f8", "float64"),
}  # fmt: skip
_FORMATS = ("bytes", "string", "json", *_NUMBERS, "uuid")
_UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


class BadValue(Exception):
    """A value that is not in the format.

    Attributes:
        index: its row.
        reason: why.
    """

    def __init__(self, index: int, reason: Exception) -> None:
        """Keep both."""
        super().__init__(str(reason))
        self.index = index
        self.reason = reason


@dataclass(frozen=True)
class ColumnFormat:
    """Converts a column of bytes.

    Attributes:
        type: the type of the converted column.
        whole: converts an array; raises ValueError if a value is not in the format.
        one: converts a single value that `whole` refused; raises ValueError with the reason.
    """

    type: pa.DataType
    whole: Callable[[pa.Array], pa.Array]
    one: Callable[[bytes], Any]

    @classmethod
    def of(cls, column: str, spec: Any, schema: Any = None) -> ColumnFormat | None:
        """Return the format of a column; None if its bytes stay bytes.

        Args:
            column: "key" or "value", for messages.
            spec: the name of the format, or None.
            schema: the fields of "json" values.

        Raises:
            ConfigError: if the format is unknown, or has no type in Arrow; or if the schema is
                missing, is not wanted, or has a type that JSON has not.
        """
        name = None if spec is None else format_name(column, spec)
        if spec is not None and name not in _FORMATS:
            raise ConfigError(
                f"{column}: a column can be one of {', '.join(_FORMATS)}, got {shown(spec)}; for "
                f"other formats, use log.read(..., {column}=...)"
            )
        if name == "json" and column == "key":
            raise ConfigError(f'{column}: only values can be "json"; use "string"')
        if schema is not None and name != "json":
            raise ConfigError(f'schema: it is for value="json", got value={shown(spec)}')
        if name is None or name == "bytes":
            return None
        decode = deserializer(column, name)
        assert decode is not None
        if name == "json":
            return _json(schema)
        if name in _NUMBERS:
            return _number(*_NUMBERS[name], decode)
        return _text(name, decode)

    def convert(self, array: pa.Array) -> pa.Array:
        """Return the converted array.

        Raises:
            BadValue: if a value is not in the format; the first one.
        """
        pa = require_pyarrow()
        null = nulls(array)
        kept = array.drop_null()
        if not len(kept):
            return pa.nulls(len(array), self.type)
        try:
            found = self._convert(kept)
        except BadValue as error:
            raise BadValue(int(np.flatnonzero(~null)[error.index]), error.reason) from None
        if len(kept) == len(array):
            return found
        return found.take(primitive(pa.int64(), np.cumsum(~null) - 1, null))

    def _convert(self, array: pa.Array) -> pa.Array:
        pa = require_pyarrow()
        try:
            return self.whole(array)
        except ValueError as error:
            if len(array) == 1:
                return pa.array([self._one(array[0].as_py(), error)], self.type)
        half = len(array) // 2
        first = self._convert(array[:half])
        try:
            return pa.concat_arrays([first, self._convert(array[half:])])
        except BadValue as error:
            raise BadValue(half + error.index, error.reason) from None

    def _one(self, data: bytes, error: Exception) -> Any:
        try:
            return self.one(data)
        except (ValueError, SerializationError) as reason:
            raise BadValue(0, reason) from error


def _number(wire: str, kind: str, decode: Callable[[bytes | None], Any]) -> ColumnFormat:
    lib = require_pyarrow()
    size = np.dtype(wire).itemsize
    arrow_type = lib.from_numpy_dtype(np.dtype(kind))

    def whole(array: pa.Array) -> pa.Array:
        _, ends, data = array.buffers()
        offsets = np.frombuffer(ends, np.int32, len(array) + 1, array.offset * 4)
        if (np.diff(offsets) != size).any():
            raise ValueError("another size")
        values = np.frombuffer(data, wire, len(array), int(offsets[0]))
        return primitive(arrow_type, values.astype(kind))

    return ColumnFormat(arrow_type, whole, decode)


def _text(name: str, decode: Callable[[bytes | None], Any]) -> ColumnFormat:
    lib = require_pyarrow()

    def whole(array: pa.Array) -> pa.Array:
        texts = array.cast(lib.string())
        if name == "uuid":
            import pyarrow.compute

            if not pyarrow.compute.all(pyarrow.compute.match_substring_regex(texts, _UUID)).as_py():
                raise ValueError("not the canonical form")
        return texts

    def one(data: bytes) -> str:
        found = decode(data)
        return str(found) if isinstance(found, uuid.UUID) else found

    return ColumnFormat(lib.string(), whole, one)


def _json(schema: Any) -> ColumnFormat:
    lib = require_pyarrow()
    arrow_type = _struct_of(schema)

    def whole(array: pa.Array) -> pa.Array:
        found = _parsed(array.cast(lib.string()), arrow_type)
        if len(found) != len(array):
            raise ValueError("not one JSON object")
        return found

    def one(data: bytes) -> Any:
        # pyarrow refuses what Python accepts, for example a name that occurs twice.
        found = deserializer("value", "json")(data)  # type: ignore[misc]
        if found is not None and not isinstance(found, dict):
            raise SerializationError(f"json: expected an object, got {shown(found)}")
        text = json.dumps(found)
        try:
            return _parsed(lib.array([text]), arrow_type)[0].as_py()
        except ValueError as error:
            raise SerializationError(
                f"json: {shown(text)} does not fit the schema: {error}"
            ) from None

    return ColumnFormat(arrow_type, whole, one)


def _struct_of(schema: Any) -> pa.StructType:
    pa = require_pyarrow()
    if schema is None:
        raise ConfigError(
            'schema: value="json" needs the fields, for example '
            'schema=pyarrow.schema({"name": "string", "amount": "int64"})'
        )
    try:
        fields = list(schema) if isinstance(schema, pa.StructType) else list(pa.schema(schema))
        found = pa.struct(fields)
        _parsed(pa.array(["{}"]), found)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise ConfigError(
            f"schema: expected a pyarrow.Schema of types that JSON has, got {shown(schema)}: "
            f"{error}"
        ) from None
    if not fields:
        raise ConfigError("schema: expected one field or more, got none")
    return found


def _parsed(texts: pa.Array, kind: pa.StructType) -> pa.Array:
    """Parse one JSON object from each text.

    The reader takes a stream of objects, and a text might have several, or a part of one. So each
    is read as a member of an object, and again as an element of an array: only a single value is
    correct in both.
    """
    pa = require_pyarrow()
    _read(texts, '{"v":[', "]}\n", pa.schema([]))
    table = _read(texts, '{"v":', "}\n", pa.schema([("v", kind)]))
    return pa.concat_arrays(table["v"].chunks)


def _read(texts: pa.Array, before: str, after: str, schema: pa.Schema) -> pa.Table:
    pa = require_pyarrow()
    import pyarrow.compute
    import pyarrow.json

    joined = pyarrow.compute.binary_join_element_wise(before, texts, after, "")
    data = joined.buffers()[2]
    table = pyarrow.json.read_json(
        pa.BufferReader(data),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=data.size + 1),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore"
        ),
    )
    if table.num_rows != len(texts):
        raise ValueError(f"expected {len(texts)} JSON objects, got {table.num_rows}")
    return table
