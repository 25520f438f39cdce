"""Other libraries read a scan through the Arrow C stream (PyCapsule) interface.

The data that they hold stays intact.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eoslog
from eoslog import _core
from eoslog.client.arrow import schema as arrow
from eoslog.model import TopicPartition
from eoslog.storage.segment import segment as segments

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


def test_pyarrow_reads_every_column_of_a_scan(log: Any, binary: str) -> None:
    table = pa.table(log.scan("t", binary=binary, columns=["offset", "value"]))
    assert table.column("value").to_pylist() == VALUES
    assert table.column("offset").to_pylist() == list(range(COUNT))


def test_polars_reads_every_column_of_a_scan(log: Any, binary: str) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(log.scan("t", binary=binary))
    assert frame["value"].to_list() == VALUES
    by_key = frame.group_by("key").len().sort("key")
    assert by_key["len"].to_list() == [len(range(k, COUNT, 7)) for k in range(7)]


def test_duckdb_queries_a_scan(log: Any, binary: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    scan = log.scan("t", binary=binary)  # found by its name in the query
    assert scan.ranges
    query = 'select count(*), sum(octet_length(value)), max("offset") from scan'
    assert duckdb.sql(query).fetchall() == [WANTED]


def test_pandas_reads_a_scan(log: Any, binary: str) -> None:
    pandas = pytest.importorskip("pandas", minversion="3")
    columns = ["offset", "value", "timestamp"]
    frame = pandas.DataFrame.from_arrow(log.scan("t", binary=binary, columns=columns))
    assert frame["value"].map(bytes).tolist() == VALUES
    assert frame["offset"].tolist() == list(range(COUNT))
    assert frame["timestamp"].iloc[-1].timestamp() == 1_700_000_000 + (COUNT - 1) / 1000


WITHOUT_PYARROW = """
import sys
sys.modules["pyarrow"] = None  # every import of it fails
import duckdb, polars
import eoslog
from eoslog.errors import ConfigError

with eoslog.open(sys.argv[1], read_only=True) as log:
    for binary in ("view", "copy"):
        scan = log.scan("t", binary=binary)
        frame = polars.DataFrame(scan)
        query = 'select count(*), sum(octet_length(value)), max("offset") from scan'
        assert duckdb.sql(query).fetchall() == [(len(frame), frame["value"].bin.size().sum(), frame["offset"].max())]
        print(len(frame), frame["value"].bin.size().sum(), frame["offset"].max())
    try:
        next(iter(scan))
    except ConfigError as error:
        print(error)
