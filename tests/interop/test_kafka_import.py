"""The topics and records that an import from a cluster creates.

The cluster is in memory.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from eoslog.errors import ConfigError
from eoslog.kafka import importer as kafka_import
from eoslog.kafka.cluster import MoveOptions
from eoslog.kafka.following import NewPartitions
from eoslog.log import Log
from eoslog.model import TopicPartition
from tests.client.helpers import visible

STAMP = 1_700_000_000_000


class Message:
    """A record as confluent-kafka returns it."""

    def __init__(self, topic: str, offset: int, value: bytes) -> None:
        self._topic, self._offset, self._value = topic, offset, value

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return self._value

    def key(self) -> None:
        return None

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, STAMP

    def error(self) -> None:
        return None


class Cluster:
    """One partition of one topic, and what an import asks of a cluster."""

    kafka = SimpleNamespace(TopicPartition=lambda topic, partition, at: at)

    def __init__(self, values: list[bytes], **config: str) -> None:
        self.config = config
        self.messages = [Message("new", at, value) for at, value in enumerate(values)]
        self.left = self.messages

    def configs(self, names: Any) -> dict[str, dict[str, str]]:
        return dict.fromkeys(names, self.config)

    def topic_ids(self, names: Any) -> dict[str, str]:
        return dict.fromkeys(names, "A" * 21 + "B")

    def consumer(self, job: str) -> Cluster:
        return self

    def assign(self, positions: list[int]) -> None:
        self.left = self.messages[positions[0] :]

    def consume(self, count: int, wait: float) -> list[Message]:
        taken, self.left = self.left[:count], self.left[count:]
        return taken

    def close(self) -> None:
        pass

    def ends(self, partitions: Any, beginning: bool = False) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0 if beginning else len(self.messages))

    def position_after(self, message: Message) -> int:
        return message.offset() + 1


def moved(log: Log, cluster: Any, topic: str = "new", partitions: int = 1) -> int:
    return (
        kafka_import._TopicImport(log, cluster, {topic: partitions}, MoveOptions())
        .run(0, NewPartitions({}, dict))
        .records
    )


def test_every_record_that_the_topic_accepts_is_imported(log: Log) -> None:
    values = [b"x", b"y" * 1_500_000, b"z" * 40_000_000]
    cluster = Cluster(values, **{"max.message.bytes": "50000000"})
    assert moved(log, cluster) == 3
    assert [len(value) for value in visible(log, "new")] == [len(value) for value in values]


@pytest.mark.parametrize(
    ("partitions", "config", "names"),
    [
        (2, {}, "'new' has 2 partitions in the log and 1 in the cluster"),
        (1, {"message.timestamp.type": "LogAppendTime"}, "'new' has message.timestamp.type"),
    ],
    ids=["more partitions", "stamps records itself"],
)
def test_a_topic_that_would_change_the_records_is_rejected(
    log: Log, partitions: int, config: dict[str, Any], names: str
) -> None:
    log.create_topic("new", partitions, config)
    with pytest.raises(ConfigError, match=names):
        moved(log, Cluster([b"x"]))
    assert log._engine.partition("new", 0).log_end == 0


def test_an_existing_topic_keeps_the_timestamps_of_imported_records(log: Log) -> None:
    log.create_topic("new", 1)
    assert moved(log, Cluster([b"x"])) == 1
    (batch, _) = log._engine.partition("new", 0).batches(0, 2)
    assert batch.max_timestamp == STAMP
