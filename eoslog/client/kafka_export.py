"""Topics of a directory into a Kafka cluster, exactly once, from where the last run stopped.

Each transaction at the target holds records and, as committed offsets of the group of the job's
name, the positions behind them in the source. So a run that died left either both or none: the next
one, with the same transactional id, fences it, aborts what it left open, reads the positions and
goes on. Offsets may differ at the target (markers and gaps of the source stay behind), order,
partition, key, value, headers and timestamp are the same. A transaction of the source is not one at
the target.

Source: KIP-98, KIP-447.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from eoslog.client.kafka_cluster import (
    COPIED,
    TIMEOUT_S,
    WAIT_S,
    KafkaCluster,
    Moved,
    MoveOptions,
    check_empty,
    kafka_errors,
    retried,
)
from eoslog.client.moved_groups import LogSide, MovedGroups
from eoslog.client.moved_positions import check_ends, check_topics, positions_in
from eoslog.errors import ConfigError
from eoslog.model import NO_TIMESTAMP, OffsetAndMetadata, TopicPartition
from eoslog.storage.checkpoints import id_text
from eoslog.storage.files import failpoint

if TYPE_CHECKING:
    from eoslog.log import Log

_TRIES = 5


def export_kafka(
    log: Log, bootstrap: str, topics: Sequence[str] | None, options: MoveOptions
) -> Moved:
    """Send committed records into a Kafka cluster; see `Log.export_kafka`."""
    names = list(log.topics() if topics is None else topics)
    export = _Export(log, KafkaCluster(bootstrap, options.config), names, options)
    try:
        return export.run()
    finally:
        export.close()


class _Export:
    """One run: a producer at the target, a reader at the source."""

    def __init__(
        self, log: Log, cluster: KafkaCluster, topics: Sequence[str], options: MoveOptions
    ) -> None:
        self._log, self._cluster, self._options = log, cluster, options
        self.job = options.job or f"eoslog-export-{log.engine.properties.cluster_id}"
        about = {name: log.describe_topic(name) for name in topics}
        self._counts = {name: len(topic.partitions) for name, topic in about.items()}
        self._configs = {
            name: {
                "retention.ms": "-1",
                **{k: str(v) for k, v in topic.config.items() if k in COPIED},
            }
            for name, topic in about.items()
        }
        self._ids = {name: id_text(topic.topic_id) for name, topic in about.items()}
        self._partitions = [
            TopicPartition(name, part.partition)
            for name, topic in about.items()
            for part in topic.partitions
        ]
        self._group = cluster.consumer(self.job)  # for its group's offsets; it reads nothing

    def close(self) -> None:
        """Leave; what is undecided is aborted by the next run, or by its timeout."""
        self._group.close()

    def run(self) -> Moved:
        self._cluster.ensure_topics(self._counts, self._configs)
        self._producer = self._cluster.producer(self.job, self._counts)
        groups = MovedGroups(LogSide(self._log), self._cluster, self._partitions, self._options)
        with kafka_errors(f"export job {self.job!r}"):
            retried(lambda: self._producer.init_transactions(TIMEOUT_S))
        positions = self._positions()
        ends = {tp: self._log.offsets(*_key(tp)).last_stable for tp in self._partitions}
        check_ends(self.job, positions, ends)
        moved = Moved(self.job, 0, positions)
        options = {"isolation_level": "read_committed", "auto_offset_reset": "none"}
        with self._log.consumer(**options) as reader:
            reader.assign([TopicPartition(*_key(tp), at) for tp, at in positions.items()])
            while self._options.follow or any(moved.positions[tp] < ends[tp] for tp in ends):
                batch = reader.consume(self._options.records, timeout=WAIT_S)
                now = dict(reader.positions())
                if now != moved.positions:
                    self._check(positions_in(now, self._ids))  # of which topic these records are
                    self._send(batch, now)
                    moved = Moved(self.job, moved.records + len(batch), now)
                    if self._options.progress is not None:
                        self._options.progress(moved)
        return replace(moved, groups=groups.carry(moved.positions))

    def _positions(self) -> dict[TopicPartition, int]:
        """Where to go on; partitions new to the job get a position before their first record."""
        found = self._cluster.committed(self._group, self._partitions)
        missing = [tp for tp in self._partitions if tp not in found]
        self._check(found)
        positions = {tp: at.offset for tp, at in found.items()}
        if missing:
            check_empty(self.job, missing, self._cluster.ends(missing))
            starts = {tp: self._log.offsets(*_key(tp)).log_start for tp in missing}
            self._send([], starts)
            positions.update(starts)
        return positions

    def _check(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        now = {name: id_text(self._log.engine.topic(name).topic_id) for name in self._ids}
        check_topics(self.job, positions, now)

    def _send(self, batch: Sequence[Any], positions: Mapping[TopicPartition, int]) -> None:
        """One transaction: records and the positions behind them. Again where it was aborted."""
        kafka = self._cluster.kafka
        with kafka_errors(f"export job {self.job!r}"):
            for left in reversed(range(_TRIES)):
                try:
                    self._transaction(batch, positions)
                    return
                except ConfigError:  # of a record: what came before it must not stay open
                    retried(lambda: self._producer.abort_transaction(TIMEOUT_S))
                    raise
                except kafka.KafkaException as error:
                    if not left or not error.args[0].txn_requires_abort():
                        raise
                retried(lambda: self._producer.abort_transaction(TIMEOUT_S))

    def _transaction(self, batch: Sequence[Any], positions: Mapping[TopicPartition, int]) -> None:
        producer, kafka = self._producer, self._cluster.kafka
        offsets = [
            kafka.TopicPartition(*_key(tp), at.offset, at.metadata)
            for tp, at in positions_in(positions, self._ids).items()
        ]
        failpoint("export.begin")
        producer.begin_transaction()
        for record in batch:
            self._produce(record)
        failpoint("export.produced")
        retried(
            lambda: producer.send_offsets_to_transaction(
                offsets, self._group.consumer_group_metadata(), TIMEOUT_S
            )
        )
        failpoint("export.offsets")
        retried(lambda: producer.commit_transaction(TIMEOUT_S))
        failpoint("export.committed")

    def _produce(self, record: Any) -> None:
        timestamp = _timestamp(record)
        while True:
            try:
                self._producer.produce(
                    record.topic,
                    value=None if record.value is None else bytes(record.value),
                    key=None if record.key is None else bytes(record.key),
                    partition=record.partition,
                    timestamp=timestamp,
                    headers=[
                        (name, None if value is None else bytes(value))
                        for name, value in record.headers or ()
                    ],
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                failpoint("export.record")
                return


def _timestamp(record: Any) -> int:
    """What librdkafka is told: its 0 is the time of sending, which who has none gets.

    Raises:
        ConfigError: the record is of 1970 to the millisecond.
    """
    if record.timestamp == 0:
        raise ConfigError(
            f"{record.topic}-{record.partition} offset {record.offset}: librdkafka cannot send "
            "the timestamp 0, it would send the time of the export"
        )
    return 0 if record.timestamp == NO_TIMESTAMP else int(record.timestamp)


def _key(tp: TopicPartition) -> tuple[str, int]:
    return tp.topic, tp.partition