"""


def test_a_scan_is_read_without_pyarrow(log: Any, tmp_path: Path) -> None:
    pytest.importorskip("polars")
    pytest.importorskip("duckdb")
    command = [sys.executable, "-c", WITHOUT_PYARROW, str(tmp_path / "log")]
    *rows, said = subprocess.check_output(command, text=True).splitlines()
    assert rows == [" ".join(map(str, WANTED))] * 2
    assert "pip install '.[arrow]'" in said


def test_the_arrow_stream_contains_every_column_and_null(log: Any, binary: str) -> None:
    log.create_topic("u", partitions=2)
    with log.producer(linger_ms=60_000) as producer:  # one batch per partition
        for i in range(300):
            value = None if i % 3 == 0 else b"v" * (i % 40)
            headers = [("h", None), ("ä", b"x" * (i % 20))][: i % 3]
            producer.produce(
                "u", value, key=None if i % 5 == 0 else b"k", partition=i % 2, headers=headers
            )
    scan = log.scan("u", binary=binary, batch_rows=7)
    table = pa.table(scan)
    table.validate(full=True)
    assert table.schema == scan.schema
    assert table.to_pylist() == [row for batch in scan for row in batch.to_pylist()]
    assert {len(batch) for batch in scan} == {7, 150 % 7}
    by_offset = {(row["partition"], row["offset"]): row for row in table.to_pylist()}
    for i in range(300):
        row = by_offset[i % 2, i // 2]
        assert row["topic"] == "u"
        assert row["key"] == (None if i % 5 == 0 else b"k")
        assert row["value"] == (None if i % 3 == 0 else b"v" * (i % 40))
        headers = [("h", None), ("ä", b"x" * (i % 20))][: i % 3]
        assert [(header["key"], header["value"]) for header in row["headers"]] == headers


def test_mappings_are_released_when_no_column_refers_to_them(
    log: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "REMAP_SIZE", 4096)  # these small segments are mapped, too

    def mapped() -> int:
        gc.collect()
        return Path("/proc/self/maps").read_text().count(f"{tmp_path}/log/t-0/")

    log.close()
    before = mapped()
    with eoslog.open(tmp_path / "log", read_only=True) as reader:
        table = pa.table(reader.scan("t", columns=["value"]))
        begun = pa.RecordBatchReader.from_stream(reader.scan("t", columns=["value"], batch_rows=10))
        part = begun.read_next_batch().column("value")
        reader.scan("t").__arrow_c_stream__()  # no consumer takes it
        reader.scan("t").__arrow_c_schema__()
    assert mapped() > before
    del table, begun
    assert part.to_pylist() == VALUES[:10]
    del part
    assert mapped() == before


def test_columns_outlive_the_scan_the_log_and_the_files(log: Any, tmp_path: Path) -> None:
    table = pa.table(log.scan("t", columns=["value"]))
    log.delete_records({TopicPartition("t", 0): 2500})
    log.close()
    for file in (tmp_path / "log" / "t-0").iterdir():
        file.unlink()
    gc.collect()
    assert table.column("value").to_pylist() == VALUES


def test_columns_do_not_change_after_later_writes(log: Any) -> None:
    table = pa.table(log.scan("t", columns=["value"]))
    with log.producer() as producer:
        producer.produce_many("t", [b"another " * 10] * 5000)
    log.close()
    with eoslog.open(log.path) as again:
        assert len(pa.table(again.scan("t", columns=["offset"]))) == COUNT + 5000
    assert table.column("value").to_pylist() == VALUES


def test_a_stream_raises_where_a_batch_is_damaged(log: Any, tmp_path: Path) -> None:
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


def test_an_empty_batch_from_a_consumer_does_not_import_pandas(log: Any) -> None:
    pytest.importorskip("pandas")
    code = (
        "import sys, eoslog\n"
        "with eoslog.open(sys.argv[1]) as log, log.consumer('t') as consumer:\n"
        "    batch = consumer.consume_arrow(timeout=0)\n"
        "batch.validate(full=True)\n"
        "print(batch.num_rows, batch.num_columns, 'pandas' in sys.modules)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, log.path], capture_output=True, text=True, timeout=60
    )
    assert ran.stdout == "0 8 False\n", ran.stderr


class Untold(Exception):
    """What no text can be made of, as where no memory is left."""

    def __str__(self) -> str:
        raise MemoryError


@pytest.mark.parametrize(
    "error",
    [ValueError("a\0b"), ValueError("\ud800"), MemoryError(), KeyboardInterrupt(), Untold()],
)
def test_a_failed_stream_never_ends_as_if_it_were_complete(error: BaseException) -> None:
    def batches() -> Iterator[arrow.ArrowColumn]:
        numbers = arrow.ArrowColumn(2, 0, (None, np.array([5, 7], np.int32)))
        yield arrow.ArrowColumn(2, 0, (None,), children=(numbers,))
        raise error

    class Stream:
        def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
            return _core.arrow_stream(arrow.fields_of(["partition"], view=True), batches())

    reader = pa.RecordBatchReader.from_stream(Stream())
    assert reader.read_next_batch().to_pydict() == {"partition": [5, 7]}
    for _ in range(3):
        with pytest.raises((OSError, MemoryError)):
            reader.read_next_batch()
    with pytest.raises((OSError, MemoryError)):
        pa.table(Stream())
