"""Groups in an export or import keep the records that they have left to read."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

import eoslog
from eoslog.errors import ConfigError, GroupNotFound, IllegalState, NonEmptyGroup
from eoslog.model import OffsetAndMetadata, TopicPartition
from tests.kafka.broker import Broker
from tests.kafka.moving.test_moving import fill, make_again_there, run, started

PARTITIONS = 3
Left = list[tuple[bytes | None, bytes | None]]


def left_in_log(log: eoslog.Log, group: str, topic: str) -> list[Left]:
    """What a group of the directory has still to read, by partition."""
    offsets = log.describe_group(group).offsets
    found: list[Left] = []
    for number in range(PARTITIONS):
        start = offsets[TopicPartition(topic, number)].offset
        scan = log.scan(topic, partitions=[number], start=start, binary="copy")
        found.append([(row["key"], row["value"]) for row in scan.to_table().to_pylist()])
    return found


def consumer(broker: Broker, group: str) -> Consumer:
    return Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False,
         "auto.offset.reset": "error", "enable.partition.eof": True}
    )  # fmt: skip


def left_in_cluster(broker: Broker, group: str, topic: str) -> list[Left]:
    """What Kafka's own client reads as a member of the group, by partition."""
    reader, found = consumer(broker, group), [[] for _ in range(PARTITIONS)]
    places = [KafkaPartition(topic, number) for number in range(PARTITIONS)]
    reader.assign(reader.committed(places, 30))
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        for message in reader.consume(1000, 1.0):
            if message.error() is None:
                found[message.partition()].append((message.key(), message.value()))
            else:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                ended.add(message.partition())
    reader.close()
    return found


def committed(broker: Broker, group: str, topic: str) -> list[tuple[int, str]]:
    reader = consumer(broker, group)
    places = [KafkaPartition(topic, number) for number in range(PARTITIONS)]
    found = [(tp.offset, tp.metadata or "") for tp in reader.committed(places, 30)]
    reader.close()
    return found


