"""Arrow columns into batches, against the rows they hold."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from eoslog import _core
from eoslog.client.arrow.produce import produce_stream
from eoslog.errors import CorruptRecord, SerializationError, UnknownTopicOrPartition
from tests.core.producer.test_accumulator import make, records

pa = pytest.importorskip("pyarrow")

BINARIES = [b"one", b"", None, b"four", b"\xff" * 300]


def rows(accumulator: Any) -> list[tuple[Any, ...]]:
    return [(p, r.key, r.value, r.timestamp, list(r.headers)) for p, r in records(accumulator)]


@pytest.mark.parametrize(
    "kind", ["binary", "large_binary", "binary_view", "dictionary", "string", "large_string"]
)
def test_binary_columns_of_every_type_keep_their_nulls(kind: str) -> None:
    if kind == "dictionary":
        column = pa.array(BINARIES).dictionary_encode()
    elif "string" in kind:
        column = pa.array(["one", "", None, "vier", "ä" * 9], getattr(pa, kind)())
    elif not hasattr(pa, kind):
        pytest.skip(f"this pyarrow has no {kind}")
    else:
        column = pa.array(BINARIES, getattr(pa, kind)())
    a = make()
    assert produce_stream(a, "t", pa.table({"value": column, "key": column})) == 5
    expected = [v.encode() if isinstance(v, str) else v for v in column.to_pylist()]
    assert [(k, v) for _, k, v, _, _ in rows(a)] == [(v, v) for v in expected]


def test_sliced_and_fixed_size_arrays_are_produced_like_rows() -> None:
    a = make()
    column = pa.array(BINARIES * 3).slice(3, 9)
    fixed = pa.array([b"ab", None, b"cd"] * 5, pa.binary(2)).slice(1, 9)
    stamps = pa.array(range(100, 120), pa.int64()).slice(5, 9)
    batch = pa.record_batch({"value": column, "key": fixed, "timestamp": stamps})
    assert produce_stream(a, "t", batch.slice(1, 7)) == 7
    assert [(k, v, t) for _, k, v, t, _ in rows(a)] == list(
        zip(fixed.to_pylist()[1:8], column.to_pylist()[1:8], range(106, 113), strict=True)
    )


def test_arrow_columns_set_partition_timestamp_and_headers() -> None:
    a = make(4)
    when = datetime(2024, 1, 2, 3, 4, 5, 678000, UTC)
    table = pa.table(
        {
            "value": pa.array(["a", "b", "c"]),
            "partition": pa.array([3, 0, 1], pa.int8()),
            "timestamp": pa.array([when] * 3, pa.timestamp("us", "UTC")),
            "headers": pa.array(
                [[{"key": "h", "value": b"x"}, {"key": "n", "value": None}], None, []],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    assert produce_stream(a, "t", table) == 3
    milliseconds = int(when.timestamp() * 1000)
    assert sorted(rows(a)) == [
        (0, None, b"b", milliseconds, []),
        (1, None, b"c", milliseconds, []),
        (3, None, b"a", milliseconds, [("h", b"x"), ("n", None)]),
    ]


def test_arrow_keys_select_the_partition_that_produce_selects() -> None:
    a = make(7)
    keys = [b"key%d" % i for i in range(500)]
    produce_stream(a, "t", pa.table({"value": keys, "key": keys}))
    for partition, key, *_ in rows(a):
        assert partition == _core.partition_for_key(key, 7)


def test_arrow_readers_and_streams_are_consumed_batch_by_batch() -> None:
    table = pa.table({"value": [b"%d" % i for i in range(1000)]})

    class Stream:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return table.__arrow_c_stream__(requested_schema)

    for source in (table.to_reader(100), Stream()):
        a = make()
        assert produce_stream(a, "t", source) == 1000
        assert [v for _, _, v, _, _ in rows(a)] == table.column("value").to_pylist()


def test_a_null_value_column_produces_null_values() -> None:
    a = make()
    produce_stream(a, "t", pa.table({"key": [b"k"], "value": pa.nulls(1)}))
    assert [(k, v) for _, k, v, _, _ in rows(a)] == [(b"k", None)]


def test_arrow_data_without_a_value_column_deletes_no_key() -> None:
    a = make()
    with pytest.raises(SerializationError, match="value is missing; add it"):
        produce_stream(a, "t", pa.table({"key": [b"k"]}))
    assert rows(a) == []


@pytest.mark.parametrize(
    "data",
    [
        {"value": [1, 2]},
        {"value": [b"v"], "colour": [b"red"]},
        {"value": [b"v"], "timestamp": ["now"]},
        {"value": [b"v"], "timestamp": [-1]},
        {"value": [b"v"], "partition": [1.5]},
        {"value": [b"v"], "partition": [1 << 40]},
    ],
)
def test_wrong_arrow_columns_are_rejected(data: dict[str, Any]) -> None:
    with pytest.raises(SerializationError):
        produce_stream(make(), "t", pa.table(data))


def test_produce_arrow_rejects_other_objects_and_unknown_topics() -> None:
    with pytest.raises(SerializationError):
        produce_stream(make(), "t", [1, 2])
    with pytest.raises(UnknownTopicOrPartition):
        produce_stream(make(), "nope", pa.table({"value": [b"v"]}))
    with pytest.raises(UnknownTopicOrPartition):
        produce_stream(make(), "t", pa.table({"value": [b"v"], "partition": [1]}))


def test_arrow_buffers_that_are_too_short_are_not_read() -> None:
    a = make()
    good = pa.array([b"abc", b"de"], pa.binary())
    _, offsets, data = good.buffers()
    place, bytes_ = (offsets.address, offsets.size), (data.address, data.size)
    with pytest.raises(CorruptRecord):
        _core.produce_columns(a, "t", 2, (0, None, (offsets.address, 8), bytes_, False))
    with pytest.raises(CorruptRecord):
        _core.produce_columns(a, "t", 2, (0, None, place, (data.address, 4), False))
    with pytest.raises(CorruptRecord):
        _core.produce_columns(a, "t", 200, (0, (offsets.address, 2), place, bytes_, False))
    with pytest.raises(CorruptRecord):
        _core.produce_columns(a, "t", 2, (-1, None, place, bytes_, False))
