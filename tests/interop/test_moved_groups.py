"""The groups that an export or import includes, between two directories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog.errors import ConfigError, NonEmptyGroup
from eoslog.kafka.cluster import MoveOptions
from eoslog.kafka.group_offsets import LogSide, MovedGroups
from eoslog.model import OWN_GROUPS, TopicPartition

PLACE = TopicPartition("t", 0)
VERSIONS = f"{OWN_GROUPS}spark-daily"


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[list[eoslog.Log]]:
    """Two directories with the same records.

    The first one has a group and an application's version.
    """
    logs = [eoslog.open(tmp_path / name) for name in ("source", "target")]
    for log in logs:
        log.create_topic("t")
        with log.producer() as producer:
            for n in range(10):
                producer.produce("t", b"%d" % n, timestamp=1000 + n)
    logs[0].reset_offsets("readers", {PLACE: 4})
    logs[0]._engine.groups.commit_offsets(VERSIONS, "", -1, {PLACE: eoslog.OffsetAndMetadata(3)})
    yield logs
    for log in logs:
        log.close()


def groups(logs: list[eoslog.Log], **options: object) -> MovedGroups:
    return MovedGroups(LogSide(logs[0]), LogSide(logs[1]), [PLACE], MoveOptions(**options))


def test_write_versions_of_spark_are_not_moved_as_positions(sides: list[eoslog.Log]) -> None:
    assert groups(sides, groups="all").carry({PLACE: 10}) == {"readers": {PLACE: 4}}
    assert sides[1].groups() == ["readers"]


def test_an_internal_group_of_eoslog_is_rejected_by_name(sides: list[eoslog.Log]) -> None:
    with pytest.raises(ConfigError, match=f"'{VERSIONS}' stores Spark write versions"):
        groups(sides, groups=["readers", VERSIONS])
    assert sides[1].groups() == []


def test_a_group_that_is_far_enough_may_have_members(sides: list[eoslog.Log]) -> None:
    """A later run, after the consumers were started at the target."""
    moved = groups(sides, groups="all").carry({PLACE: 10})
    with sides[1].consumer("t", group_id="readers", enable_auto_commit=False) as member:
        assert member.consume(1, timeout=60)
        assert groups(sides, groups="all").carry({PLACE: 10}) == moved
        sides[0].reset_offsets("readers", {PLACE: 5})
        with pytest.raises(NonEmptyGroup, match="stop its consumers"):
            groups(sides, groups="all").carry({PLACE: 10})
