"""`Log.scan`: bulk reads of an open directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import _core, errors
from eoslog.model import AppendOrigin, TopicPartition

pa = pytest.importorskip("pyarrow")

TS = 1_700_000_000_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Any]:
    with eoslog.open(str(tmp_path / "data")) as opened:
        opened.create_topic("t", 2)
        yield opened


def append(log: Any, partition: int, values: list[bytes | None], **options: Any) -> Any:
    """Append a batch to the partition and make it durable."""
    target = log._engine.partition("t", partition)
    batch = _core.build_batch([(TS, None, value, ()) for value in values], **options)
    result = target.append(batch)
    target.flush()
    return result


def open_transaction(log: Any, partition: int) -> Any:
    """Append one record of producer 77 in an undecided transaction.

    Returns the partition.
    """
    target = log._engine.partition("t", partition)
    batch = _core.build_batch(
        [(TS, None, b"open", ())],
        producer_id=77, producer_epoch=0, base_sequence=0, transactional=True,
    )  # fmt: skip
    target.append(batch, origin=AppendOrigin.COORDINATOR)
    target.flush()
    return target


def offsets(scan: Any) -> list[int]:
    return [offset for batch in scan for offset in batch.column("offset").to_pylist()]


def test_a_scan_reads_the_partitions_one_after_the_other(log: Any) -> None:
    append(log, 0, [b"a" * 20, None])
    append(log, 1, [b"b" * 20], compression="lz4")
    table = log.scan("t", columns=["topic", "partition", "offset", "value"]).to_table()
    table.validate(full=True)
    assert table.to_pylist() == [
        {"topic": "t", "partition": 0, "offset": 0, "value": b"a" * 20},
        {"topic": "t", "partition": 0, "offset": 1, "value": None},
        {"topic": "t", "partition": 1, "offset": 0, "value": b"b" * 20},
    ]
    assert log.scan("t", partitions=[1], columns=["offset"]).to_table().num_rows == 1


def test_an_end_beyond_the_readable_records_raises_only_for_one_partition(
    log: Any,
) -> None:
    append(log, 0, [b"a", b"b"])
    append(log, 1, [b"c"])
    open_transaction(log, 1)
    t0, t1 = TopicPartition("t", 0), TopicPartition("t", 1)
    with pytest.raises(errors.OffsetOutOfRange, match=r"t-0: end 3 .* last readable offset, 2"):
        log.scan("t", end={t0: 3, t1: 1})
    with pytest.raises(errors.OffsetOutOfRange, match=r"t-1: end 2 .* last readable offset, 1"):
        log.scan("t", end={t1: 2})
    assert offsets(log.scan("t", end={t1: 2}, isolation="read_uncommitted")) == [0, 1]
    assert offsets(log.scan("t", end=100)) == [0, 1, 0]


def test_the_end_is_fixed_when_the_scan_is_created(log: Any) -> None:
    """R60 of docs/contributing/regressions.md."""
    append(log, 0, [b"a"])
    scan = log.scan("t", columns=["offset"])
    append(log, 0, [b"b"])
    assert offsets(scan) == [0]
    assert scan.ranges[TopicPartition("t", 0)] == (0, 1)
    assert offsets(log.scan("t")) == [0, 1]


def test_bounds_apply_to_all_partitions_or_by_partition(log: Any) -> None:
    for partition in (0, 1):
        append(log, partition, [b"x"] * 5)
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    assert offsets(log.scan("t", start=3)) == [3, 4, 3, 4]
    assert offsets(log.scan("t", end=2)) == [0, 1, 0, 1]
    assert offsets(log.scan("t", start={zero: 4}, end={zero: 5, one: 1})) == [4, 0]
    assert offsets(log.scan("t", end={zero: 2})) == [0, 1]  # the other is not in the snapshot
    assert offsets(log.scan("t", end=1000)) == [0, 1, 2, 3, 4] * 2
    assert offsets(log.scan("t", start=9)) == []


def test_a_scan_reads_no_undecided_record(log: Any) -> None:
    append(log, 0, [b"a"])
    target = open_transaction(log, 0)
    append(log, 0, [b"behind it"])
    assert offsets(log.scan("t")) == [0]
    assert offsets(log.scan("t", end=3)) == [0]
    assert offsets(log.scan("t", isolation="read_uncommitted")) == [0, 1, 2]
    target.append(
        _core.build_marker(77, 1, False, timestamp=TS), origin=AppendOrigin.COORDINATOR
    )  # fmt: skip
    target.flush()
    assert offsets(log.scan("t")) == [0, 2]


def test_a_start_below_the_log_start_raises(log: Any) -> None:
    append(log, 0, [b"a"] * 4)
    log.delete_records({TopicPartition("t", 0): 2})
    assert offsets(log.scan("t", partitions=[0])) == [2, 3]
    with pytest.raises(errors.OffsetOutOfRange, match="start 0 is below the log start 2"):
        log.scan("t", partitions=[0], start=0)


def test_scan_raises_for_an_unknown_partition_or_topic(log: Any) -> None:
    with pytest.raises(errors.UnknownTopicOrPartition, match="no partition 7"):
        log.scan("t", partitions=[7])
    with pytest.raises(errors.UnknownTopicOrPartition):
        log.scan("nope")


def test_log_scan_and_read_segments_return_the_same_rows(log: Any, tmp_path: Path) -> None:
    for i in range(50):
        append(log, 0, [b"%d" % i * 10] * 3, compression=["none", "zstd", "snappy"][i % 3])
    mine = log.scan("t", partitions=[0]).to_table()
    theirs = eoslog.read_segments(tmp_path / "data" / "t-0").to_table()
    assert mine.to_pylist() == theirs.to_pylist()
    assert eoslog.inspect(tmp_path / "data" / "t-0")["read_committed_offsets"] == list(range(150))


@pytest.mark.parametrize("name", ["start", "end"])
def test_a_bound_keyed_by_a_plain_tuple_applies(log: Any, name: str) -> None:
    append(log, 0, [b"a", b"b", b"c"])
    found = offsets(log.scan("t", partitions=[0], **{name: {("t", 0): 2}}))
    assert found == ([2] if name == "start" else [0, 1])


@pytest.mark.parametrize("name", ["start", "end"])
@pytest.mark.parametrize(
    ("bound", "told"),
    [
        ({"t-0": 5}, "expected {TopicPartition: offset}, got key 't-0'"),
        ({0: 1}, "expected {TopicPartition: offset}, got key 0"),
        ({("t", 0): 5.5}, "t-0: expected an offset, got 5.5"),
        ({("t", 0): "1"}, "t-0: expected an offset, got '1'"),
        ("earliest", "expected an offset or {TopicPartition: offset}, got 'earliest'"),
        (1.0, "expected an offset or {TopicPartition: offset}, got 1.0"),
    ],
)
def test_a_bound_that_limits_nothing_is_rejected(
    log: Any, name: str, bound: Any, told: str
) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        log.scan("t", **{name: bound})
    assert str(caught.value) == f"{name}: {told}"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"partitions": 1}, "partitions: expected a list of numbers, got 1"),
        ({"partitions": ["1"]}, "partitions: expected a list of numbers, got '1'"),
        ({"batch_rows": "5"}, "batch_rows: expected an int, got '5'"),
        ({"columns": "value"}, "columns: expected a list of names, got the string 'value'"),
        ({"columns": [1]}, "columns: expected a list of names, got 1 in it"),
        ({"topic": ["t"]}, r"topic: expected the name of one topic, got ['t']"),
    ],
)
def test_scan_arguments_of_the_wrong_type_are_named(log: Any, options: Any, told: str) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        log.scan(**{"topic": "t", **options})
    assert str(caught.value) == told


def test_a_scan_of_a_closed_log_raises(log: Any) -> None:
    append(log, 0, [b"a"])
    scan = log.scan("t")
    log.close()
    with pytest.raises(errors.IllegalState, match="the log is closed"):
        list(scan)
