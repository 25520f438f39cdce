"""Columns work in pyarrow, and times beyond microseconds are milliseconds."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import _core
from eoslog.errors import ConfigError, ErrorCode, KafkaError

pa = pytest.importorskip("pyarrow")

FAR = 9_223_372_036_854_776  # ms: one more than 2^63 - 1 microseconds
TIMES = [1_700_000_000_000, -1, FAR - 1, FAR, (1 << 63) - 1]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        with log.producer() as producer:
            for key in (b"b", b"a", None, b"a"):
                producer.produce("t", b"v" * 20, key, headers=[("h", b"x" * 20)])
    return tmp_path / "log"


def work(table: Any) -> None:
    """What is done with any table."""
    import pyarrow.compute as pc
    import pyarrow.csv

    assert table.sort_by("key").column("key").to_pylist() == [b"a", b"a", b"b", None]
    assert table.filter(pc.equal(table["key"], b"a")).num_rows == 2
    assert table.take([1, 0]).column("offset").to_pylist() == [1, 0]
    assert table.group_by("key").aggregate([("offset", "count")]).num_rows == 3
    keyed = table.select(["key", "offset"])
    assert keyed.join(keyed, "key", right_suffix="_2").num_rows == 6
    out = io.BytesIO()
    pyarrow.csv.write_csv(table.select(["offset", "key", "value"]), out)
    assert b"v" * 20 in out.getvalue()


def test_field_D6_pyarrow_sorts_filters_joins_and_writes_a_table_of_a_scan(
    directory: Path,
) -> None:
    with eoslog.open(directory) as log:
        for scan in (log.scan("t"), eoslog.read_segments(directory / "t-0")):
            work(scan.to_table())
            assert scan.to_table().schema.field("key").type == pa.binary()
            assert scan.schema.field("key").type == pa.binary_view()
            assert next(iter(scan)).schema == scan.schema == pa.table(scan).schema
        work(log.scan("t", binary="copy").to_table())
        assert log.scan("t", binary="view").to_table().schema.field("key").type == pa.binary_view()
        empty = log.scan("t", end=0).to_table()
        assert (empty.num_rows, empty.schema.field("key").type) == (0, pa.binary())
        with pytest.raises(ConfigError, match='binary: expected "view" or "copy", got 5'):
            log.scan("t", binary=5)


def test_field_D6_a_consumed_batch_can_be_copied_for_pyarrow(directory: Path) -> None:
    with eoslog.open(directory) as log, log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([eoslog.TopicPartition("t", 0, 0)])
        batch = consumer.consume_arrow(timeout=60, binary="copy")
        work(pa.table(batch))
        for binary, kind in (("copy", pa.binary()), ("view", pa.binary_view())):
            empty = consumer.consume_arrow(timeout=0, binary=binary)
            assert (empty.num_rows, empty.schema.field("key").type) == (0, kind)
        with pytest.raises(ConfigError, match="binary"):
            consumer.consume_arrow(timeout=0, binary="plain")


@pytest.fixture
def far(tmp_path: Path) -> Path:
    """A log with one batch for each time, and a broker's log with negative ones."""
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        with log.producer() as producer:
            for stamp in TIMES:
                if stamp >= 0:
                    producer.produce("t", b"%d" % stamp, timestamp=stamp)
                    producer.flush()
    return tmp_path / "log"


def test_field_D5_any_timestamp_is_read_as_milliseconds(far: Path) -> None:
    wanted = [stamp for stamp in TIMES if stamp >= 0]
    with eoslog.open(far) as log:
        assert [record.timestamp for record in log.read("t")] == wanted
        table = log.scan("t").to_table()
        assert table.column("timestamp").cast(pa.int64()).to_pylist() == wanted
        pandas = pytest.importorskip("pandas")
        frame = table.to_pandas()
        assert frame["timestamp"].astype("int64").tolist() == wanted
        assert isinstance(frame, pandas.DataFrame)
        polars = pytest.importorskip("polars")
        assert polars.DataFrame(log.scan("t"))["timestamp"].cast(polars.Int64).to_list() == wanted


def test_field_D5_the_command_line_shows_any_timestamp(far: Path) -> None:
    pytest.importorskip("click")
    from eoslog.cli import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(["-d", str(far), "consume", "t", "--from-beginning", "--max", "4"])
    shown = [json.loads(line)["timestamp"] for line in out.getvalue().splitlines()]
    assert shown == [stamp for stamp in TIMES if stamp >= 0]


@pytest.mark.parametrize("layout", ["eoslog", "kafka"])
def test_field_D5_spark_names_a_record_whose_time_exceeds_microseconds(
    layout: str, far: Path
) -> None:
    pytest.importorskip("pyspark")
    from pyspark_eoslog import DefaultSource

    def rows(**options: str) -> int:
        given = {"path": str(far), "layout": layout, "subscribe": "t", **options}
        source = DefaultSource(given)
        reader = source.reader(source.schema())
        return sum(b.num_rows for task in reader.partitions() for b in reader.read(task))

    with pytest.raises(KafkaError) as caught:
        rows()
    assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
    text = str(caught.value)
    assert f"t-0 at offset 2: the timestamp {FAR} ms does not fit into a column of micro" in text
    assert "read without the timestamp column (Spark: the option `columns`)" in text
    assert "or start at offset 3" in text
    assert rows(columns="offset,value") == 4
    assert rows(endingOffsets='{"t":{"0":2}}') == 2


@pytest.mark.parametrize("stamp", [-2, -(1 << 62), -(1 << 63)])
def test_field_D5_negative_timestamps_of_other_writers_are_read_unchanged(
    stamp: int, tmp_path: Path
) -> None:
    from tests.reference import codec

    place = tmp_path / "t-0"
    place.mkdir()
    data = codec.encode_batch([(0, None, b"v", ())], base_offset=0)
    raw = bytearray(data)
    for at in (27, 35):  # base and largest timestamp
        raw[at : at + 8] = stamp.to_bytes(8, "big", signed=True)
    raw[17:21] = _core.crc32c(bytes(raw[21:])).to_bytes(4, "big")
    (place / f"{0:020}.log").write_bytes(bytes(raw))
    [record] = eoslog.read_segments(place).records()
    assert record.timestamp == stamp
    table = eoslog.read_segments(place).to_table()
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [stamp]
