"""Ranges are split into tasks that cover each offset once, in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")
from pyspark_eoslog.options.options import Options
from pyspark_eoslog.read.limits import by_offsets
from pyspark_eoslog.read.splitting import Pinned, RangePart, coalesce, split
from pyspark_eoslog.read.stream import from_json, to_json

from eoslog.connector.byte_ranges import ByteRange

ranges_of_partitions = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 5000)), max_size=8
).map(
    lambda pairs: [Pinned("t", at, start, start + size) for at, (start, size) in enumerate(pairs)]
)


@given(ranges_of_partitions, st.none() | st.integers(1, 40), st.none() | st.integers(1, 3000))
def test_pieces_cover_every_offset_once_and_in_order(ranges, min_partitions, max_records):
    pieces = split(ranges, min_partitions, max_records)
    assert all(piece.end > piece.start for piece in pieces)
    if max_records is not None:
        assert all(piece.offsets <= max_records for piece in pieces)
    for one in ranges:
        mine = [piece for piece in pieces if piece.partition == one.partition]
        edge = one.start
        for piece in mine:
            assert piece.start == edge
            edge = piece.end
        assert edge == one.end or (one.start == one.end and not mine)


def test_a_partition_is_one_part_without_options():
    ranges = [Pinned("t", 0, 0, 10), Pinned("t", 1, 5, 5), Pinned("t", 2, 3, 9)]
    assert split(ranges, None, None) == [ranges[0], ranges[2]]


def test_min_partitions_splits_large_partitions_only():
    pieces = split([Pinned("t", 0, 0, 1000), Pinned("t", 1, 0, 10)], 5, None)
    assert len([piece for piece in pieces if piece.partition == 0]) == 4
    assert Pinned("t", 1, 0, 10) in pieces


def pieces_of(*sizes):
    return [
        RangePart("t", at, 0, 10, (), "", (ByteRange(0, 0, size, 1),))
        for at, size in enumerate(sizes)
    ]


def packed(sizes, **given):
    options = Options.parse(
        {"path": "/data", **{name: str(value) for name, value in given.items()}}
    )
    return [[piece.size for piece in task] for task in coalesce(pieces_of(*sizes), options)]


def test_small_adjacent_ranges_share_a_task_up_to_the_limit():
    assert packed([1, 2, 3, 9, 1], minBytesPerPartition=6) == [[1, 2, 3], [9], [1]]
    assert packed([1, 2, 3], minBytesPerPartition=0) == [[1], [2], [3]]


def test_packing_keeps_the_requested_number_of_tasks():
    assert packed([1, 1, 1, 1], minPartitions=3) == [[1, 1], [1], [1]]
    assert packed([1, 1, 1, 1], maxRecordsPerPartition=20) == [[1, 1], [1, 1]]
    assert packed([4, 4, 4], maxBytesPerPartition=8) == [[4, 4], [4]]


@given(
    st.dictionaries(
        st.tuples(st.just("t"), st.integers(0, 20)),
        st.tuples(st.integers(0, 99), st.integers(0, 500)),
        min_size=1,
    ),
    st.integers(1, 2000),
)
def test_a_trigger_limit_advances_but_never_beyond_the_end(sizes, most):
    begin = {key: start for key, (start, _) in sizes.items()}
    end = {key: start + size for key, (start, size) in sizes.items()}
    stop = by_offsets(begin, end, most)
    taken = sum(stop[key] - begin[key] for key in stop)
    assert all(begin[key] <= stop[key] <= end[key] for key in end)
    waiting = sum(size for _, size in sizes.values())
    assert taken <= most
    assert taken >= min(most, waiting) * 0.5 and (taken > 0 or waiting == 0)
    if most >= len(sizes):
        assert all(stop[key] > begin[key] for key in end if end[key] > begin[key])


def test_partitions_alternate_if_a_limit_is_too_small_for_all():
    begin = {("t", number): 0 for number in range(5)}
    for _ in range(100):
        begin = by_offsets(begin, {key: start + 50 for key, start in begin.items()}, 2)
    assert sum(begin.values()) == 200 and min(begin.values()) > 0


def test_offsets_survive_json():
    offsets = {("a", 0): 1, ("a", 12): 2, ("b", 3): 9}
    assert from_json(to_json(offsets)) == offsets
    assert to_json(offsets) == {"a": {"0": 1, "12": 2}, "b": {"3": 9}}
