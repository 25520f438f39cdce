"""Export of topics to a Kafka cluster, exactly once, resumed by each run.

Each transaction at the target contains records and the source positions after them. The positions
are committed offsets of the group with the job's name. So a run that died left both or neither. The
next run uses the same transactional id: it fences the dead one, aborts its open transaction, reads
the positions and resumes. Order, partition, key, value, headers and timestamp are the same at the
target. Offsets may differ, because markers and gaps are not copied. Transactions of the source are
not preserved.

A target topic that is re-created during the run lacks the earlier records. Its id is compared after
the records of a transaction are acknowledged, and before the transaction commits. If the topic is
re-created after that, the position with the id of the old topic does not count in the new one.

Source: KIP-98, KIP-447.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from eoslog._util.arguments import as_list_of
from eoslog.errors import (
    ConfigError,
    EoslogError,
    IllegalState,
    KafkaError,
    NoOffset,
    OffsetOutOfRange,
)
from eoslog.kafka.cluster import (
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
from eoslog.kafka.following import NewPartitions, pause_after, run_job, survives
from eoslog.kafka.group_offsets import LogSide, MovedGroups
from eoslog.kafka.log import MovedLog
from eoslog.kafka.positions import (
    check_ends,
    check_starts,
    check_topics,
    of_targets,
    positions_in,
)
from eoslog.model import NO_RESET, NO_TIMESTAMP, OffsetAndMetadata, TopicPartition
from eoslog.storage.format.checkpoints import id_text
from eoslog.storage.fs.files import failpoint

_TRIES = 5


def export_kafka(
    log: MovedLog, bootstrap: str, topics: Sequence[str] | None, options: MoveOptions
) -> Moved:
    """Send committed records into a Kafka cluster; see `Log.export_kafka`."""
    named = None if topics is None else as_list_of(str, "topics", "topic names", topics)
    cluster = KafkaCluster(bootstrap, options.config)

    def counts() -> dict[str, int]:
        names = log.topics() if named is None else named
        return {name: len(log.partitions_of(name)) for name in names}

    def run(copied: int) -> Moved:
        copying = counts()
        with closing(_Export(log, cluster, copying, options)) as export:
            return export.run(copied, NewPartitions(copying, counts))

    return run_job(run, options)


class _Export:
    """One run: a producer at the target, a reader at the source."""

    def __init__(
        self, log: MovedLog, cluster: KafkaCluster, counts: Mapping[str, int], options: MoveOptions
    ) -> None:
        self._log, self._cluster, self._counts, self._options = log, cluster, counts, options
        self.job = options.job or f"eoslog-export-{log.cluster_id}"
        about = {name: log.describe_topic(name) for name in counts}
        self._configs = {
            name: {
                "retention.ms": "-1",
                **{k: str(v) for k, v in topic.config.items() if k in COPIED},
            }
            for name, topic in about.items()
        }
        self._ids = {name: id_text(topic.topic_id) for name, topic in about.items()}
        self._partitions = [
            TopicPartition(name, number)
            for name, count in counts.items()
            for number in range(count)
        ]
        self._group = cluster.consumer(self.job)  # for its group's offsets; it reads nothing

    def close(self) -> None:
        """Leave; what is undecided is aborted by the next run, or by its timeout."""
        self._group.close()

    def run(self, copied: int, new_partitions: NewPartitions) -> Moved:
        self._cluster.ensure_topics(self._counts, self._configs)
        self._targets = retried(lambda: self._cluster.topic_ids(self._counts))
        self._producer = self._cluster.producer(self.job, self._counts)
        groups = MovedGroups(LogSide(self._log), self._cluster, self._partitions, self._options)
        with kafka_errors(f"export job {self.job!r}"):
            retried(lambda: self._producer.init_transactions(TIMEOUT_S))
        positions = self._positions()
        ends = {tp: self._log.offsets(*_key(tp)).last_stable for tp in self._partitions}
        check_ends(self.job, positions, ends)
        moved = Moved(self.job, copied, positions)
        options: dict[str, Any] = {
            "isolation_level": "read_committed",
            "auto_offset_reset": NO_RESET,
        }
        with self._log.consumer(**options) as reader:
            reader.assign([TopicPartition(*_key(tp), at) for tp, at in positions.items()])
            while (
                not new_partitions.found()
                if self._options.follow
                else any(moved.positions[tp] < ends[tp] for tp in ends)
            ):
                batch = self._read(reader, moved.positions)
                # A re-created topic has no position; the check, or the next read, names it.
                now = {**moved.positions, **reader.positions()}
                if now != moved.positions:
                    self._check(positions_in(now, self._ids))  # of which topic these records are
                    try:
                        self._send(batch, now)
                    except KafkaError as error:
                        pause_after(error, self._options, self.job)
                        return moved  # the next run aborts the open transaction
                    moved = Moved(self.job, moved.records + len(batch), now)
                    if self._options.progress is not None:
                        self._options.progress(moved)
        return replace(moved, groups=groups.carry(moved.positions))

    def _read(self, reader: Any, positions: Mapping[TopicPartition, int]) -> Sequence[Any]:
        try:
            return list(reader.consume(self._options.records, timeout=WAIT_S))
        except (NoOffset, OffsetOutOfRange):
            self._check(positions_in(positions, self._ids))
            starts = {tp: self._log.offsets(*_key(tp)).log_start for tp in positions}
            check_starts(self.job, positions, starts)
            raise

    def _positions(self) -> dict[TopicPartition, int]:
        """Return the positions to resume from.

        A partition that is new to the job gets a position before its first record.
        """
        stored = self._cluster.committed(self._group, self._partitions)
        found = of_targets(stored, self._targets)
        missing = [tp for tp in self._partitions if tp not in found]
        self._check(found)
        positions = {tp: at.offset for tp, at in found.items()}
        there = self._cluster.topics()
        present = [tp for tp in missing if tp.partition < there.get(tp.topic, 0)]
        check_empty(self.job, missing, self._cluster.ends(present))
        self._cluster.add_partitions(self._counts)
        if missing:
            starts = {tp: self._log.offsets(*_key(tp)).log_start for tp in missing}
            self._send([], starts)
            positions.update(starts)
        return positions

    def _check(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        now = {name: id_text(self._log.topic_id(name)) for name in self._ids}
        check_topics(self.job, positions, now)

    def _send(self, batch: Sequence[Any], positions: Mapping[TopicPartition, int]) -> None:
        """Write records and the positions after them in one transaction.

        An aborted transaction is repeated.
        """
        kafka = self._cluster.kafka
        with kafka_errors(f"export job {self.job!r}"):
            for left in reversed(range(_TRIES)):
                try:
                    self._transaction(batch, positions)
                    return
                except EoslogError as error:
                    if survives(error, self._options):
                        raise
                    # The error is of a record or topic. The transaction must not stay open.
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
            for tp, at in positions_in(positions, self._ids, self._targets).items()
        ]
        failpoint("export.begin")
        producer.begin_transaction()
        for record in batch:
            self._produce(record)
        failpoint("export.produced")
        while producer.flush(TIMEOUT_S):  # what is on its way may reach a topic created later
            pass
        failpoint("export.flushed")
        self._check_targets({record.topic for record in batch})
        failpoint("export.checked")
        retried(
            lambda: producer.send_offsets_to_transaction(
                offsets, self._group.consumer_group_metadata(), TIMEOUT_S
            )
        )
        failpoint("export.offsets")
        retried(lambda: producer.commit_transaction(TIMEOUT_S))
        failpoint("export.committed")

    def _check_targets(self, topics: Collection[str]) -> None:
        now = self._cluster.topic_ids(topics)
        for name in topics:
            if now.get(name) != self._targets.get(name):
                raise IllegalState(
                    f"job {self.job!r}: topic {name!r} of the cluster was deleted and re-created "
                    "during the export, and lacks the earlier records; delete it, then run the "
                    "export again"
                )

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
    """Return the timestamp for librdkafka; 0 requests the time of sending.

    A record without a timestamp gets 0.

    Raises:
        ConfigError: if the record's timestamp is 0 itself.
    """
    if record.timestamp == 0:
        raise ConfigError(
            f"{record.topic}-{record.partition} offset {record.offset}: librdkafka cannot send "
            "the timestamp 0, it would send the time of the export"
        )
    return 0 if record.timestamp == NO_TIMESTAMP else int(record.timestamp)


def _key(tp: TopicPartition) -> tuple[str, int]:
    return tp.topic, tp.partition
