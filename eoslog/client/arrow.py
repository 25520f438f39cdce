"""Decoded columns as Arrow has them, without a copy; pyarrow is needed for its own classes only.

| column | type |
|---|---|
| topic | dictionary<int32, utf8> |
| partition | int32 |
| offset | int64 |
| timestamp | timestamp[ms, UTC]; records without one have -1 |
| timestamp_type | int8: 0 CreateTime, 1 LogAppendTime |
| key, value | binary_view, or binary |
| headers | list<struct<key: utf8, value: binary_view or binary>> |

Flat, as Spark takes them: topic is utf8, timestamp has microseconds, timestamp_type is int32.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from eoslog import _core
from eoslog.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "COLUMNS",
    "Column",
    "Columns",
    "Field",
    "columns_of",
    "decoded_columns",
    "fields_of",
    "nulls",
    "numbers",
    "primitive",
    "record_batch",
    "require_pyarrow",
    "schema_of",
]

COLUMNS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
_OF_THE_PARTITION = ("topic", "partition")


def require_pyarrow() -> Any:
    """The pyarrow module.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError(
            "pyarrow's batches need the package 'pyarrow': install eoslog[arrow]"
        ) from error
    return pyarrow


class Field(NamedTuple):
    """A column's name and type, as the core takes it; always nullable.

    Attributes:
        format: by the Arrow C data interface: "l" is int64, "+s" a struct of its children.
        dictionary: the values, where the column has indices of them.
    """

    name: str
    format: str
    children: tuple[Field, ...] = ()
    dictionary: Field | None = None


class Column(NamedTuple):
    """Rows of a Field, over memory that somebody filled.

    Attributes:
        rows: from `offset` on.
        nulls: among them; -1 where nobody counted.
        buffers: as Arrow lays them out; None where it allows that.
        offset: rows of the buffers before the first.
    """

    rows: int
    nulls: int
    buffers: tuple[Any, ...]
    offset: int = 0
    children: tuple[Column, ...] = ()
    dictionary: Column | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """A batch of rows for any library that takes Arrow's PyCapsules; nothing is copied.

    Source: Arrow PyCapsule interface.
    """

    field: Field
    column: Column

    def __arrow_c_schema__(self) -> object:
        return _core.arrow_schema(self.field)

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        # Another type than ours may be asked for; to cast is left to whoever asks.
        return _core.arrow_schema(self.field), _core.arrow_array(self.column)


def fields_of(columns: Sequence[str], *, view: bool, flat: bool = False) -> Field:
    """A struct of these columns; `view` chooses binary_view over binary.

    Raises:
        ConfigError: an unknown, repeated or missing column.
    """
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise ConfigError(f"unknown column {unknown[0]!r}, the columns are {', '.join(COLUMNS)}")
    if not columns or len(set(columns)) < len(columns):
        raise ConfigError(
            f"columns must be named once each and be at least one, not {list(columns)}"
        )
    binary = "vz" if view else "z"
    pair = Field("item", "+s", (Field("key", "u"), Field("value", binary)))
    known = {
        "topic": Field("topic", "u") if flat else Field("topic", "i", dictionary=Field("", "u")),
        "partition": Field("partition", "i"),
        "offset": Field("offset", "l"),
        "timestamp": Field("timestamp", "tsu:UTC" if flat else "tsm:UTC"),
        "timestamp_type": Field("timestamp_type", "i" if flat else "c"),
        "key": Field("key", binary),
        "value": Field("value", binary),
        "headers": Field("headers", "+l", (pair,)),
    }
    return Field("", "+s", tuple(known[name] for name in columns))


def schema_of(columns: Sequence[str], *, view: bool, flat: bool = False) -> pa.Schema:
    """The same as pyarrow has it.

    Raises:
        ConfigError: as above; pyarrow is not installed.
    """
    nothing = Columns(fields_of(columns, view=view, flat=flat), Column(0, 0, ()))
    schema: pa.Schema = require_pyarrow().schema(nothing)
    return schema


def decoded_columns(columns: Sequence[str]) -> list[str]:
    """Those of the columns that a ColumnDecoder makes; the others are the same in every row."""
    return [name for name in columns if name not in _OF_THE_PARTITION]


