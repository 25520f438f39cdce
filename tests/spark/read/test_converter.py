"""Arrays in the types Spark insists on, without Spark."""

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")
from pyspark_eoslog.read.batch import as_wanted

from eoslog.errors import CorruptRecord


def test_missing_headers_are_null_as_in_the_kafka_source():
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    one = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    lists = pa.array([[], one, [], [], one, None], kind)
    for array in (lists, lists[1:], lists[2:4]):
        found = as_wanted(array, kind)
        assert found.type == kind
        assert found.to_pylist() == [row or None for row in array.to_pylist()]


def test_bytes_that_are_not_utf_8_raise_an_error_that_names_the_option():
    with pytest.raises(CorruptRecord, match="valueFormat"):
        as_wanted(pa.array([b"\xff"]), pa.string())
