"""`Log.read` and `Scan.records` return the records of a scan up to a fixed end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import _core
from eoslog.client.scan import scan
from eoslog.errors import ConfigError, CorruptRecord, OffsetOutOfRange, UnknownTopicOrPartition
from eoslog.model import TopicPartition
from tests.paths import KAFKA_DATA as KAFKA


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Any]:
    """Nine records in two partitions, some of them aborted, some not decided on."""
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t", 2)
        with log.producer(transactional_id="x") as producer:
            producer.init_transactions()
            for number in range(4):
                producer.begin_transaction()
                for partition in (0, 1):
                    producer.produce(
                        "t", f"{partition}-{number}", f"k{number}", partition=partition,
                        headers=[("h", b"%d" % number)], timestamp=1000 + number,
                    )  # fmt: skip
                producer.flush()
                producer.abort_transaction() if number == 1 else producer.commit_transaction()
            producer.begin_transaction()
            producer.produce("t", "open", partition=0)
            producer.flush()
            yield log


def values(records: Any) -> list[str]:
    return [record.value.decode() for record in records]


def test_read_returns_committed_records_by_partition_up_to_a_fixed_end(log: Any) -> None:
    records = log.read("t")
    with log.producer() as producer:
        producer.produce("t", "later", partition=1)
    assert values(records) == ["0-0", "0-2", "0-3", "1-0", "1-2", "1-3"]
    assert values(log.read("t", partitions=[1], start=2)) == ["1-2", "1-3", "later"]
    assert values(log.read("t", isolation="read_uncommitted", end=3)) == [
        "0-0",
        "0-1",
        "1-0",
        "1-1",
    ]


def test_a_partition_that_is_named_twice_is_read_once(log: Any) -> None:
    assert values(log.read("t", partitions=[1, 0, 1])) == ["1-0", "1-2", "1-3", "0-0", "0-2", "0-3"]
    assert log.scan("t", partitions=(0, 0)).to_table().num_rows == 3


@pytest.mark.parametrize("bound", ["start", "end"])
def test_a_bound_of_a_partition_that_does_not_exist_is_rejected(log: Any, bound: str) -> None:
    bounds = {TopicPartition("t", 0): 0, TopicPartition("t", 9): 1}
    with pytest.raises(UnknownTopicOrPartition, match="'t' has no partition 9"):
        log.read("t", **{bound: bounds})
    other = {TopicPartition("t", 0): 0, TopicPartition("t", 1): 0, TopicPartition("other", 9): 1}
    assert list(log.read("t", end=other)) == []


def test_a_snapshot_bounds_log_read(log: Any) -> None:
    ends = log.snapshot()
    with log.producer() as producer:
        producer.produce("t", "later", partition=1)
    assert values(log.read("t", end=ends))[-1] == "1-3"


def test_a_large_batch_is_decoded_in_growing_steps(
    log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("large")
    with log.producer(compression_type="zstd", batch_size=1 << 20, linger_ms=60_000) as producer:
        producer.produce_many("large", [b"%d" % number for number in range(1000)])
    decode, calls = _core.decode_records, []
    monkeypatch.setattr(
        _core,
        "decode_records",
        lambda *args, **rest: calls.append(args[6]) or decode(*args, **rest),
    )
    monkeypatch.setattr(scan, "ROWS", 10)
    assert [int(record.value) for record in log.read("large")] == list(range(1000))
    assert calls[:3] == [10, 20, 40] and len(calls) < 10  # 101 where each is of ten


def test_records_equal_the_columns_of_a_scan(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(scan, "ROWS", 2)
    rows = log.scan("t").to_table().to_pylist()
    records = list(log.scan("t").records())
    assert [(r.topic, r.partition, r.offset, r.key, r.value) for r in records] == [
        (row["topic"], row["partition"], row["offset"], row["key"], row["value"]) for row in rows
    ]
    assert [r.headers[0][1] for r in records] == [row["headers"][0]["value"] for row in rows]
    assert [r.timestamp for r in records] == [
        round(row["timestamp"].timestamp() * 1000) for row in rows
    ]


def test_log_read_raises_argument_errors_at_the_call(log: Any) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        log.read("nope")
    with pytest.raises(ConfigError, match="isolation"):
        log.read("t", isolation="dirty")
    log.delete_records({TopicPartition("t", 1): 2})
    with pytest.raises(OffsetOutOfRange):
        log.read("t", start=0)


def test_records_before_damage_are_returned_before_the_error(tmp_path: Path) -> None:
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        part = log._engine.partition("t", 0)
        for number in range(4):
            part.append(_core.build_batch([(0, None, b"%d" % number * 50, ())]))
        part.flush()
        file = tmp_path / "log" / "t-0" / f"{0:020}.log"
        content = bytearray(file.read_bytes())
        content[-60] ^= 1
        file.write_bytes(content)
        for records in (log.read("t"), eoslog.read_segments(tmp_path / "log" / "t-0").records()):
            assert [next(records).offset for _ in range(3)] == [0, 1, 2]
            with pytest.raises(CorruptRecord):
                next(records)


def test_kafka_files_of_every_format_are_read_record_by_record() -> None:
    pytest.importorskip("pyarrow")
    files = sorted([*(KAFKA / "segments").rglob("*.log"), *(KAFKA / "legacy").rglob("*.log")])
    read = 0
    for file in files:
        for isolation in ("read_committed", "read_uncommitted"):
            found = eoslog.read_segments(file, isolation=isolation)
            try:
                rows = found.to_table().to_pylist()
            except CorruptRecord:
                continue
            assert [(r.offset, r.key, r.value) for r in found.records()] == [
                (row["offset"], row["key"], row["value"]) for row in rows
            ], file
            read += len(rows)
    assert read > 100
