"""Each producer id is allocated once; the next block is ready in time."""

from __future__ import annotations

import itertools

import pytest

from eoslog.coordinator.producer_ids import ProducerIds
from eoslog.errors import CoordinatorLoadInProgress, LockTimeout


class Blocks:
    """Allocates blocks of ten and keeps deferred work in `aside`."""

    def __init__(self) -> None:
        self.taken = 0
        self.aside = []

    def allocate(self) -> range:
        self.taken += 1
        return range(10 * (self.taken - 1), 10 * self.taken)


def test_ids_are_allocated_once_and_in_order_across_blocks():
    blocks = Blocks()
    ids = ProducerIds(blocks.allocate)
    assert [ids.next_producer_id() for _ in range(25)] == list(range(25))
    assert blocks.taken == 3


def test_the_next_block_is_fetched_when_nine_tenths_are_used():
    blocks = Blocks()
    ids = ProducerIds(blocks.allocate, blocks.aside.append)
    for used in range(1, 10):
        ids.next_producer_id()
        assert bool(blocks.aside) == (used == 9)
    blocks.aside.pop()()
    assert blocks.taken == 2
    assert [ids.next_producer_id() for _ in range(3)] == [9, 10, 11]
    assert blocks.taken == 2 and not blocks.aside, "the id after the last did not wait for a block"


def test_a_block_not_fetched_in_time_is_allocated_inline_without_a_gap():
    blocks = Blocks()
    ids = ProducerIds(blocks.allocate, blocks.aside.append)
    first = [ids.next_producer_id() for _ in range(11)]
    while blocks.aside:
        blocks.aside.pop()()
    rest = [ids.next_producer_id() for _ in range(19)]
    assert first + rest == list(range(30))


def test_a_missing_block_raises_a_retriable_error():
    def allocate() -> range:
        raise LockTimeout("busy")

    with pytest.raises(CoordinatorLoadInProgress, match="busy"):
        ProducerIds(allocate).next_producer_id()


def test_processes_fetch_separate_blocks_ahead(tmp_path):
    import eoslog

    with eoslog.open(tmp_path / "log") as log:
        ids = log._engine.producer_ids
        seen = [ids.next_producer_id() for _ in range(950)]
        assert log._engine._background.tasks.join()
        other = log._engine.metadata.allocate_producer_ids()
        seen += [ids.next_producer_id() for _ in range(1100)]
    assert other.start == 2000, "the second block was taken before it was needed"
    assert len({*seen, *other}) == len(seen) + len(other)
    assert all(a < b for a, b in itertools.pairwise(seen))
