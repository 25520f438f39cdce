"""Topics that get partitions, or are re-created, while an export or import runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

import eoslog
from eoslog.errors import IllegalState, OffsetOutOfRange
from tests.kafka.broker import Broker
from tests.kafka.clients import create_topics, librdkafka_rows
from tests.kafka.directories import world
from tests.kafka.moving.test_moving import essence, make_again, run
from tests.waiting import until

Rows = list[tuple[object, ...]]


class LogSide:
    """A directory, as one side of a job."""

    def __init__(self, path: Path, _: Broker) -> None:
        self._path = path

    def create(self, topic: str, count: int) -> None:
        with eoslog.open(self._path) as log:
            log.create_topic(topic, count)

    def grow(self, topic: str, count: int) -> None:
        with eoslog.open(self._path) as log:
            log.create_partitions(topic, count)

    def produce(self, topic: str, partition: int, values: list[bytes]) -> None:
        with eoslog.open(self._path) as log, log.producer() as producer:
            for value in values:
                producer.produce(topic, value, partition=partition)

    def rows(self, topic: str) -> Rows:
        with eoslog.open(self._path) as log:
            if topic not in log.topics():
                return []
            return essence(world.rows_of(log, topic, "read_committed"))


class ClusterSide:
    """A cluster, as one side of a job."""

    def __init__(self, _: Path, broker: Broker) -> None:
        self._broker = broker
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def create(self, topic: str, count: int) -> None:
        create_topics(self._broker, {topic: count})

    def grow(self, topic: str, count: int) -> None:
        for future in self._admin.create_partitions([NewPartitions(topic, count)]).values():
            future.result(30)
        until(lambda: self.count(topic) == count)

    def produce(self, topic: str, partition: int, values: list[bytes]) -> None:
        producer = Producer({"bootstrap.servers": self._broker.bootstrap})
        for value in values:
            producer.produce(topic, value, partition=partition)
        assert producer.flush(30) == 0

    def rows(self, topic: str) -> Rows:
        counts = {topic: self.count(topic)}
        return essence(librdkafka_rows(self._broker, counts, "read_committed")[topic])

    def delete(self, topic: str) -> None:
        for future in self._admin.delete_topics([topic]).values():
            future.result(30)
        until(lambda: self.count(topic) == 0)

    def count(self, topic: str) -> int:
        found = self._admin.list_topics(timeout=30).topics
        return len(found[topic].partitions) if topic in found else 0


JOBS = {"export": "eoslog-export-", "import": "eoslog-import'"}
SIDES = {"export": (LogSide, ClusterSide), "import": (ClusterSide, LogSide)}


@contextmanager
def begun(
    direction: str, path: Path, broker: Broker, *words: str, fail: str = "",
    stderr: int | None = None,
) -> Iterator[subprocess.Popen[bytes]]:  # fmt: skip
    """Start a job as a process of its own, and kill it at the end."""
    command = [sys.executable, "-m", "eoslog", "-d", str(path), direction, "kafka"]
    with subprocess.Popen(
        [*command, "--bootstrap", broker.bootstrap, *words],
        env={**os.environ, "EOSLOG_FAILPOINTS": fail},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("direction", SIDES)
def test_a_following_job_copies_partitions_and_topics_that_are_added_later(
    direction: str, broker: Broker, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    eoslog.open(path).close()
    source, target = (side(path, broker) for side in SIDES[direction])
    old, new = f"growing-{direction}", f"later-{direction}"
    source.create(old, 2)
    source.produce(old, 1, [b"1", b"2"])
    with begun(direction, path, broker, "--follow") as process:
        until(lambda: len(target.rows(old)) == 2)
        source.grow(old, 4)
        source.produce(old, 3, [b"3", b"4"])
        source.produce(old, 0, [b"5"])
        until(lambda: len(target.rows(old)) == 5)
        source.create(new, 2)
        source.produce(new, 1, [b"6"])
        until(lambda: len(target.rows(new)) == 1)
        assert process.poll() is None
    assert run(direction, path, broker, old, new) == 0
    assert [target.rows(old), target.rows(new)] == [source.rows(old), source.rows(new)]


@pytest.mark.parametrize(("direction", "point"), [("export", "flushed:1"), ("import", "read:1")])
def test_a_following_job_survives_a_cluster_that_does_not_answer_its_look(
    direction: str, point: str, broker: Broker, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    eoslog.open(path).close()
    source, target = (side(path, broker) for side in SIDES[direction])
    topic = f"unanswered-{direction}"
    source.create(topic, 1)
    assert run(direction, path, broker, topic) == 0
    source.produce(topic, 0, [b"1", b"2"])
    words = (topic, "--follow", "-c", "socket.timeout.ms=5s")
    fail = f"{direction}.{point}=stop"
    with begun(direction, path, broker, *words, fail=fail, stderr=subprocess.PIPE) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        with broker.suspended():
            os.kill(process.pid, signal.SIGCONT)
            assert process.stderr is not None
            warning = next(line.decode() for line in process.stderr if b"run failed" in line)
            assert f"job '{JOBS[direction]}" in warning
            assert f"topic '{topic}' of the cluster: " in warning
        until(lambda: len(target.rows(topic)) == 2)
        source.produce(topic, 0, [b"3"])
        until(lambda: len(target.rows(topic)) == 3)
        assert process.poll() is None
    assert run(direction, path, broker, topic) == 0
    assert target.rows(topic) == source.rows(topic)


KILLS = {
    "export": ("begin:2", "offsets:2", "committed:2", "produced:3", "committed:3"),
    "import": ("positions:1", "produced:2", "committed:2"),
}


@pytest.mark.parametrize(
    ("direction", "point"), [(way, point) for way, points in KILLS.items() for point in points]
)
def test_a_job_killed_while_it_takes_up_a_new_partition_continues(
    direction: str, point: str, broker: Broker, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    eoslog.open(path).close()
    source, target = (side(path, broker) for side in SIDES[direction])
    topic = f"{direction}-{point.replace(':', '-')}"
    source.create(topic, 1)
    assert run(direction, path, broker, topic) == 0
    fail = f"{direction}.{point}=kill"
    with begun(direction, path, broker, topic, "--follow", fail=fail) as process:
        source.produce(topic, 0, [b"1"])
        until(lambda: len(target.rows(topic)) == 1)
        source.grow(topic, 2)
        source.produce(topic, 1, [b"2"])
        assert process.wait(300) == -signal.SIGKILL
    source.produce(topic, 1, [b"3"])
    assert run(direction, path, broker, topic) == 0
    assert target.rows(topic) == source.rows(topic)
    assert len(target.rows(topic)) == 3


def test_an_export_adds_no_partition_to_a_topic_of_another_program(
    broker: Broker, tmp_path: Path
) -> None:
    there = ClusterSide(tmp_path, broker)
    there.create("foreign", 1)
    there.produce("foreign", 0, [b"1"])
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("foreign", 2)
        with pytest.raises(IllegalState, match="has no saved position"):
            log.export_kafka(broker.bootstrap)
    assert there.count("foreign") == 1


def test_an_export_stops_before_it_commits_to_a_re_created_topic(
    broker: Broker, tmp_path: Path
) -> None:
    there, topic = ClusterSide(tmp_path, broker), "again-between"

    def meddle(moved: eoslog.kafka.cluster.Moved) -> None:
        if moved.records == 10:
            there.delete(topic)
            there.create(topic, 1)

    with eoslog.open(tmp_path / "log") as log:
        make_again(log, topic, 30)
        with pytest.raises(IllegalState, match=f"'{topic}' of the cluster was deleted and re-c"):
            log.export_kafka(broker.bootstrap, [topic], records=10, progress=meddle)
        assert there.rows(topic) == []
        there.delete(topic)
        assert log.export_kafka(broker.bootstrap).records == 30
        assert there.rows(topic) == essence(world.rows_of(log, topic, "read_committed"))


def test_an_export_whose_next_records_are_deleted_says_how_to_continue(
    broker: Broker, tmp_path: Path
) -> None:
    there, topic = ClusterSide(tmp_path, broker), "deleted-ahead"
    with eoslog.open(tmp_path / "log") as log:
        make_again(log, topic, 10)
        log.export_kafka(broker.bootstrap, [topic])
        copied = essence(world.rows_of(log, topic, "read_committed"))
        with log.producer() as producer:
            producer.produce_many(topic, [b"%d" % n for n in range(10, 30)])
        log.delete_records({eoslog.TopicPartition(topic, 0): 15})
        message = "up to offset 10, but the source begins at offset 15.*set the offset of group"
        with pytest.raises(OffsetOutOfRange, match=message):
            log.export_kafka(broker.bootstrap, [topic])
    assert there.rows(topic) == copied


def test_an_export_whose_source_topic_is_re_created_says_how_to_continue(
    broker: Broker, tmp_path: Path
) -> None:
    there, topic = ClusterSide(tmp_path, broker), "source-again"
    with eoslog.open(tmp_path / "log") as log:
        make_again(log, topic, 30)
        expected = essence(world.rows_of(log, topic, "read_committed"))

        def meddle(moved: eoslog.kafka.cluster.Moved) -> None:
            if moved.records == 10:
                make_again(log, topic, 40)

        for _ in range(2):
            with pytest.raises(IllegalState, match="up to offset 10 .* deleted and re-created"):
                log.export_kafka(broker.bootstrap, [topic], records=10, progress=meddle)
    assert there.rows(topic) == expected[:10]


@pytest.mark.parametrize("point", ["produced", "checked"])
def test_an_export_stopped_while_its_target_is_re_created_loses_nothing(
    point: str, broker: Broker, tmp_path: Path
) -> None:
    there, topic = ClusterSide(tmp_path, broker), f"again-{point}"
    with eoslog.open(tmp_path / "log") as log:
        make_again(log, topic, 20)
    path, fail = tmp_path / "log", f"export.{point}:3=stop"
    with begun("export", path, broker, topic, "-n", "10", fail=fail) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        there.delete(topic)
        there.create(topic, 1)
        os.kill(process.pid, signal.SIGCONT)
        assert (process.wait(120) == 0) == (point == "checked")
    # The new topic lacks what the old one had, so the job does not continue in it.
    assert run("export", path, broker, topic) != 0
    assert there.rows(topic) == []
    there.delete(topic)
    assert run("export", path, broker, topic) == 0
    assert there.rows(topic) == LogSide(path, broker).rows(topic)
