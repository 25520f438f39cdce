"""Arrays in the types Spark insists on, without Spark."""

import datetime

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")
from pyspark_eoslog.reader import LAST_MS, Converter

from eoslog.errors import CorruptRecord

MICROSECONDS = pa.timestamp("us", tz="UTC")


def topics(name, count):
    indices = pa.array([0] * count, pa.int32())
    return pa.DictionaryArray.from_arrays(indices, pa.array([name]))


def milliseconds(*values):
    return pa.array(values, pa.int64()).view(pa.timestamp("ms", tz="UTC"))


def test_each_row_has_the_name_of_its_batch_whatever_came_before():
    convert = Converter()
    for name, count in (("a", 2), ("a", 5), ("b", 3), ("a", 1)):
        found = convert(topics(name, count), pa.string())
        assert found.type == pa.string()
        assert found.to_pylist() == [name] * count


def test_milliseconds_become_microseconds_of_the_same_time():
    found = Converter()(milliseconds(0, 1_700_000_000_123, -1), MICROSECONDS)
    assert found.type == MICROSECONDS
    assert found.to_pylist()[1] == datetime.datetime(
        2023, 11, 14, 22, 13, 20, 123000, tzinfo=datetime.UTC
    )
    assert found.view(pa.int64()).to_pylist() == [0, 1_700_000_000_123_000, -1000]


@pytest.mark.parametrize("beyond", [LAST_MS + 1, -LAST_MS - 1, (1 << 63) - 1, -(1 << 63)])
def test_a_time_that_spark_cannot_hold_is_an_error_with_its_value(beyond):
    convert = Converter()
    assert convert(milliseconds(LAST_MS, -LAST_MS), MICROSECONDS).view(pa.int64()).to_pylist() == [
        LAST_MS * 1000,
        -LAST_MS * 1000,
    ]
    with pytest.raises(CorruptRecord, match=str(beyond)):
        convert(milliseconds(5, beyond), MICROSECONDS)


def test_no_headers_are_null_as_in_spark_s_kafka_source():
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    one = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    lists = pa.array([[], one, [], [], one, None], kind)
    for array in (lists, lists[1:], lists[2:4]):
        found = Converter()(array, kind)
        assert found.type == kind
        assert found.to_pylist() == [row or None for row in array.to_pylist()]


def test_bytes_that_are_no_text_are_an_error_that_names_the_option():
    with pytest.raises(CorruptRecord, match="valueFormat"):
        Converter()(pa.array([b"\xff"]), pa.string())
