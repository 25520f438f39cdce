"""Arrow arrays are created and read without pandas.

pyarrow's own conversions import pandas.
"""

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa

from eoslog.client.arrow import schema as arrow


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 64, 65])
def test_numbers_survive_a_round_trip_through_an_array_with_nulls(rows):
    values = np.arange(rows, dtype=np.int64) - 3
    null = values % 3 == 0
    array = arrow.primitive(pa.int64(), values, null)
    array.validate(full=True)
    assert array.to_pylist() == [None if none else n for n, none in zip(values, null, strict=True)]
    for start in range(min(rows, 10)):
        part = array.slice(start)
        assert arrow.nulls(part).tolist() == null[start:].tolist()
        assert arrow.numbers(part, np.int64).tolist() == np.where(null, 0, values)[start:].tolist()


def test_an_array_without_nulls_reports_a_null_count_of_zero():
    array = arrow.primitive(pa.int32(), np.arange(5, dtype=np.int32))
    array.validate(full=True)
    assert array.null_count == 0 and array.to_pylist() == [0, 1, 2, 3, 4]
    assert not arrow.nulls(array.slice(1)).any()
    assert arrow.numbers(array.slice(2), np.int32).tolist() == [2, 3, 4]


SCAN_AND_PRODUCE = """
import sys
import eoslog

with eoslog.open(sys.argv[1]) as log:
    log.create_topic("s")
    log.create_topic("t")
    with log.producer() as producer:
        producer.produce_many("s", [b"a", b"b"])
    kept = next(iter(log.scan("s", columns=["value"])))
    with log.producer() as producer:
        producer.produce_arrow("t", kept)
    assert sum(batch.num_rows for batch in log.scan("t")) == 2
assert "pandas" not in sys.modules
"""


def test_a_scan_does_not_import_pandas(tmp_path):
    # It costs a new process half a second, and its garbage collections 30,000 objects.
    subprocess.run([sys.executable, "-c", SCAN_AND_PRODUCE, str(tmp_path / "log")], check=True)
