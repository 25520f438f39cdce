"""An import keeps its positions in the log, those of earlier versions too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import Log, OffsetAndMetadata, TopicPartition, errors
from eoslog.kafka.cluster import MoveOptions
from eoslog.kafka.following import NewPartitions
from eoslog.kafka.importer import _TopicImport
from tests.client.helpers import visible
from tests.faults.harness import Child, live
from tests.interop.test_kafka_import import Cluster

pytestmark = pytest.mark.usefixtures("disarmed")

NAME = "kafka-import/eoslog-import/new-0"
SOURCE = "A" * 21 + "B"
VALUES = [b"%d" % number for number in range(10)]
P0 = TopicPartition("new", 0)


def moved(log: Log, count: int, **options: Any) -> int:
    """Import from a cluster that has the first `count` values."""
    cluster: Any = Cluster(VALUES[:count])
    return (
        _TopicImport(log, cluster, {"new": 1}, MoveOptions(records=2, **options))
        .run(0, NewPartitions({}, dict))
        .records
    )


def begun_by_an_earlier_version(log: Log, count: int) -> None:
    """Leave what a run left whose positions were committed offsets of a group."""
    log.create_topic("new")
    with log.producer(transactional_id="eoslog-import") as producer:
        producer.init_transactions()
        with producer.transaction() as tx:
            for value in VALUES[:count]:
                tx.produce("new", value=value)
            at = OffsetAndMetadata(count, metadata=f"eoslog topic id {SOURCE}")
            tx.send_offsets({P0: at}, "eoslog-import")


def test_positions_are_named_and_have_the_ids_of_both_topics(log: Log) -> None:
    assert moved(log, 3) == 3
    assert list(log.positions()) == [NAME]
    target = eoslog.storage.format.checkpoints.id_text(log.topic_id("new"))
    value = {"offset": 3, "source": SOURCE, "target": target}
    assert json.loads(str(log.position(NAME))) == value
    assert "eoslog-import" not in log.groups()
    assert moved(log, 5) == 2
    assert visible(log, "new") == VALUES[:5]


def test_a_job_of_an_earlier_version_continues_and_moves_its_positions_once(log: Log) -> None:
    begun_by_an_earlier_version(log, 4)
    assert moved(log, 4) == 0
    assert json.loads(str(log.position(NAME)))["offset"] == 4
    committed = log.committed("eoslog-import")[P0]
    assert (committed.offset, committed.metadata) == (4, f"eoslog position {NAME}")
    assert moved(log, 10) == 6
    assert visible(log, "new") == VALUES
    # The committed offset is old now, and does not count again.
    log.delete_position(NAME)
    with pytest.raises(errors.IllegalState, match="already holds records"):
        moved(log, 10)
    assert visible(log, "new") == VALUES


def _imports(child: Child, path: Path, count: int) -> None:
    with eoslog.open(path) as log:
        child.armed()
        moved(log, count)


@pytest.mark.process
@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("import.positions", 1), ("position.set", 1), ("txn.prepared", 1), ("txn.decided", 1),
        ("import.produced", 1), ("position.set", 2), ("import.committed", 1), ("txn.prepared", 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("earlier", [4, 0])
def test_an_import_that_is_killed_continues_without_loss_or_repetition(
    path: str, point: str, nth: int, earlier: int
) -> None:
    with eoslog.open(path) as log:
        if earlier:
            begun_by_an_earlier_version(log, earlier)
    assert live(_imports, Path(path), 10, faults=((point, "kill", nth),)).killed
    with eoslog.open(path) as log:
        seen = len(visible(log, "new"))
        position = log.position(NAME)
        assert position is None or json.loads(str(position))["offset"] == seen
        assert moved(log, 10) == 10 - seen
        assert visible(log, "new") == VALUES
        assert log.check(full=True).ok


def test_a_topic_that_was_deleted_in_the_log_is_imported_from_the_start(log: Log) -> None:
    moved(log, 5)
    log.delete_topic("new")
    assert moved(log, 7) == 7
    assert visible(log, "new") == VALUES[:7]


def test_a_user_can_set_the_position_of_a_job(log: Log) -> None:
    log.create_topic("new")
    with log.producer(transactional_id="user") as producer:
        producer.init_transactions()
        with producer.transaction() as tx:
            tx.produce("new", value="copied by other means")
        with pytest.raises(errors.IllegalState, match=f"or set position '{NAME}' of the log"):
            moved(log, 10)
        with producer.transaction() as tx:
            tx.set_position(NAME, 8)
        assert moved(log, 10) == 2
        for wrong in ("8", "{}", b"8", "nonsense"):
            with producer.transaction() as tx:
                tx.set_position(NAME, wrong)
            with pytest.raises(errors.IllegalState, match="is not a position of an import job"):
                moved(log, 10)
        with producer.transaction() as tx:
            tx.set_position(NAME, 11)
        with pytest.raises(errors.OffsetOutOfRange, match=f"set position '{NAME}'"):
            moved(log, 10)


def test_a_job_whose_position_another_program_moves_stops_and_adds_nothing(log: Log) -> None:
    def meddle(_: Any) -> None:
        if len(visible(log, "new")) == 2:
            with log.producer(transactional_id="user") as producer:
                producer.init_transactions()
                with producer.transaction() as tx:
                    tx.set_position(NAME, 9)

    with pytest.raises(errors.PositionConflict):
        moved(log, 10, progress=meddle)
    assert visible(log, "new") == VALUES[:2]
    assert moved(log, 10) == 1
