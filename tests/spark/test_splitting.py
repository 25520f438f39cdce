"""Splitting ranges into tasks is arithmetic: it covers each offset once, in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")
from pyspark_eoslog.planning import split
from pyspark_eoslog.stream_reader import from_json, limited, to_json

ranges_of_partitions = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 5000)), max_size=8
).map(
    lambda pairs: [("t", index, start, start + size) for index, (start, size) in enumerate(pairs)]
)


@given(ranges_of_partitions, st.none() | st.integers(1, 40), st.none() | st.integers(1, 3000))
def test_pieces_cover_every_offset_once_and_in_order(ranges, min_partitions, max_records):
    pieces = split(ranges, min_partitions, max_records)
    assert all(end > start for _, _, start, end in pieces)
    if max_records is not None:
        assert all(end - start <= max_records for _, _, start, end in pieces)
    for topic, partition, start, end in ranges:
        mine = [
            (low, high)
            for name, number, low, high in pieces
            if (name, number) == (topic, partition)
        ]
        edge = start
        for low, high in mine:
            assert low == edge
            edge = high
        assert edge == end or (start == end and not mine)


def test_without_options_a_partition_is_a_task():
    assert split([("t", 0, 0, 10), ("t", 1, 5, 5), ("t", 2, 3, 9)], None, None) == [
        ("t", 0, 0, 10),
        ("t", 2, 3, 9),
    ]


def test_min_partitions_cuts_the_large_and_leaves_the_small():
    pieces = split([("t", 0, 0, 1000), ("t", 1, 0, 10)], 5, None)
    assert len([piece for piece in pieces if piece[1] == 0]) == 4
    assert ("t", 1, 0, 10) in pieces


@given(
    st.dictionaries(
        st.tuples(st.just("t"), st.integers(0, 20)),
        st.tuples(st.integers(0, 99), st.integers(0, 500)),
        min_size=1,
    ),
    st.integers(1, 2000),
)
def test_a_trigger_limit_moves_on_and_never_beyond(sizes, most):
    begin = {key: start for key, (start, _) in sizes.items()}
    end = {key: start + size for key, (start, size) in sizes.items()}
    stop = limited(begin, end, most)
    taken = sum(stop[key] - begin[key] for key in stop)
    assert all(begin[key] <= stop[key] <= end[key] for key in end)
    waiting = sum(size for _, size in sizes.values())
    assert taken <= most
    assert taken >= min(most, waiting) * 0.5 and (taken > 0 or waiting == 0)


def test_offsets_go_through_json():
    offsets = {("a", 0): 1, ("a", 12): 2, ("b", 3): 9}
    assert from_json(to_json(offsets)) == offsets
    assert to_json(offsets) == {"a": {"0": 1, "12": 2}, "b": {"3": 9}}
