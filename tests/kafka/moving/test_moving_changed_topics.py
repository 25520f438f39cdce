"""Topics that are re-created while an export runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

import eoslog
from eoslog.errors import IllegalState
from tests.kafka.broker import Broker
from tests.kafka.clients import create_topics, librdkafka_rows
from tests.kafka.directories import world
from tests.kafka.moving.test_moving import essence, make_again, run

Rows = list[tuple[object, ...]]


class LogSide:
    """A directory, as one side of a job."""

    def __init__(self, path: Path, _: Broker) -> None:
        self._path = path

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


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@contextmanager
def begun(
    direction: str, path: Path, broker: Broker, *words: str, fail: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a job as a process of its own, and kill it at the end."""
    command = [sys.executable, "-m", "eoslog", "-d", str(path), direction, "kafka"]
    with subprocess.Popen(
        [*command, "--bootstrap", broker.bootstrap, *words],
        env={**os.environ, "EOSLOG_FAILPOINTS": fail},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


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