def columns_of(
    taken: dict[str, Any],
    field: Field,
    topics: Sequence[str],
    topic: int,
    partition: int,
    rows: range | None = None,
) -> Columns:
    """What `ColumnDecoder.take` gave, over the same memory.

    Args:
        taken: the columns; none is kept elsewhere, these own them from here on.
        field: from `fields_of`, with the `view` and the `flat` of the decoder.
        topics: the topics of the whole scan: the dictionary is the same in each of its batches.
        topic: which of them.
        partition: the partition's number.
        rows: some that follow one another; None is all.
    """
    rows = range(taken["rows"]) if rows is None else rows
    whole = len(rows) == taken["rows"]
    blocks = tuple(taken["buffers"])
    parts = []
    for child in field.children:
        match child.name:
            case "topic" if child.dictionary is None:
                parts.append(_repeated_text(topics[topic], len(rows)))
            case "topic":
                part = _repeated(topic, len(rows))
                parts.append(part._replace(dictionary=_texts(topics)))
            case "partition":
                parts.append(_repeated(partition, len(rows)))
            case "headers":
                ends, count, keys, values = taken["headers"]
                cells = (_cells(count, keys, blocks), _cells(count, values, blocks))
                pairs = Column(count, 0, (None,), children=cells)
                parts.append(Column(len(rows), 0, (None, ends), rows.start, children=(pairs,)))
            case "key" | "value":
                part = _cells(len(rows), taken[child.name], blocks)
                nulls = part.nulls if whole or not part.nulls else -1
                parts.append(part._replace(nulls=nulls, offset=rows.start))
            case _:
                parts.append(Column(len(rows), 0, (None, taken[child.name]), rows.start))
    return Columns(field, Column(len(rows), 0, (None,), children=tuple(parts)))


def record_batch(columns: Columns) -> pa.RecordBatch:
    """The same as pyarrow has it.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    batch: pa.RecordBatch = require_pyarrow().record_batch(columns)
    return batch


_LONGEST_TEXTS = (1 << 31) - 1
"""Bytes of all rows of a column: where each ends is an int32."""

_SHARED_ROWS = 1 << 17
"""Batches of up to so many rows have a column in common where each row is the same."""


def _repeated(number: int, rows: int) -> Column:
    """One int32 in each row."""
    make = _shared_numbers if rows <= _SHARED_ROWS else _numbers
    return Column(rows, 0, (None, make(number, _rounded(rows))))


def _repeated_text(text: str, rows: int) -> Column:
    """One text in each row.

    Raises:
        ConfigError: so many of them are more than a column of texts holds.
    """
    encoded = text.encode()
    if len(encoded) * rows > _LONGEST_TEXTS:
        raise ConfigError(f"{rows} rows of {text!r} are more than a batch holds: ask for fewer")
    make = _shared_copies if rows <= _SHARED_ROWS else _copies
    return Column(rows, 0, (None, *make(encoded, _rounded(rows))))


def _rounded(rows: int) -> int:
    """Of columns in common there are few sizes."""
    return 1 << (rows - 1).bit_length() if 0 < rows <= _SHARED_ROWS else rows


def _numbers(number: int, rows: int) -> np.ndarray:
    return np.full(rows, number, np.int32)


def _copies(encoded: bytes, rows: int) -> tuple[np.ndarray, bytes]:
    return np.arange(rows + 1, dtype=np.int32) * np.int32(len(encoded)), encoded * rows


_shared_numbers = functools.lru_cache(maxsize=4)(_numbers)
_shared_copies = functools.lru_cache(maxsize=4)(_copies)


def _texts(values: Sequence[str]) -> Column:
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *(len(one) for one in encoded)], dtype=np.int32)
    return Column(len(encoded), 0, (None, ends, b"".join(encoded)))


def _cells(rows: int, taken: tuple[Any, ...], blocks: tuple[Any, ...]) -> Column:
    validity, nulls, slots, copied = taken
    if copied is not None:
        return Column(rows, nulls, (validity, slots, copied))
    sizes = np.array([len(block) for block in blocks], np.int64)
    return Column(rows, nulls, (validity, slots, *blocks, sizes))


# `pa.array`, `pa.scalar` and `to_numpy` import pandas where it is installed: half a second and some
# 30,000 objects for the garbage collector. What follows makes arrays without them.


def primitive(kind: pa.DataType, values: np.ndarray, null: np.ndarray | None = None) -> pa.Array:
    """An array of fixed width over the memory of `values` (of the same width).

    Args:
        kind: its type.
        values: one a row.
        null: true where a row has no value; None where each has one.
    """
    pa = require_pyarrow()
    validity = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(
        kind, len(values), [validity, pa.py_buffer(values)], 0 if null is None else -1
    )


def nulls(array: pa.Array) -> np.ndarray:
    """Of each row, whether it has no value."""
    if array.null_count == 0:
        return np.zeros(len(array), bool)
    found = array.is_null()
    bits = np.unpackbits(np.frombuffer(found.buffers()[1], np.uint8), bitorder="little")
    return bits[found.offset : found.offset + len(found)].view(bool)


def numbers(array: pa.Array, kind: type[np.integer[Any]]) -> np.ndarray:
    """The values of an array of integers of this width, 0 where there is none."""
    if len(array) == 0:  # may come without a buffer
        return np.zeros(0, kind)
    size = np.dtype(kind).itemsize
    values = np.frombuffer(array.buffers()[1], kind, len(array), array.offset * size)
    return np.where(nulls(array), 0, values) if array.null_count else values
