"""Decoded columns in Arrow's layout, without a copy.

Only pyarrow's own classes need pyarrow.

| column | type |
|---|---|
| topic | dictionary<int32, utf8> |
| partition | int32 |
| offset | int64 |
| timestamp | timestamp[ms, UTC]; records without one have -1 |
| timestamp_type | int8: 0 CreateTime, 1 LogAppendTime |
| key, value | binary_view, or binary |
| headers | list<struct<key: utf8, value: binary_view or binary>> |

The flat form is for Spark: topic is utf8, timestamp has microseconds, timestamp_type is int32.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from eoslog import _core
from eoslog._util.arguments import shown
from eoslog._util.extras import to_install
from eoslog.errors import ConfigError, ErrorCode, KafkaError, error_for

if TYPE_CHECKING:
    import pyarrow as pa

    from eoslog._core import Record

__all__ = [
    "COLUMNS",
    "ArrowColumn",
    "ArrowField",
    "Columns",
    "beyond_microseconds",
    "columns_of",
    "decoded_columns",
    "fields_of",
    "is_view",
    "nulls",
    "numbers",
    "primitive",
    "record_batch",
    "require_pyarrow",
    "schema_of",
]

COLUMNS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
_LAST_MICROSECOND = (1 << 63) - 1
_OF_THE_PARTITION = ("topic", "partition")


def require_pyarrow() -> Any:
    """Return the pyarrow module.

    Raises:
        ConfigError: if pyarrow is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError(
            f"pyarrow batches need the package 'pyarrow', which is missing; "
            f"{to_install('arrow', 'pyarrow')}"
        ) from error
    return pyarrow


class ArrowField(NamedTuple):
    """The name and type of a column in the form that the core takes; always nullable.

    Attributes:
        format: the Arrow C data interface's format: "l" is int64, "+s" a struct of its children.
        dictionary: the type of the values, for a dictionary column.
    """

    name: str
    format: str
    children: tuple[ArrowField, ...] = ()
    dictionary: ArrowField | None = None


class ArrowColumn(NamedTuple):
    """Rows of an ArrowField, over memory that the caller filled.

    Attributes:
        rows: the number of rows from `offset` on.
        nulls: the number of nulls in these rows; -1 if it is not known.
        buffers: the buffers in Arrow's layout; None where Arrow allows a missing one.
        offset: the number of rows to skip in the buffers.
    """

    rows: int
    nulls: int
    buffers: tuple[Any, ...]
    offset: int = 0
    children: tuple[ArrowColumn, ...] = ()
    dictionary: ArrowColumn | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """A batch of rows for any library that accepts Arrow's PyCapsules.

    Nothing is copied.

    Source: Arrow PyCapsule interface.
    """

    field: ArrowField
    column: ArrowColumn

    def __arrow_c_schema__(self) -> object:
        return _core.arrow_schema(self.field)

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        # The caller may request another type; the interface lets the caller cast then.
        return _core.arrow_schema(self.field), _core.arrow_array(self.column)


def fields_of(columns: Sequence[str], *, view: bool, flat: bool = False) -> ArrowField:
    """Return a struct of these columns; `view` selects binary_view instead of binary.

    Raises:
        ConfigError: if a column is unknown or repeated, or there is no column.
    """
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise ConfigError(
            f"columns: unknown column {unknown[0]!r}; the columns are {', '.join(COLUMNS)}"
        )
    if not columns or len(set(columns)) < len(columns):
        raise ConfigError(
            f"columns: must name at least one column, and none twice, got {list(columns)}"
        )
    binary = "vz" if view else "z"
    pair = ArrowField("item", "+s", (ArrowField("key", "u"), ArrowField("value", binary)))
    names = ArrowField("topic", "i", dictionary=ArrowField("", "u"))
    known = {
        "topic": ArrowField("topic", "u") if flat else names,
        "partition": ArrowField("partition", "i"),
        "offset": ArrowField("offset", "l"),
        "timestamp": ArrowField("timestamp", "tsu:UTC" if flat else "tsm:UTC"),
        "timestamp_type": ArrowField("timestamp_type", "i" if flat else "c"),
        "key": ArrowField("key", binary),
        "value": ArrowField("value", binary),
        "headers": ArrowField("headers", "+l", (pair,)),
    }
    return ArrowField("", "+s", tuple(known[name] for name in columns))


def is_view(binary: str) -> bool:
    """Whether keys and values are views.

    Raises:
        ConfigError: if `binary` is neither "view" nor "copy".
    """
    if binary not in ("view", "copy"):
        raise ConfigError(f'binary: expected "view" or "copy", got {shown(binary)}')
    return binary == "view"


def schema_of(columns: Sequence[str], *, view: bool, flat: bool = False) -> pa.Schema:
    """Return the pyarrow schema of these columns.

    Raises:
        ConfigError: as `fields_of`; or if pyarrow is not installed.
    """
    nothing = Columns(fields_of(columns, view=view, flat=flat), ArrowColumn(0, 0, ()))
    schema: pa.Schema = require_pyarrow().schema(nothing)
    return schema


def decoded_columns(columns: Sequence[str]) -> list[str]:
    """The columns that a ColumnDecoder fills.

    The others have the same value in every row.
    """
    return [name for name in columns if name not in _OF_THE_PARTITION]


