"""Which groups go along with an export or import; a directory stands on either side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import eoslog
from eoslog.client.kafka_cluster import MoveOptions
from eoslog.client.moved_groups import LogSide, MovedGroups
from eoslog.errors import ConfigError
from eoslog.model import OWN_GROUPS, TopicPartition

PLACE = TopicPartition("t", 0)
VERSIONS = f"{OWN_GROUPS}spark-daily"


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[list[eoslog.Log]]:
    """Two directories with the same records, the first with a group and an application's version."""
    logs = [eoslog.open(tmp_path / name) for name in ("source", "target")]
    for log in logs:
        log.create_topic("t")
        with log.producer() as producer:
            for n in range(10):
                producer.produce("t", b"%d" % n, timestamp=1000 + n)
    logs[0].reset_offsets("readers", {PLACE: 4})
    logs[0].engine.groups.commit_offsets(VERSIONS, "", -1, {PLACE: eoslog.OffsetAndMetadata(3)})
    yield logs
    for log in logs:
        log.close()


def groups(logs: list[eoslog.Log], **options: object) -> MovedGroups:
    return MovedGroups(LogSide(logs[0]), LogSide(logs[1]), [PLACE], MoveOptions(**options))


def test_versions_of_sparks_writes_are_no_positions_and_stay(sides: list[eoslog.Log]) -> None:
    assert groups(sides, groups="all").carry({PLACE: 10}) == {"readers": {PLACE: 4}}
    assert sides[1].groups() == ["readers"]


def test_a_group_of_eoslogs_own_is_refused_by_name(sides: list[eoslog.Log]) -> None:
    with pytest.raises(ConfigError, match=f"'{VERSIONS}' is eoslog's own"):
        groups(sides, groups=["readers", VERSIONS])
    assert sides[1].groups() == []
