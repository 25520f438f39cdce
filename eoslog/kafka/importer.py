"""Import of topics from a Kafka cluster, exactly once, resumed by each run.

This is the inverse of `kafka_export`. The importer reads the cluster with read_committed. Each
transaction of the directory contains records and the cluster positions after them, as named
positions (`import_positions.py`). Nothing is written to the cluster.

Source: KIP-98, KIP-447.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from eoslog._util.arguments import as_list_of
from eoslog.config.keys import ProducerConfig, TopicConfig
from eoslog.errors import ConfigError, KafkaError, UnknownTopicOrPartition
from eoslog.kafka.cluster import COPIED, WAIT_S, KafkaCluster, Moved, MoveOptions, check_empty
from eoslog.kafka.following import NewPartitions, pause_after, run_job
from eoslog.kafka.group_offsets import LogSide, MovedGroups
from eoslog.kafka.import_positions import ImportPositions
from eoslog.kafka.log import MovedLog
from eoslog.kafka.positions import check_ends, check_topics, positions_in
from eoslog.model import NO_TIMESTAMP, TopicPartition
from eoslog.storage.fs.files import failpoint

if TYPE_CHECKING:
    from eoslog.options import TopicOptions


def import_kafka(
    log: MovedLog, bootstrap: str, topics: Sequence[str] | None, options: MoveOptions
) -> Moved:
    """Take committed records out of a Kafka cluster; see `Log.import_kafka`."""
    named = None if topics is None else as_list_of(str, "topics", "topic names", topics)
    cluster = KafkaCluster(bootstrap, options.config)

    def counts() -> dict[str, int]:
        there = cluster.topics()
        names = sorted(there) if named is None else named
        return {name: there[name] for name in names if name in there}

    def counts_later() -> dict[str, int]:
        try:
            return counts()
        except KafkaError:  # the reader waits for the cluster, or reports the error
            return {}

    def run(copied: int) -> Moved:
        copying = counts()
        unknown = [name for name in named or () if name not in copying]
        if unknown:
            raise UnknownTopicOrPartition(f"the cluster has no topic {unknown[0]!r}")
        new_partitions = NewPartitions(copying, counts_later)
        return _TopicImport(log, cluster, copying, options).run(copied, new_partitions)

    return run_job(run, options)


class _TopicImport:
    """One run: a reader of the cluster, a producer of the directory."""

    def __init__(
        self, log: MovedLog, cluster: KafkaCluster, counts: Mapping[str, int], options: MoveOptions
    ) -> None:
        self._log, self._cluster, self._counts, self._options = log, cluster, counts, options
        self.job = options.job or "eoslog-import"
        self._partitions = [
            TopicPartition(name, number)
            for name, count in counts.items()
            for number in range(count)
        ]

    def run(self, copied: int, new_partitions: NewPartitions) -> Moved:
        self._ids = self._cluster.topic_ids(self._counts)
        self._make_topics()
        self._saved = ImportPositions(self._log, self.job, self._partitions, self._ids)
        groups = MovedGroups(self._cluster, LogSide(self._log), self._partitions, self._options)
        with (
            closing(self._cluster.consumer(self.job)) as reader,
            self._log.producer(self._sizes(), transactional_id=self.job) as producer,
        ):
            producer.init_transactions()
            moved = Moved(self.job, copied, self._positions(producer))
            ends = self._cluster.ends(self._partitions)
            check_ends(self.job, moved.positions, ends, self._remedy)
            place = self._cluster.kafka.TopicPartition
            reader.assign([place(tp.topic, tp.partition, at) for tp, at in moved.positions.items()])
            while (
                not new_partitions.found()
                if self._options.follow
                else any(moved.positions[tp] < ends[tp] for tp in ends)
            ):
                batch, now = self._read(reader)
                if not now:
                    continue
                failpoint("import.read")
                try:
                    ids = self._cluster.topic_ids({tp.topic for tp in now})
                except KafkaError as error:
                    pause_after(error, self._options, self.job)
                    return moved
                behind = positions_in(now, self._ids)
                check_topics(self.job, behind, ids, self._remedy)
                with producer.transaction() as transaction:
                    for message in batch:
                        _produce(transaction, message)
                    failpoint("import.produced")
                    self._saved.set(transaction, now)
                failpoint("import.committed")
                moved = Moved(self.job, moved.records + len(batch), {**moved.positions, **now})
                if self._options.progress is not None:
                    self._options.progress(moved)
        return replace(moved, groups=groups.carry(moved.positions))

    def _make_topics(self) -> None:
        """Create topics as in the cluster, after a check of those that already exist.

        Raises:
            ConfigError: a topic has more partitions than in the cluster, or replaces timestamps.
        """
        present = set(self._log.topics())
        mine = {
            name: len(self._log.partitions_of(name)) for name in self._counts if name in present
        }
        for name, count in self._counts.items():
            if name not in mine:
                continue
            if mine[name] > count:
                raise ConfigError(
                    f"topic {name!r} has {mine[name]} partitions in the log and {count} in the "
                    "cluster, so keys would change partitions; import into a new topic"
                )
            if self._settings(name).message_timestamp_type == "LogAppendTime":
                raise ConfigError(
                    f"topic {name!r} has message.timestamp.type=LogAppendTime, which would "
                    "replace the timestamps; set it to CreateTime for the import"
                )
        configs = self._cluster.configs(self._counts)
        for name, count in self._counts.items():
            if name not in mine:
                config = {k: v for k, v in configs[name].items() if k in COPIED}
                self._log.create_topic(name, count, cast("TopicOptions", config))
            elif mine[name] < count:
                self._log.create_partitions(name, count)

    def _settings(self, topic: str) -> TopicConfig:
        return TopicConfig.of(self._log.describe_topic(topic).config)

    def _sizes(self) -> dict[str, int]:
        """Return room for the topics' largest record, so that all records fit."""
        of_topics = [self._settings(name).max_message_bytes for name in self._counts]
        known = ProducerConfig.of()
        largest = max([known.max_request_size, *of_topics])
        return {
            "max.request.size": largest,
            "buffer.memory": max(known.buffer_memory, 2 * largest),
        }

    def _positions(self, producer: Any) -> dict[TopicPartition, int]:
        """Return the positions to resume from.

        A partition that is new to the job gets a position before its first record.
        """
        found = self._saved.read()
        check_topics(self.job, found, self._ids, self._remedy)
        positions = {tp: at.offset for tp, at in found.items()}
        missing = [tp for tp in self._partitions if tp not in found]
        starts: dict[TopicPartition, int] = {}
        if missing:
            ends = {tp: self._log.offsets(tp.topic, tp.partition).log_end for tp in missing}
            check_empty(self.job, missing, ends, self._remedy)
            starts = self._cluster.ends(missing, beginning=True)
        taken = {tp: positions[tp] for tp in self._saved.earlier}
        if starts or taken:
            with producer.transaction() as transaction:
                self._saved.set(transaction, {**starts, **taken})
                failpoint("import.positions")
            positions.update(starts)
        return positions

    def _remedy(self, tp: TopicPartition) -> str:
        return (
            f"set position {self._saved.name(tp)!r} of the log to the first source offset that is "
            "not copied yet, as an int"
        )

    def _read(self, reader: Any) -> tuple[list[Any], dict[TopicPartition, int]]:
        """Write records and the positions after them; a partition's end moves one too."""
        batch: list[Any] = []
        moved: dict[TopicPartition, int] = {}
        for message in reader.consume(self._options.records, WAIT_S):
            tp = TopicPartition(message.topic(), message.partition())
            behind = self._cluster.position_after(message)
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
