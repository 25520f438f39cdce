"""`Scan.to_polars`, `to_pandas` and `to_parquet`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest

import eoslog
from eoslog import errors


@pytest.fixture
def log(tmp_path: Path) -> Iterator[eoslog.Log]:
    with eoslog.open(tmp_path / "log", durability="os") as log:
        log.create_topic("orders", partitions=2)
        with log.producer() as producer:
            for number in range(100):
                producer.produce("orders", str(number), f"k{number % 7}")
        yield log


def expected(log: eoslog.Log) -> list[bytes]:
    return [record.value for record in log.read("orders")]


def test_frames_have_all_records_in_order(log):
    scan = log.scan("orders")
    assert scan.to_polars()["value"].to_list() == expected(log)
    assert list(scan.to_pandas()["value"]) == expected(log)


@pytest.mark.parametrize("binary", [None, "view", "copy"])
def test_a_parquet_file_has_all_records_and_replaces_the_old_one(log, tmp_path, binary):
    target = tmp_path / "orders.parquet"
    target.write_bytes(b"old")
    scan = log.scan("orders", columns=["offset", "value"], batch_rows=7, binary=binary)
    assert scan.to_parquet(target) == 100
    table = pyarrow.parquet.read_table(target)
    assert table.column_names == ["offset", "value"]
    assert table["value"].to_pylist() == expected(log)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "orders.parquet"]


def test_a_failed_parquet_file_leaves_the_old_one(log, tmp_path):
    target = tmp_path / "orders.parquet"
    target.write_bytes(b"old")
    scan = log.scan("orders", batch_rows=10)
    log.delete_topic("orders")
    with pytest.raises(errors.UnknownTopicOrPartition):
        scan.to_parquet(target)
    assert target.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "orders.parquet"]


def test_a_parquet_file_in_a_missing_folder_is_refused(log, tmp_path):
    with pytest.raises(errors.StorageError, match=r"none/orders\.parquet"):
        log.scan("orders").to_parquet(tmp_path / "none" / "orders.parquet")


@pytest.mark.parametrize(
    ("call", "package"),
    [("to_polars", "polars"), ("to_pandas", "pandas"), ("to_parquet", "pyarrow.parquet")],
)
def test_a_missing_package_is_named_with_its_command(log, tmp_path, monkeypatch, call, package):
    monkeypatch.setitem(sys.modules, package, None)
    arguments = [tmp_path / "x"] if call == "to_parquet" else []
    with pytest.raises(errors.ConfigError, match=f"{call} needs the package .*pip install"):
        getattr(log.scan("orders"), call)(*arguments)


@pytest.mark.parametrize("call", ["to_polars", "to_pandas", "to_parquet"])
def test_a_record_that_does_not_parse_is_the_error_of_each_call(log, tmp_path, call):
    with log.producer() as producer:
        producer.produce("orders", b"{", partition=1)
    scan = log.scan("orders", value="json", schema=pyarrow.schema([("n", pyarrow.int64())]))
    arguments = [tmp_path / "orders.parquet"] if call == "to_parquet" else []
    with pytest.raises(errors.SerializationError, match="orders-. at offset"):
        getattr(scan, call)(*arguments)


def test_an_error_of_polars_itself_is_raised_as_it_is(log, monkeypatch):
    polars = pytest.importorskip("polars")

    def fail(data):
        raise polars.exceptions.ShapeError("theirs")

    monkeypatch.setattr(polars, "DataFrame", fail)
    with pytest.raises(polars.exceptions.ShapeError, match="theirs"):
        log.scan("orders").to_polars()
