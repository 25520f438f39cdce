"""The hash and the comparisons of `TopicPartition`, which the core has."""

from __future__ import annotations

import copy
import pickle

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


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))]
)
def test_a_copy_keeps_the_offset_and_the_class(copied) -> None:
    class Named(TopicPartition):
        pass

    one = copied(TopicPartition("t", 1, "latest"))
    assert (type(one), one.topic, one.partition, one.offset) == (TopicPartition, "t", 1, "latest")
    assert Named("t", 1) == one
    assert hash(Named("t", 1)) == hash(one)


def test_an_unhashable_topic_is_rejected() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(TopicPartition(["t"]))  # type: ignore[arg-type]
