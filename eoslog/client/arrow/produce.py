"""Arrow data for a producer, read in place without a Python object per row.

| column | Arrow type | null means |
|---|---|---|
| value, key | binary or string of any kind | null |
| timestamp | timestamp of any unit, or integer ms | now |
| partition | integer | chosen by the partitioner |
| headers | list of struct of key (string) and value (binary or string) | none |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eoslog import _core
from eoslog._util.extras import to_install
from eoslog.errors import ConfigError, SerializationError

__all__ = ["produce_stream", "record_rows"]

COLUMNS = ("value", "key", "timestamp", "partition", "headers")
PUBLISHING_ID = "publishing_id"
"""The column of integers that named producers take besides."""


def produce_stream(
    producer: _core.RecordAccumulator, topic: str, data: Any, *, more: bool = False
) -> int:
    """Buffer every row.

    For the arguments see `Producer.produce_arrow`, for `more` see `_core.produce_columns`.
    """
    pa = _pyarrow()
    count = 0
    for batch in _batches(pa, data):
        count += _produce_batch(pa, producer, topic, batch, more)
    return count


def record_rows(data: Any) -> Iterator[tuple[Any, ...]]:
    """Yield (value, key, timestamp, partition, headers, publishing id) of each row."""
    pa = _pyarrow()
    for batch in _batches(pa, data):
        columns = _columns(batch, (*COLUMNS, PUBLISHING_ID))
        headers = columns.get("headers")
        found = [_as_binary(pa, name, columns.get(name)) for name in ("value", "key")]
        found += [
            _as_type(pa, "timestamp", columns.get("timestamp"), pa.int64()),
            _as_type(pa, "partition", columns.get("partition"), pa.int32()),
        ]
        nothing = [None] * batch.num_rows
        rows = [nothing if column is None else column.to_pylist() for column in found]
        rows.append((None if headers is None else _header_rows(pa, headers)) or nothing)
        ids = _as_type(pa, PUBLISHING_ID, columns.get(PUBLISHING_ID), pa.int64())
        rows.append(nothing if ids is None else ids.to_pylist())
        yield from zip(*rows, strict=True)


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ConfigError(
            f"produce_arrow: the package 'pyarrow' is missing; {to_install('arrow', 'pyarrow')}"
        ) from error
    return pa


def _batches(pa: Any, data: Any) -> Any:
    if isinstance(data, pa.RecordBatch):
        return [data]
    if isinstance(data, pa.Table):
        return data.to_batches()
    if isinstance(data, pa.RecordBatchReader):
        return data
    if hasattr(data, "__arrow_c_stream__"):
        try:
            return pa.RecordBatchReader.from_stream(data)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise SerializationError(
                f"produce_arrow: {type(data).__name__} is not a stream of record batches: {error}"
            ) from error
    raise SerializationError(
        f"produce_arrow: expected Arrow data (a table, a record batch, a reader or an object with "
        f"__arrow_c_stream__), got {type(data).__name__}"
    )


def _produce_batch(
    pa: Any, producer: _core.RecordAccumulator, topic: str, batch: Any, more: bool
) -> int:
    columns = _columns(batch, COLUMNS)
    binary = {name: _as_binary(pa, name, columns.get(name)) for name in ("value", "key")}
    stamps = _as_type(pa, "timestamp", columns.get("timestamp"), pa.int64())
    places = _as_type(pa, "partition", columns.get("partition"), pa.int32())
    headers = columns.get("headers")
    pairs = None if headers is None else _header_rows(pa, headers)
    return _core.produce_columns(
        producer,
        topic,
        batch.num_rows,
        _buffers(pa, binary["value"]),
        _buffers(pa, binary["key"]),
        _buffers(pa, stamps),
        _buffers(pa, places),
        pairs,
        more=more,
    )


def _columns(batch: Any, known: tuple[str, ...]) -> dict[str, Any]:
    names = batch.schema.names
    if PUBLISHING_ID in names and PUBLISHING_ID not in known:
        raise SerializationError(
            f"produce_arrow: column {PUBLISHING_ID}: the producer has no name; create it with "
            "log.producer(name=...)"
        )
    unknown = sorted(set(names) - set(known))
    if unknown or len(set(names)) != len(names):
        raise SerializationError(
            f"produce_arrow: columns {names}: expected each of {', '.join(known)} at most once; "
            "rename or drop the others"
        )
    if "value" not in names:
        raise SerializationError(
            f"produce_arrow: columns {names}: the column value is missing; add it, with nulls for "
            "tombstones"
        )
    return {name: batch.column(i) for i, name in enumerate(names)}


def _as_binary(pa: Any, name: str, column: Any) -> Any:
    if column is None or pa.types.is_null(column.type):
        return None
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if kind in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string()):
        return column
    views = (getattr(pa.types, "is_binary_view", None), getattr(pa.types, "is_string_view", None))
    if pa.types.is_fixed_size_binary(kind) or any(is_view and is_view(kind) for is_view in views):
        return column.cast(pa.large_binary())
    raise SerializationError(
        f"produce_arrow: column {name} has type {kind}, expected binary or string; cast the column"
    )


def _as_type(pa: Any, name: str, column: Any, wanted: Any) -> Any:
    if column is None or pa.types.is_null(column.type):
        return None
    try:
        if pa.types.is_timestamp(column.type):
            if name != "timestamp":
                raise SerializationError(
                    f"produce_arrow: column {name} has type {column.type}, expected an integer; "
                    "cast the column"
                )
            return column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(wanted)
        if not pa.types.is_integer(column.type):
            raise SerializationError(
                f"produce_arrow: column {name} has type {column.type}, expected {wanted}; cast the "
                "column"
            )
        return column.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SerializationError(f"produce_arrow: column {name}: {error}") from error


def _buffers(pa: Any, column: Any) -> Any:
    if column is None:
        return None
    where = [None if b is None else (b.address, b.size) for b in column.buffers()]
    wide = column.type in (pa.large_binary(), pa.large_string())
    if len(where) == 2:
        return column.offset, where[0], None, where[1], False
    return column.offset, where[0], where[1], where[2], wide


def _header_rows(pa: Any, column: Any) -> list[Any] | None:
    """The (name, value) pairs of each row; a map is treated as a list of structs."""
    kind, types = column.type, pa.types
    if types.is_null(kind):
        return None
    if types.is_map(kind):
        return [row or None for row in column.to_pylist()]
    views = [getattr(types, name, None) for name in ("is_list_view", "is_large_list_view")]
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list, *filter(None, views))
    item = kind.value_type if any(is_list(kind) for is_list in lists) else None
    if item is None or not types.is_struct(item) or item.names != ["key", "value"]:
        raise SerializationError(
            f"produce_arrow: column headers has type {kind}, expected list<struct<key: string, "
            "value: binary>> or map<string, binary>; cast the column"
        )
    rows = column.to_pylist()
    if any(row and None in row for row in rows):
        raise SerializationError(
            "produce_arrow: column headers: a header is null; every list item must be a struct"
        )
    return [[tuple(pair.values()) for pair in row] if row else None for row in rows]
