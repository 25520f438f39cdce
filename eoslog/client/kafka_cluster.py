"""A Kafka cluster as the other end of an export or import, through confluent-kafka.

Source: KIP-98, KIP-447 (positions in the transaction); confluent-kafka-python.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from eoslog.errors import ConfigError, IllegalState, KafkaError, error_for
from eoslog.model import TopicPartition

if TYPE_CHECKING:
    import confluent_kafka

T = TypeVar("T")
Progress = Callable[["Moved"], None]

TIMEOUT_S = 60.0
_RETRY_S = 0.1
COPIED = (
    "cleanup.policy", "compression.type", "delete.retention.ms", "max.compaction.lag.ms",
    "max.message.bytes", "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "retention.bytes",
    "retention.ms",
)  # fmt: skip
"""Topic settings that a new topic on the other side gets; what shapes files stays behind."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What a run of an export or import has done so far.

    Attributes:
        job: its name: the transactional id and the group that hold its position at the target.
        records: how many this run sent.
        positions: the next offset to send, by partition of the source.
    """

    job: str
    records: int
    positions: Mapping[TopicPartition, int]


def require_confluent_kafka() -> Any:
    """The confluent_kafka module.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise ConfigError(
            "a Kafka cluster needs the package 'confluent-kafka': install eoslog[kafka]"
        ) from error
    return confluent_kafka


@contextmanager
def kafka_errors(what: str) -> Iterator[None]:
    """Turn the client's exceptions into eoslog's, of the same code."""
    kafka = require_confluent_kafka()
    try:
        yield
    except kafka.KafkaException as error:
        found = error.args[0]
        # The client's own errors are negative and have no twin here.
        raise error_for(max(found.code(), -1), f"{what}: {found.str()}") from error


def retried(call: Callable[[], T]) -> T:
    """Call until it is done, while the client says that trying again is the answer.

    Raises:
        KafkaException: another error, or no success within TIMEOUT_S.
    """
    kafka = require_confluent_kafka()
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return call()
        except kafka.KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_S)


class KafkaCluster:
    """A cluster, by its bootstrap servers.

    Args:
        bootstrap: host:port[,host:port...].
        config: more of librdkafka's configuration, for every client (security, for one).
    """

    def __init__(self, bootstrap: str, config: Mapping[str, Any] | None = None) -> None:
        """Connect nothing yet."""
        self.kafka = require_confluent_kafka()
        self._config = {"log_level": 2, **(config or {}), "bootstrap.servers": bootstrap}
        self._admin = self.kafka.admin.AdminClient(self._config)

    def producer(self, transactional_id: str) -> confluent_kafka.Producer:
        """A transactional producer that keeps the order and what it is given."""
        made: confluent_kafka.Producer = self.kafka.Producer(
            {"linger.ms": 20, "enable.idempotence": True, **self._config,
             "transactional.id": transactional_id}
        )  # fmt: skip
        return made

    def consumer(self, group_id: str) -> confluent_kafka.Consumer:
        """A consumer of committed records, to be assigned by hand; it never commits."""
        made: confluent_kafka.Consumer = self.kafka.Consumer(
            {**self._config, "group.id": group_id, "enable.auto.commit": False,
             "isolation.level": "read_committed", "auto.offset.reset": "error",
             "enable.partition.eof": True}
        )  # fmt: skip
        return made

    def topics(self) -> dict[str, int]:
        """Partition counts of the topics that are not internal."""
        with kafka_errors("listing topics"):
            found = self._admin.list_topics(timeout=TIMEOUT_S).topics
        return {name: len(t.partitions) for name, t in found.items() if not name.startswith("__")}

    def ensure_topics(
        self, wanted: Mapping[str, int], configs: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Make the topics that are missing, and check the others.

        Raises:
            ConfigError: a topic has another number of partitions, or replaces timestamps.
        """
        there = self.topics()
        for name, count in wanted.items():
            if there.get(name, count) != count:
                raise ConfigError(
                    f"topic {name!r} has {there[name]} partitions in the cluster and {count} here"
                )
        stamped = [
            name
            for name, config in self.configs([n for n in wanted if n in there]).items()
            if config.get("message.timestamp.type") == "LogAppendTime"
        ]
        if stamped:
            raise ConfigError(
                f"topic {stamped[0]!r} of the cluster has message.timestamp.type=LogAppendTime: "
                "the records' timestamps would be lost"
            )
        new = [
            self.kafka.admin.NewTopic(name, count, -1, config=dict(configs.get(name, {})))
            for name, count in wanted.items()
            if name not in there
        ]
        if not new:
            return
        with kafka_errors("creating topics"):
            for future in self._admin.create_topics(new).values():
                future.result(TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        while any(self.topics().get(name) != count for name, count in wanted.items()):
            if time.monotonic() > deadline:
                raise ConfigError(f"the cluster does not show its new topics: {sorted(wanted)}")
            time.sleep(_RETRY_S)

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings of topics that are not defaults of Kafka."""
        kinds, sources = self.kafka.admin.ResourceType, self.kafka.admin.ConfigSource
        asked = [self.kafka.admin.ConfigResource(kinds.TOPIC, name) for name in topics]
        if not asked:
            return {}
        default = sources.DEFAULT_CONFIG.value
        with kafka_errors("describing topics"):
            return {
                resource.name: {
                    key: entry.value
                    for key, entry in future.result(TIMEOUT_S).items()
                    if entry.source != default and entry.value is not None
                }
                for resource, future in self._admin.describe_configs(asked).items()
            }

    def ends(
        self, partitions: Collection[TopicPartition], *, beginning: bool = False
    ) -> dict[TopicPartition, int]:
        """The last stable offset of each partition, or its beginning."""
        admin, kafka = self.kafka.admin, self.kafka
        if not partitions:
            return {}
        spec = admin.OffsetSpec.earliest() if beginning else admin.OffsetSpec.latest()
        asked = {kafka.TopicPartition(tp.topic, tp.partition): spec for tp in partitions}
        level = kafka.IsolationLevel.READ_COMMITTED
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                with kafka_errors("listing offsets"):
                    answers = self._admin.list_offsets(asked, isolation_level=level).items()
                    return {
                        TopicPartition(tp.topic, tp.partition): future.result(TIMEOUT_S).offset
                        for tp, future in answers
                    }
            except KafkaError as error:  # a topic just made may have no leader yet
                if not error.retriable or time.monotonic() > deadline:
                    raise
            time.sleep(_RETRY_S)

    def committed(
        self, consumer: confluent_kafka.Consumer, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The committed offsets of the consumer's group, where there is one; stable ones only."""
        asked = [self.kafka.TopicPartition(tp.topic, tp.partition) for tp in partitions]
        with kafka_errors("reading the position"):
            found = retried(lambda: consumer.committed(asked, TIMEOUT_S))
        for tp in found:
            if tp.error is not None:
                raise error_for(max(tp.error.code(), -1), f"the position of {tp.topic}: {tp.error}")
        return {TopicPartition(tp.topic, tp.partition): tp.offset for tp in found if tp.offset >= 0}


def check_empty(
    job: str, missing: Collection[TopicPartition], ends: Mapping[TopicPartition, int]
) -> None:
    """Where the job has no position, the target must hold nothing: else it would be doubled.

    Raises:
        IllegalState: a partition holds records that this job does not know of.
    """
    full = sorted(tp for tp in missing if ends.get(tp, 0) > 0)
    if full:
        raise IllegalState(
            f"{full[0]} of the target ends at offset {ends[full[0]]}, and job {job!r} has no "
            "position there: it was filled by something else, or the position has expired"
        )
