"""The hash and the comparisons of `TopicPartition`, which the core has."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from eoslog import TopicPartition


def test_equality_and_hash_use_the_topic_and_the_partition_only() -> None:
    one, same = TopicPartition("t", 1, 5), TopicPartition("t", 1)
    assert one == same
    assert hash(one) == hash(same)
    assert {one: "found"}[same] == "found"
    assert one not in (TopicPartition("t", 2), TopicPartition("u", 1), ("t", 1), None)


def test_partitions_are_sorted_by_topic_and_number() -> None:
    names = [TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 9)]
    assert [str(one) for one in sorted(names)] == ["a-9", "a-10", "b-0"]
    with pytest.raises(TypeError):
        assert names[0] < ("b", 0)


class Named(TopicPartition):
    """A subclass with an attribute, a slot, and other arguments."""

    __slots__ = ("__dict__", "slot")

    def __init__(self, name: str) -> None:
        super().__init__(name, 7, "latest")
        self.extra = self.slot = name.upper()


COPIES = (copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v)))


@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_keeps_the_offset_and_the_class(copied: Callable[[Any], Any]) -> None:
    one = copied(TopicPartition("t", 1, "latest"))
    assert (type(one), one.topic, one.partition, one.offset) == (TopicPartition, "t", 1, "latest")


@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_of_a_subclass_keeps_its_attributes(copied: Callable[[Any], Any]) -> None:
    named = Named("t")
    named.extra = "changed"
    one = copied(named)
    assert (type(one), one, one.offset, one.extra, one.slot) == (
        Named,
        named,
        "latest",
        "changed",
        "T",
    )
    assert one == TopicPartition("t", 7)
    assert hash(one) == hash(TopicPartition("t", 7))


def test_an_unhashable_topic_is_rejected() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(TopicPartition(["t"]))  # type: ignore[arg-type]