def columns_of(
    taken: dict[str, Any],
    field: ArrowField,
    topics: Sequence[str],
    topic: int,
    partition: int,
    rows: range | None = None,
) -> Columns:
    """Wrap the result of `ColumnDecoder.take` in Arrow columns over the same memory.

    Args:
        taken: the decoded columns, which the result owns from now on.
        field: from `fields_of`, with the `view` and the `flat` of the decoder.
        topics: all topics of the scan, so that all its batches have the same dictionary.
        topic: the index of the topic.
        partition: the partition's number.
        rows: consecutive rows; None means all.
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
                pairs = ArrowColumn(count, 0, (None,), children=cells)
                parts.append(ArrowColumn(len(rows), 0, (None, ends), rows.start, children=(pairs,)))
            case "key" | "value":
                part = _cells(len(rows), taken[child.name], blocks)
                nulls = part.nulls if whole or not part.nulls else -1
                parts.append(part._replace(nulls=nulls, offset=rows.start))
            case _:
                parts.append(ArrowColumn(len(rows), 0, (None, taken[child.name]), rows.start))
    return Columns(field, ArrowColumn(len(rows), 0, (None,), children=tuple(parts)))


def beyond_microseconds(records: Iterable[Record], error: KafkaError) -> KafkaError:
    """Return the error for the first timestamp that does not fit into microseconds.

    Args:
        records: the records that were read.
        error: the error to return if there is no such record.
    """
    last = _LAST_MICROSECOND // 1000
    for record in records:
        if not -last <= record.timestamp <= last:
            return error_for(
                ErrorCode.INVALID_TIMESTAMP,
                f"{record.topic}-{record.partition} at offset {record.offset}: the timestamp "
                f"{record.timestamp} ms does not fit into a column of microseconds ({-last} to "
                f"{last} ms); read without the timestamp column (Spark: the option `columns`), or "
                f"start at offset {record.offset + 1}",
            )
    return error


def record_batch(columns: Columns) -> pa.RecordBatch:
    """Return the columns as a pyarrow record batch.

    Raises:
        ConfigError: if pyarrow is not installed.
    """
    batch: pa.RecordBatch = require_pyarrow().record_batch(columns)
    return batch


_LONGEST_TEXTS = (1 << 31) - 1
"""The most bytes of a text column, because Arrow's offsets are int32."""

_SHARED_ROWS = 1 << 17
"""Batches of at most this many rows share columns in which each row is the same."""


def _repeated(number: int, rows: int) -> ArrowColumn:
    """One int32 in each row."""
    make = _shared_numbers if rows <= _SHARED_ROWS else _numbers
    return ArrowColumn(rows, 0, (None, make(number, _rounded(rows))))


def _repeated_text(text: str, rows: int) -> ArrowColumn:
    """One text in each row.

    Raises:
        ConfigError: if the rows do not fit into a text column.
    """
    encoded = text.encode()
    if len(encoded) * rows > _LONGEST_TEXTS:
        raise ConfigError(
            f"topic {text!r}: {rows} rows do not fit into a record batch; ask for fewer rows"
        )
    make = _shared_copies if rows <= _SHARED_ROWS else _copies
    return ArrowColumn(rows, 0, (None, *make(encoded, _rounded(rows))))


def _rounded(rows: int) -> int:
    """Round up to a power of two, so that there are few sizes of shared columns."""
    return 1 << (rows - 1).bit_length() if 0 < rows <= _SHARED_ROWS else rows


def _numbers(number: int, rows: int) -> np.ndarray:
    return np.full(rows, number, np.int32)


def _copies(encoded: bytes, rows: int) -> tuple[np.ndarray, bytes]:
    return np.arange(rows + 1, dtype=np.int32) * np.int32(len(encoded)), encoded * rows


_shared_numbers = functools.lru_cache(maxsize=4)(_numbers)
_shared_copies = functools.lru_cache(maxsize=4)(_copies)


def _texts(values: Sequence[str]) -> ArrowColumn:
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *(len(one) for one in encoded)], dtype=np.int32)
    return ArrowColumn(len(encoded), 0, (None, ends, b"".join(encoded)))


def _cells(rows: int, taken: tuple[Any, ...], blocks: tuple[Any, ...]) -> ArrowColumn:
    validity, nulls, slots, copied = taken
    if copied is not None:
        return ArrowColumn(rows, nulls, (validity, slots, copied))
    sizes = np.array([len(block) for block in blocks], np.int64)
    return ArrowColumn(rows, nulls, (validity, slots, *blocks, sizes))


# `pa.array`, `pa.scalar` and `to_numpy` import pandas if it is installed: half a second and some
# 30,000 objects for the garbage collector. The functions below do without them.


def primitive(kind: pa.DataType, values: np.ndarray, null: np.ndarray | None = None) -> pa.Array:
    """An array of fixed width over the memory of `values` (of the same width).

    Args:
        kind: the type of the array.
        values: one value per row.
        null: true for rows without a value; None if every row has one.
    """
    pa = require_pyarrow()
    validity = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(
        kind, len(values), [validity, pa.py_buffer(values)], 0 if null is None else -1
    )


def nulls(array: pa.Array) -> np.ndarray:
    """For each row, whether it is null."""
    if array.null_count == 0:
        return np.zeros(len(array), bool)
    found = array.is_null()
    bits = np.unpackbits(np.frombuffer(found.buffers()[1], np.uint8), bitorder="little")
    return bits[found.offset : found.offset + len(found)].view(bool)


def numbers(array: pa.Array, kind: type[np.integer[Any]]) -> np.ndarray:
    """The values of an array of integers of this width; 0 for nulls."""
    if len(array) == 0:  # may come without a buffer
        return np.zeros(0, kind)
    size = np.dtype(kind).itemsize
    values = np.frombuffer(array.buffers()[1], kind, len(array), array.offset * size)
    return np.where(nulls(array), 0, values) if array.null_count else values
