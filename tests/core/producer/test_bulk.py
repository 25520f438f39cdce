"""A bulk call fills batches with the same records as one call per record."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eoslog import _core
from eoslog.client.arrow.produce import produce_stream
from eoslog.errors import EoslogError, IllegalState, RecordTooLarge, SerializationError
from tests.core.producer.test_accumulator import Accumulator, make
from tests.reference import codec as reference

pa = pytest.importorskip("pyarrow")

PLAIN = st.one_of(st.none(), st.binary(max_size=40), st.binary(min_size=200, max_size=300))
ODD = st.one_of(st.text(max_size=5), st.binary(max_size=5).map(bytearray))


def drained(a: Accumulator) -> list[reference.RefBatch]:
    """Every batch, checked on its way; its memory is given back."""
    out = []
    for batch in a._drain(0, True):
        batch.stamp(7, 0, 0, False)
        data = bytes(batch)
        decoded = reference.decode_batch(data)
        assert decoded.valid
        assert len(data) <= a.max_message_bytes
        assert [r.offset for r in decoded.records] == list(range(batch.count))
        out.append((batch.partition, decoded))
        a._release(batch)
    return out


def by_partition(a: Accumulator) -> dict[int, list[tuple[Any, Any]]]:
    seen: dict[int, list[tuple[Any, Any]]] = defaultdict(list)
    for partition, batch in drained(a):
        seen[partition] += [(r.key, r.value) for r in batch.records]
    return dict(seen)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    pattern=st.lists(st.tuples(PLAIN, PLAIN), min_size=1, max_size=12),
    odd=st.dictionaries(st.integers(0, 699), ODD, max_size=3),
    count=st.integers(256, 700),
    partitions=st.integers(1, 4),
    partitioner=st.sampled_from([None, "sticky", "round_robin"]),
    where=st.one_of(st.none(), st.just(0)),
    limit=st.integers(800, 20_000),
    keyed=st.booleans(),
    before=st.integers(0, 3),
)  # fmt: skip
def test_bulk_records_equal_those_of_single_calls(
    pattern: list[tuple[Any, Any]], odd: dict[int, Any], count: int, partitions: int,
    partitioner: Any, where: int | None, limit: int, keyed: bool, before: int,
) -> None:  # fmt: skip
    rows = [pattern[i % len(pattern)] for i in range(count)]
    keys = [key for key, _ in rows]
    values = [odd.get(i, value) for i, (_, value) in enumerate(rows)]
    one, many = make(partitions, partitioner=partitioner), make(partitions, partitioner=partitioner)
    one.max_message_bytes = many.max_message_bytes = limit
    for a in (one, many):
        for i in range(before):
            a.produce("t", b"before %d" % i, partition=0)
    for key, value in zip(keys, values, strict=True):
        one.produce("t", value, key if keyed else None, partition=where)
    assert many.produce_many("t", values, keys if keyed else None, where) == count
    assert many.buffered == many.produced == one.buffered
    theirs, ours = by_partition(one), by_partition(many)
    if where is not None or partitioner == "round_robin":
        assert ours == theirs
    else:  # the keyless go where chance sends them, in the order of the call
        flat = sorted(str(r) for rows in ours.values() for r in rows)
        assert flat == sorted(str(r) for rows in theirs.values() for r in rows)
        for place, records in ours.items():
            if keyed and partitioner is None:
                mine = [r for r in records if r[0] is not None]
                assert mine == [r for r in theirs.get(place, []) if r[0] is not None]
    assert many._used == one._used == 0


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(
        st.tuples(PLAIN, PLAIN, st.one_of(st.none(), st.integers(0, 1 << 40)),
                  st.one_of(st.none(), st.integers(0, 2))), min_size=1, max_size=12),
    count=st.integers(1, 700),
    columns=st.sets(st.sampled_from(["key", "timestamp", "partition"])),
    limit=st.integers(800, 20_000),
)  # fmt: skip
def test_columns_produce_the_same_records_as_single_calls(
    rows: list[tuple[Any, ...]], count: int, columns: set[str], limit: int
) -> None:
    rows = [rows[i % len(rows)] for i in range(count)]
    one, many = make(3), make(3)
    one.max_message_bytes = many.max_message_bytes = limit
    arrays = {"value": pa.array([r[1] for r in rows], pa.binary())}
    for at, name in ((0, "key"), (2, "timestamp"), (3, "partition")):
        if name in columns:
            kind = pa.binary() if name == "key" else pa.int64()
            arrays[name] = pa.array([r[at] for r in rows], kind)
    for key, value, stamp, place in rows:
        one.produce(
            "t", value, key if "key" in columns else None,
            timestamp=stamp if "timestamp" in columns else None,
            partition=place if "partition" in columns else None,
        )  # fmt: skip
    assert produce_stream(many, "t", pa.table(arrays)) == count
    stamped: list[dict[tuple[Any, ...], int]] = []
    for a in (one, many):
        seen: dict[tuple[Any, ...], int] = defaultdict(int)
        for partition, batch in drained(a):
            newest = max(r.timestamp for r in batch.records)
            assert batch.max_timestamp == newest
            for r in batch.records:
                known = "timestamp" in columns and r.timestamp < 1_600_000_000_000
                fixed = "partition" in columns and all(row[3] is not None for row in rows)
                seen[r.key, r.value, r.timestamp if known else 0, partition if fixed else 0] += 1
        stamped.append(dict(seen))
    assert stamped[0] == stamped[1]
    assert many._used == 0


def test_records_buffered_before_a_bulk_call_stay_in_front() -> None:
    a = make()
    a.produce("t", b"first")
    a.produce_many("t", [b"%d" % i for i in range(600)])
    a.produce("t", b"last")
    values = [r.value for _, batch in drained(a) for r in batch.records]
    assert values == [b"first", *[b"%d" % i for i in range(600)], b"last"]


@pytest.mark.parametrize("one", ["abc", b"abc", bytearray(b"abc"), memoryview(b"abc"), 3])
def test_a_single_value_is_rejected_as_a_sequence_of_values(one: Any) -> None:
    a = make()
    with pytest.raises(SerializationError, match=f"sequence of values, got {type(one).__name__}"):
        a.produce_many("t", one)
    with pytest.raises(SerializationError, match=f"sequence of keys, got {type(one).__name__}"):
        a.produce_many("t", [b"1", b"2", b"3"], one)
    assert a._used == 0
    assert a.produce_many("t", (v for v in ["a", b"b"])) == 2


def test_an_invalid_record_leaves_the_records_before_it() -> None:
    for wrong, error in ((bytes(2000), RecordTooLarge), (3.5, SerializationError)):
        a = make()
        a.max_message_bytes = 1000
        values: list[Any] = [b"%d" % i for i in range(600)]
        values[500] = wrong
        with pytest.raises(error):
            a.produce_many("t", values)
        assert [r.value for _, b in drained(a) for r in b.records] == values[:500]
        assert a._used == 0


def test_a_bulk_call_passes_on_all_its_batches_before_it_waits_for_memory() -> None:
    """The call passes on all its batches before it waits, or no memory is freed."""

    class Sending(Accumulator):
        sent: list[bytes]

        def _wait_for_space(self, size: int) -> None:
            batches = self._drain(0, True)
            assert batches, "nothing to send, and no room"
            for batch in batches:
                batch.stamp(-1, -1, -1, False)
                self.sent += [r.value for r in reference.decode_batch(bytes(batch)).records]
                self._release(batch)

    a = Sending(buffer_memory=40_000)
    a.sent, a.partitions = [], 3
    values = [b"%06d" % i * 10 for i in range(5000)]
    a.produce_many("t", values, [b"%d" % i for i in range(5000)])
    a._wait_for_space(0)
    assert sorted(a.sent) == values
    assert a._used == 0


def test_closing_during_a_bulk_call_raises_and_frees_all_memory() -> None:
    class Closing(Accumulator):
        def _wake(self) -> None:
            self._gate = 1

        def _refuse(self) -> None:
            raise IllegalState("the producer is closed")

    a = Closing()
    a._sleeping_until = 1 << 62
    with pytest.raises(IllegalState):
        a.produce_many("t", [bytes(100)] * 40_000)
    for batch in a._drain(0, True):
        a._release(batch)
    assert (a._used, a.buffered) == (0, 0)


@pytest.mark.slow
def test_threads_that_share_a_partition_lose_no_record() -> None:
    a = make(2)
    a.max_message_bytes = 30_000
    drained_: list[Any] = []

    def many(name: int) -> None:
        for turn in range(10):
            start = turn * 1000
            a.produce_many("t", [b"%d %d" % (name, start + i) for i in range(1000)], partition=0)

    def single(name: int) -> None:
        for i in range(3000):
            a.produce("t", b"%d %d" % (name, i), partition=0)

    threads = [threading.Thread(target=many, args=(n,)) for n in (0, 1)]
    threads += [threading.Thread(target=single, args=(n,)) for n in (2, 3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        a._drain(time.monotonic_ns(), False, drained_)
    a._drain(0, True, drained_)
    seen: dict[int, list[int]] = defaultdict(list)
    for batch in drained_:
        batch.stamp(-1, -1, -1, False)
        for record in reference.decode_batch(bytes(batch)).records:
            name, number = map(int, record.value.split())
            seen[name].append(number)
        a._release(batch)
    assert seen == {n: list(range(10_000 if n < 2 else 3000)) for n in range(4)}
    assert (a._used, a.buffered) == (0, 0)


@pytest.mark.slow
def test_a_list_that_another_thread_empties_is_safe_in_a_bulk_call() -> None:
    a = make()
    values = [b"%032d" % i for i in range(200_000)]
    stop = threading.Event()

    def empty() -> None:
        while not stop.is_set():
            values.clear()
            values.extend(b"%032d" % i for i in range(1000))

    thread = threading.Thread(target=empty)
    thread.start()
    try:
        for _ in range(20):
            try:
                a.produce_many("t", values, partition=0)
            except EoslogError as error:
                assert "changed" in str(error)
            drained(a)
    finally:
        stop.set()
        thread.join()
    assert a._used == 0


def test_the_checksum_of_long_batches_matches_their_bytes() -> None:
    a = make()
    a.produce_many("t", [b"%09d" % i * 11 for i in range(30_000)], partition=0)
    for batch in a._drain(0, True):
        batch.stamp(9, 1, 5, True)
        data = bytes(batch)
        assert int.from_bytes(data[17:21], "big") == _core.crc32c_software(data[21:])


@pytest.mark.parametrize("headers", [False, True])
def test_bulk_calls_with_more_to_come_share_their_batches(headers: bool) -> None:
    """However few rows each brings: as one call with all of them, in the same order."""

    def table(first: int, count: int, odd: bool) -> Any:
        rows = range(first, first + count)
        columns: dict[str, Any] = {
            "key": pa.array([b"k%d" % (n % 7) for n in rows], pa.binary()),
            "value": pa.array([b"%d" % n + b"v" * (n % 50) for n in rows], pa.binary()),
        }
        if odd:
            kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            columns["headers"] = pa.array([[{"key": "h", "value": b"1"}]] * count, kind)
        return pa.record_batch(columns)

    one, many = make(3), make(3)
    first = 0
    for call, count in enumerate([900, 1, 300, 2, 700, 5]):
        odd = headers and call == 2  # goes the plain way
        some = table(first, count, odd)
        produce_stream(many, "t", some, more=True)
        produce_stream(one, "t", some)
        first += count
    found, batches = by_partition(one), drained(many)
    seen: dict[int, list[tuple[Any, Any]]] = defaultdict(list)
    for partition, batch in batches:
        seen[partition] += [(r.key, r.value) for r in batch.records]
    assert dict(seen) == found and sum(map(len, seen.values())) == first
    assert headers or len(batches) == 3
    assert (many._used, many.buffered, many.produced) == (0, 0, first)


def test_rows_held_for_more_are_kept_when_a_later_call_fails() -> None:
    a = make(1)
    rows = pa.record_batch({"value": pa.array([b"v"] * 300, pa.binary())})
    produce_stream(a, "t", rows, more=True)
    large = pa.record_batch({"value": pa.array([b"v"] * 300 + [b"x" * 2_000_000], pa.binary())})
    with pytest.raises(RecordTooLarge):
        produce_stream(a, "t", large, more=True)
    assert sum(map(len, by_partition(a).values())) == 600
    assert (a._used, a.buffered) == (0, 0)