def groups_of(log: eoslog.Log, topic: str) -> dict[str, list[int]]:
    """Groups that begin, are in the middle, between two transactions, at the end."""
    ends = [log.offsets(topic, number).last_stable for number in range(PARTITIONS)]
    wanted = {
        "begun": [0, 0, 0],
        "middle": [end // 2 for end in ends],
        "mixed": [1, ends[1] // 3, ends[2]],
        "done": ends,
    }
    for group, offsets in wanted.items():
        places = {
            TopicPartition(topic, n): OffsetAndMetadata(at, metadata=f"{group} {n}")
            for n, at in enumerate(offsets)
        }
        log.reset_offsets(group, places)
    return wanted


@pytest.fixture
def source(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[eoslog.Log, str]]:
    """A directory with a topic of 600 records, some of them aborted, and groups."""
    topic = f"groups-{request.node.name[5:60]}".replace("_", "-")
    with eoslog.open(tmp_path / "log") as log:
        fill(log, topic, 11)
        groups_of(log, topic)
        yield log, topic


def test_a_group_resumes_in_the_cluster_at_its_exported_position(
    source: tuple[eoslog.Log, str], broker: Broker
) -> None:
    log, topic = source
    moved = log.export_kafka(broker.bootstrap, [topic], records=37, groups="all")
    assert sorted(moved.groups) == ["begun", "done", "middle", "mixed"]
    for group in moved.groups:
        assert left_in_cluster(broker, group, topic) == left_in_log(log, group, topic), group
    assert [text for _, text in committed(broker, "mixed", topic)] == [
        f"mixed {n}" for n in range(3)
    ]
    assert [len(left) for left in left_in_cluster(broker, "done", topic)] == [0, 0, 0]
    assert sum(map(len, left_in_cluster(broker, "begun", topic))) == moved.records


def test_a_later_run_moves_a_group_only_forward(
    source: tuple[eoslog.Log, str], broker: Broker
) -> None:
    log, topic = source
    log.export_kafka(broker.bootstrap, [topic], groups=["middle"])
    before = committed(broker, "middle", topic)
    with log.producer() as producer:
        for n in range(PARTITIONS):
            producer.produce(topic, b"more", partition=n)
    ends = [log.offsets(topic, n).last_stable for n in range(PARTITIONS)]
    log.reset_offsets("middle", {TopicPartition(topic, n): end for n, end in enumerate(ends)})
    moved = log.export_kafka(broker.bootstrap, [topic], groups=["middle"])
    assert moved.records == 3
    after = committed(broker, "middle", topic)
    assert all(old[0] < new[0] for old, new in zip(before, after, strict=True))
    assert left_in_cluster(broker, "middle", topic) == [[], [], []]
    log.reset_offsets("middle", {TopicPartition(topic, n): 0 for n in range(PARTITIONS)})
    log.export_kafka(broker.bootstrap, [topic], groups=["middle"])
    assert committed(broker, "middle", topic) == after


def test_a_run_after_a_kill_between_records_and_groups_moves_the_groups(
    source: tuple[eoslog.Log, str], broker: Broker
) -> None:
    log, topic = source
    expected = {group: left_in_log(log, group, topic) for group in ("begun", "middle", "done")}
    path = Path(log.path)
    log.close()
    words = (topic, "-n", "50", *(word for group in expected for word in ("--group", group)))
    for point in (
        "export.committed:3=kill",
        "groups.told=kill",
        "groups.set=kill",
        "groups.set:2=kill",
    ):
        assert run("export", path, broker, *words, fail=point) == -signal.SIGKILL, point
    assert run("export", path, broker, *words) == 0
    assert run("export", path, broker, topic, "--all-groups") == 0
    assert sum(map(len, left_in_cluster(broker, "mixed", topic))) > 100
    for group, left in expected.items():
        assert left_in_cluster(broker, group, topic) == left, group


def test_a_group_resumes_in_the_directory_at_its_imported_position(
    source: tuple[eoslog.Log, str], broker: Broker, tmp_path: Path
) -> None:
    log, topic = source
    log.export_kafka(broker.bootstrap, [topic], records=41, groups="all")
    with eoslog.open(tmp_path / "back") as back:
        moved = back.import_kafka(broker.bootstrap, [topic], records=53, groups="all")
        assert sorted(moved.groups) == ["begun", "done", "middle", "mixed"]
        for group in moved.groups:
            assert left_in_log(back, group, topic) == left_in_log(log, group, topic), group
        place = TopicPartition(topic, 1)
        assert back.describe_group("mixed").offsets[place].metadata == "mixed 1"
        assert set(back.groups()) == {"begun", "done", "middle", "mixed"}


def test_a_target_that_lost_records_is_detected_and_no_group_is_set(
    source: tuple[eoslog.Log, str], broker: Broker
) -> None:
    from confluent_kafka.admin import AdminClient

    log, topic = source
    moved = log.export_kafka(broker.bootstrap, [topic])
    admin: Any = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_records([KafkaPartition(topic, 1, 40)]).values():
        future.result()
    with pytest.raises(IllegalState, match=f"{topic}-1: the last .* records of the target"):
        log.export_kafka(broker.bootstrap, [topic], groups=["begun"])
    assert committed(broker, "begun", topic) == [(-1001, "")] * 3
    assert log.export_kafka(broker.bootstrap, [topic]).positions == moved.positions


def test_no_group_is_set_in_a_topic_that_was_re_created_at_the_cluster(
    source: tuple[eoslog.Log, str], broker: Broker
) -> None:
    log, topic = source
    path = Path(log.path)
    log.close()
    export = started("export", path, broker, topic, "--group", "middle", fail="groups.told=stop")
    os.waitid(os.P_PID, export.pid, os.WSTOPPED | os.WNOWAIT)
    make_again_there(broker, topic, 0, PARTITIONS)
    export.send_signal(signal.SIGCONT)
    assert export.wait(120) == 1
    assert committed(broker, "middle", topic) == [(-1001, "")] * PARTITIONS


def test_groups_that_cannot_be_moved_are_rejected(
    source: tuple[eoslog.Log, str], broker: Broker
) -> None:
    log, topic = source
    with pytest.raises(GroupNotFound, match="nobody"):
        log.export_kafka(broker.bootstrap, [topic], groups=["nobody"])
    with pytest.raises(ConfigError, match="follow"):
        log.export_kafka(broker.bootstrap, [topic], groups="all", follow=True)
    log.export_kafka(broker.bootstrap, [topic])
    reader = consumer(broker, "middle")
    reader.subscribe([topic])
    while not reader.assignment():
        reader.poll(0.1)
    with pytest.raises(NonEmptyGroup, match="'middle' of the cluster has members"):
        log.export_kafka(broker.bootstrap, [topic], groups=["middle"])
    reader.close()
