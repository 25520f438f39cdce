"""Arrow data into a producer: columns are read where they lie, no Python object a row.

| column | Arrow type | null means |
|---|---|---|
| value, key | binary or string of any kind | null |
| timestamp | timestamp of any unit, or integer ms | now |
| partition | integer | by key, or spread |
| headers | list of struct of key (string) and value (binary or string) | none |
"""

from __future__ import annotations

from typing import Any

from eoslog import _core
from eoslog.errors import ConfigError, SerializationError

__all__ = ["produce_stream"]

COLUMNS = ("value", "key", "timestamp", "partition", "headers")


def produce_stream(
    producer: _core.RecordAccumulator, topic: str, data: Any, *, more: bool = False
) -> int:
    """Buffer every row; see `Producer.produce_arrow`, and for `more` `_core.produce_columns`."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ConfigError("produce_arrow needs the package 'pyarrow'") from error
    count = 0
    for batch in _batches(pa, data):
        count += _produce_batch(pa, producer, topic, batch, more)
    return count


def _batches(pa: Any, data: Any) -> Any:
    if isinstance(data, pa.RecordBatch):
        return [data]
    if isinstance(data, pa.Table):
        return data.to_batches()
    if isinstance(data, pa.RecordBatchReader):
        return data
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    raise SerializationError(
        f"produce_arrow: expected Arrow data (a table, a record batch, a reader or an object with "
        f"__arrow_c_stream__), got {type(data).__name__}"
    )


def _produce_batch(
    pa: Any, producer: _core.RecordAccumulator, topic: str, batch: Any, more: bool
) -> int:
    names = batch.schema.names
    unknown = sorted(set(names) - set(COLUMNS))
    if unknown or len(set(names)) != len(names):
        raise SerializationError(
            f"produce_arrow: columns {names}; expected each at most once of {', '.join(COLUMNS)}"
        )
    columns = {name: batch.column(i) for i, name in enumerate(names)}
    binary = {name: _as_binary(pa, name, columns.get(name)) for name in ("value", "key")}
    stamps = _as_type(pa, "timestamp", columns.get("timestamp"), pa.int64())
    places = _as_type(pa, "partition", columns.get("partition"), pa.int32())
    headers = columns.get("headers")
    return _core.produce_columns(
        producer,
        topic,
        batch.num_rows,
        _buffers(pa, binary["value"]),
        _buffers(pa, binary["key"]),
        _buffers(pa, stamps),
        _buffers(pa, places),
        None if headers is None else [_pairs(row) for row in headers.to_pylist()],
        more=more,
    )


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
    raise SerializationError(f"produce_arrow: column {name} is {kind}, not binary or string")


def _as_type(pa: Any, name: str, column: Any, wanted: Any) -> Any:
    if column is None or pa.types.is_null(column.type):
        return None
    try:
        if pa.types.is_timestamp(column.type):
            if name == "partition":
                raise SerializationError("produce_arrow: column partition is a timestamp")
            return column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(wanted)
        if not pa.types.is_integer(column.type):
            raise SerializationError(f"produce_arrow: column {name} is {column.type}, not {wanted}")
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


def _pairs(row: Any) -> list[tuple[Any, Any]] | None:
    if not row:
        return None
    return [(item["key"], item["value"]) for item in row]
