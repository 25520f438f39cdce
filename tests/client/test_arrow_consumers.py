"""Other libraries read a scan through the Arrow C stream (PyCapsule) interface; what they hold stays whole."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog.model import TopicPartition

pa = pytest.importorskip("pyarrow")

COUNT = 3000
VALUES = [b"value %04d, longer than a view holds in itself" % i for i in range(COUNT)]
WANTED = (COUNT, sum(map(len, VALUES)), COUNT - 1)


@pytest.fixture(params=["view", "copy"])
def binary(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Any]:
    """A topic with one partition and several segments."""
    with eoslog.open(tmp_path / "log", durability="os") as log:
        log.create_topic("t", partitions=1, config={"segment.bytes": "65536"})
        with log.producer() as producer:
            for i, value in enumerate(VALUES):
                producer.produce("t", value, key=b"%d" % (i % 7), timestamp=1_700_000_000_000 + i)
                if i % 100 == 99:
                    producer.flush()
        yield log


def test_pyarrow(log: Any, binary: str) -> None:
    table = pa.table(log.scan("t", binary=binary, columns=["offset", "value"]))
    assert table.column("value").to_pylist() == VALUES
    assert table.column("offset").to_pylist() == list(range(COUNT))


def test_polars(log: Any, binary: str) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(log.scan("t", binary=binary))
    assert frame["value"].to_list() == VALUES
    by_key = frame.group_by("key").len().sort("key")
    assert by_key["len"].to_list() == [len(range(k, COUNT, 7)) for k in range(7)]


def test_duckdb(log: Any, binary: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    scan = log.scan("t", binary=binary)  # found by its name in the query
    assert scan.ranges
    query = 'select count(*), sum(octet_length(value)), max("offset") from scan'
    assert duckdb.sql(query).fetchall() == [WANTED]


def test_pandas(log: Any, binary: str) -> None:
    pandas = pytest.importorskip("pandas", minversion="3")
    columns = ["offset", "value", "timestamp"]
    frame = pandas.DataFrame.from_arrow(log.scan("t", binary=binary, columns=columns))
    assert frame["value"].map(bytes).tolist() == VALUES
    assert frame["offset"].tolist() == list(range(COUNT))
    assert frame["timestamp"].iloc[-1].timestamp() == 1_700_000_000 + (COUNT - 1) / 1000


def test_columns_outlive_the_scan_the_log_and_the_files(log: Any, tmp_path: Path) -> None:
    table = pa.table(log.scan("t", columns=["value"]))
    log.delete_records({TopicPartition("t", 0): 2500})
    log.close()
    for file in (tmp_path / "log" / "t-0").iterdir():
        file.unlink()
    gc.collect()
    assert table.column("value").to_pylist() == VALUES


def test_columns_are_not_changed_by_what_comes_after(log: Any) -> None:
    table = pa.table(log.scan("t", columns=["value"]))
    with log.producer() as producer:
        producer.produce_many("t", [b"another " * 10] * 5000)
    log.close()
    with eoslog.open(log.path) as again:
        assert len(pa.table(again.scan("t", columns=["offset"]))) == COUNT + 5000
    assert table.column("value").to_pylist() == VALUES


def test_damage_reaches_whoever_reads_the_stream(log: Any, tmp_path: Path) -> None:
    *_, last = sorted((tmp_path / "log" / "t-0").glob("*.log"))
    data = bytearray(last.read_bytes())
    data[len(data) // 2] ^= 1
    last.write_bytes(data)
    read = []
    with pytest.raises(Exception, match="CorruptRecord"):
        for batch in pa.RecordBatchReader.from_stream(log.scan("t", columns=["value"])):
            read += batch.column("value").to_pylist()
    assert read == VALUES[: len(read)]
    assert len(read) >= int(last.stem)
