"""Topics of a Kafka cluster into a directory, exactly once, from where the last run stopped.

The other way round of `kafka_export`: records are read committed from the cluster, and each
transaction of the directory holds records and, as committed offsets of the group of the job's name,
the positions behind them in the cluster. Nothing is written to the cluster.

Source: KIP-98, KIP-447.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from eoslog.client.kafka_cluster import (
    COPIED,
    WAIT_S,
    KafkaCluster,
    Moved,
    MoveOptions,
    check_empty,
)
from eoslog.client.moved_groups import LogSide, MovedGroups
from eoslog.client.moved_positions import check_ends, check_topics, positions_in
from eoslog.config import ProducerConfig
from eoslog.errors import ConfigError, GroupNotFound, UnknownTopicOrPartition
from eoslog.model import NO_TIMESTAMP, TopicPartition
from eoslog.storage.files import failpoint

if TYPE_CHECKING:
    from eoslog.log import Log


def import_kafka(
    log: Log, bootstrap: str, topics: Sequence[str] | None, options: MoveOptions
) -> Moved:
    """Take committed records out of a Kafka cluster; see `Log.import_kafka`."""
    cluster = KafkaCluster(bootstrap, options.config)
    there = cluster.topics()
    names = sorted(there) if topics is None else list(topics)
    unknown = [name for name in names if name not in there]
    if unknown:
        raise UnknownTopicOrPartition(f"the cluster has no topic {unknown[0]!r}")
    return _Import(log, cluster, {name: there[name] for name in names}, options).run()


class _Import:
    """One run: a reader of the cluster, a producer of the directory."""

    def __init__(
        self, log: Log, cluster: KafkaCluster, counts: Mapping[str, int], options: MoveOptions
    ) -> None:
        self._log, self._cluster, self._counts, self._options = log, cluster, counts, options
        self.job = options.job or "eoslog-import"
        self._partitions = [
            TopicPartition(name, number)
            for name, count in counts.items()
            for number in range(count)
        ]

    def run(self) -> Moved:
        self._ids = self._cluster.topic_ids(self._counts)
        self._make_topics()
        groups = MovedGroups(self._cluster, LogSide(self._log), self._partitions, self._options)
        with (
            closing(self._cluster.consumer(self.job)) as reader,
            self._log.producer(self._sizes(), transactional_id=self.job) as producer,
        ):
            producer.init_transactions()
            moved = Moved(self.job, 0, self._positions(producer))
            ends = self._cluster.ends(self._partitions)
            check_ends(self.job, moved.positions, ends)
            place = self._cluster.kafka.TopicPartition
            reader.assign([place(tp.topic, tp.partition, at) for tp, at in moved.positions.items()])
            while self._options.follow or any(moved.positions[tp] < ends[tp] for tp in ends):
                batch, now = self._read(reader)
                if not now:
                    continue
                behind = positions_in(now, self._ids)
                check_topics(self.job, behind, self._cluster.topic_ids({tp.topic for tp in now}))
                with producer.transaction() as transaction:
                    for message in batch:
                        _produce(transaction, message)
                    failpoint("import.produced")
                    producer.send_offsets_to_transaction(behind, self.job)
                failpoint("import.committed")
                moved = Moved(self.job, moved.records + len(batch), {**moved.positions, **now})
                if self._options.progress is not None:
                    self._options.progress(moved)
        return replace(moved, groups=groups.carry(moved.positions))

    def _make_topics(self) -> None:
        """Topics as in the cluster; those that are there already are looked at before any is made.

        Raises:
            ConfigError: a topic has more partitions than in the cluster, or replaces timestamps.
        """
        mine = {name: self._log.engine.topic(name) for name in self._log.topics()}
        for name, count in self._counts.items():
            if name not in mine:
                continue
            if len(mine[name].partitions) > count:
                raise ConfigError(
                    f"topic {name!r} has {len(mine[name].partitions)} partitions, in the cluster "
                    f"{count}: a key would lie in another partition than there"
                )
            if mine[name].settings.message_timestamp_type == "LogAppendTime":
                raise ConfigError(
                    f"topic {name!r} has message.timestamp.type=LogAppendTime: it would replace "
                    "the timestamps, set it to CreateTime for the import"
                )
        configs = self._cluster.configs(self._counts)
        for name, count in self._counts.items():
            if name not in mine:
                config = {k: v for k, v in configs[name].items() if k in COPIED}
                self._log.create_topic(name, count, config)
            elif len(mine[name].partitions) < count:
                self._log.create_partitions(name, count)

    def _sizes(self) -> dict[str, int]:
        """Room for the largest record that the topics take: what the cluster holds must get in."""
        of_topics = [self._log.engine.topic(n).settings.max_message_bytes for n in self._counts]
        known = ProducerConfig.of()
        largest = max([known.max_request_size, *of_topics])
        return {
            "max.request.size": largest,
            "buffer.memory": max(known.buffer_memory, 2 * largest),
        }

    def _positions(self, producer: Any) -> dict[TopicPartition, int]:
        """Where to go on; partitions new to the job get a position before their first record."""
        try:
            committed = self._log.describe_group(self.job).offsets
        except GroupNotFound:
            committed = {}
        found = {tp: committed[tp] for tp in self._partitions if tp in committed}
        check_topics(self.job, found, self._ids)
        positions = {tp: at.offset for tp, at in found.items()}
        missing = [tp for tp in self._partitions if tp not in found]
        if missing:
            ends = {tp: self._log.offsets(tp.topic, tp.partition).log_end for tp in missing}
            check_empty(self.job, missing, ends)
            starts = self._cluster.ends(missing, beginning=True)
            with producer.transaction():
                producer.send_offsets_to_transaction(positions_in(starts, self._ids), self.job)
            positions.update(starts)
        return positions

    def _read(self, reader: Any) -> tuple[list[Any], dict[TopicPartition, int]]:
        """Records, and the positions behind them; an end of a partition moves one too."""
        batch: list[Any] = []
        moved: dict[TopicPartition, int] = {}
        for message in reader.consume(self._options.records, WAIT_S):
            tp = TopicPartition(message.topic(), message.partition())
            behind = self._cluster.position_behind(message)
            moved[tp] = max(behind, moved.get(tp, 0))
            if message.error() is None:
                batch.append(message)
        return batch, moved


def _produce(transaction: Any, message: Any) -> None:
    _, timestamp = message.timestamp()
    transaction.produce(
        message.topic(),
        message.value(),
        message.key(),
        partition=message.partition(),
        timestamp=None if timestamp == NO_TIMESTAMP else timestamp,  # now, as Kafka's mirrors do
        headers=message.headers() or (),
    )
    failpoint("import.record")
