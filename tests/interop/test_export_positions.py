"""Positions of an export, which count in one source topic and one target topic."""

from __future__ import annotations

import pytest

from eoslog import OffsetAndMetadata, TopicPartition
from eoslog.errors import IllegalState
from eoslog.kafka.positions import check_topics, of_targets, positions_in

PLACE = TopicPartition("t", 0)


def test_a_position_of_a_deleted_target_topic_does_not_count() -> None:
    """The new target topic lacks the records before the position."""
    found = positions_in({PLACE: 5}, {"t": "source"}, {"t": "old"})
    assert of_targets(found, {"t": "old"}) == found
    assert of_targets(found, {"t": "new"}) == {}


def test_a_position_counts_where_the_cluster_has_no_topic_ids() -> None:
    for known in ({}, {"t": "old"}):
        found = positions_in({PLACE: 5}, {"t": "source"}, known)
        assert of_targets(found, {}) == found
    assert of_targets(positions_in({PLACE: 5}, {"t": "source"}), {"t": "new"})[PLACE].offset == 5


@pytest.mark.parametrize("targets", [None, {"t": "target"}])
def test_a_position_of_a_re_created_source_topic_is_rejected(
    targets: dict[str, str] | None,
) -> None:
    """An earlier version recorded the id of the source topic alone."""
    found = positions_in({PLACE: 5}, {"t": "old"}, targets)
    check_topics("job", found, {"t": "old"})
    with pytest.raises(IllegalState, match="of topic id old, .* now has id new"):
        check_topics("job", found, {"t": "new"})


def test_a_position_that_a_user_set_is_accepted() -> None:
    found = {PLACE: OffsetAndMetadata(5, metadata="by hand")}
    check_topics("job", found, {"t": "source"})
    assert of_targets(found, {"t": "target"}) == found
