"""Decoded columns as Arrow arrays, without a copy. Needs pyarrow, which is imported at first use.

| column | type |
|---|---|
| topic | dictionary<int32, utf8> |
| partition | int32 |
| offset | int64 |
| timestamp | timestamp[ms, UTC]; records without one have -1 |
| timestamp_type | int8: 0 CreateTime, 1 LogAppendTime |
| key, value | binary_view, or binary |
| headers | list<struct<key: utf8, value: binary_view or binary>> |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eoslog.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "COLUMNS",
    "decoded_columns",
    "nulls",
    "numbers",
    "primitive",
    "record_batch",
    "require_pyarrow",
    "schema_of",
    "text",
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
            "Arrow columns need the package 'pyarrow': install eoslog[arrow]"
        ) from error
    return pyarrow


def schema_of(columns: Sequence[str], *, view: bool) -> pa.Schema:
    """The schema of these columns; `view` chooses binary_view over binary.

    Raises:
        ConfigError: an unknown, repeated or missing column.
    """
    pa = require_pyarrow()
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise ConfigError(f"unknown column {unknown[0]!r}, the columns are {', '.join(COLUMNS)}")
    if not columns or len(set(columns)) < len(columns):
        raise ConfigError(
            f"columns must be named once each and be at least one, not {list(columns)}"
        )
    if view and not hasattr(pa, "binary_view"):
        raise ConfigError('this pyarrow has no binary_view: ask for binary="copy" or upgrade to 16')
    binary = pa.binary_view() if view else pa.binary()
    types = {
        "topic": pa.dictionary(pa.int32(), pa.utf8()),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("ms", tz="UTC"),
        "timestamp_type": pa.int8(),
        "key": binary,
        "value": binary,
        "headers": pa.list_(pa.struct([("key", pa.utf8()), ("value", binary)])),
    }
    return pa.schema([(name, types[name]) for name in columns])


def decoded_columns(columns: Sequence[str]) -> list[str]:
    """Those of the columns that a ColumnDecoder makes; the others are the same in every row."""
    return [name for name in columns if name not in _OF_THE_PARTITION]


def record_batch(
    taken: dict[str, Any], schema: pa.Schema, topics: Sequence[str], topic: int, partition: int
) -> pa.RecordBatch:
    """What `ColumnDecoder.take` gave, as a record batch over the same memory.

    Args:
        taken: the columns; none is kept elsewhere, the arrays own them from here on.
        schema: from `schema_of`, with the `view` of the decoder.
        topics: the topics of the whole scan: the dictionary is the same in each of its batches.
        topic: which of them.
        partition: the partition's number.
    """
    pa = require_pyarrow()
    rows = taken["rows"]
    blocks = [pa.py_buffer(block) for block in taken["buffers"]]
    arrays = []
    for field in schema:
        if field.name == "topic":
            indices = primitive(pa.int32(), np.full(rows, topic, np.int32))
            arrays.append(pa.DictionaryArray.from_arrays(indices, text(topics)))
        elif field.name == "partition":
            arrays.append(primitive(pa.int32(), np.full(rows, partition, np.int32)))
        elif field.name == "headers":
            arrays.append(_headers(pa, field.type, rows, taken["headers"], blocks))
        elif field.name in ("key", "value"):
            arrays.append(_cells(pa, field.type, rows, taken[field.name], blocks))
        else:
            buffers = [None, pa.py_buffer(taken[field.name])]
            arrays.append(pa.Array.from_buffers(field.type, rows, buffers, null_count=0))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


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


def text(values: Sequence[str]) -> pa.Array:
    """A utf8 array without nulls."""
    pa = require_pyarrow()
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *(len(one) for one in encoded)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.utf8(), len(encoded), buffers, null_count=0)


def _cells(pa: Any, kind: Any, rows: int, taken: tuple[Any, ...], blocks: list[Any]) -> pa.Array:
    validity, nulls, slots, copied = taken
    tail = blocks if copied is None else [pa.py_buffer(copied)]
    buffers = [None if validity is None else pa.py_buffer(validity), pa.py_buffer(slots), *tail]
    return pa.Array.from_buffers(kind, rows, buffers, null_count=nulls)


def _headers(pa: Any, kind: Any, rows: int, taken: tuple[Any, ...], blocks: list[Any]) -> pa.Array:
    ends, count, keys, values = taken
    pair = kind.value_type
    children = [
        _cells(pa, pair.field(0).type, count, keys, blocks),
        _cells(pa, pair.field(1).type, count, values, blocks),
    ]
    pairs = pa.StructArray.from_arrays(children, fields=[pair.field(0), pair.field(1)])
    return pa.Array.from_buffers(
        kind, rows, [None, pa.py_buffer(ends)], null_count=0, children=[pairs]
    )
