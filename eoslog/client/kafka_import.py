"""Topics of a Kafka cluster into a directory, exactly once, from where the last run stopped.

The other way round of `kafka_export`: records are read committed from the cluster, and each
transaction of the directory holds records and, as committed offsets of the group of the job's name,
the positions behind them in the cluster. Nothing is written to the cluster.

Source: KIP-98, KIP-447.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eoslog.client.kafka_cluster import COPIED, KafkaCluster, Moved, Progress, check_empty
from eoslog.errors import GroupNotFound, UnknownTopicOrPartition, error_for
from eoslog.model import TopicPartition
from eoslog.storage.files import failpoint

if TYPE_CHECKING:
    from eoslog.log import Log

_WAIT_S = 0.2


def import_kafka(
    log: Log,
    bootstrap: str,
    topics: Sequence[str] | None = None,
    *,
    job: str | None = None,
    records: int = 10_000,
    follow: bool = False,
    config: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Moved:
    """Take committed records out of a Kafka cluster; `Log.import_kafka` describes the arguments."""
    cluster = KafkaCluster(bootstrap, config)
    there = cluster.topics()
    names = sorted(there) if topics is None else list(topics)
    unknown = [name for name in names if name not in there]
    if unknown:
        raise UnknownTopicOrPartition(f"the cluster has no topic {unknown[0]!r}")
    run = _Import(log, cluster, {name: there[name] for name in names}, job or "eoslog-import")
    return run.run(records, follow, progress)


class _Import:
    """One run: a reader of the cluster, a producer of the directory."""

    def __init__(
        self, log: Log, cluster: KafkaCluster, counts: Mapping[str, int], job: str
    ) -> None:
        self._log, self._cluster, self._counts, self.job = log, cluster, counts, job
        self._partitions = [
            TopicPartition(name, number)
            for name, count in counts.items()
            for number in range(count)
        ]

    def run(self, records: int, follow: bool, progress: Progress | None) -> Moved:
        self._make_topics()
        reader = self._cluster.consumer(self.job)
        sent = 0
        try:
            with self._log.producer(transactional_id=self.job) as producer:
                producer.init_transactions()
                positions = self._positions(producer)
                ends = self._cluster.ends(self._partitions)
                kafka = self._cluster.kafka
                reader.assign(
                    [
                        kafka.TopicPartition(tp.topic, tp.partition, at)
                        for tp, at in positions.items()
                    ]
                )
                while follow or any(positions[tp] < ends[tp] for tp in ends):
                    batch, moved = self._read(reader, records)
                    if not moved:
                        continue
                    with producer.transaction() as transaction:
                        for message in batch:
                            _produce(transaction, message)
                        failpoint("import.produced")
                        producer.send_offsets_to_transaction(moved, self.job)
                    failpoint("import.committed")
                    sent += len(batch)
                    positions.update(moved)
                    if progress is not None:
                        progress(Moved(self.job, sent, dict(positions)))
        finally:
            reader.close()
        return Moved(self.job, sent, positions)

    def _make_topics(self) -> None:
        configs = self._cluster.configs(self._counts)
        mine = set(self._log.topics())
        for name, count in self._counts.items():
            if name not in mine:
                config = {k: v for k, v in configs[name].items() if k in COPIED}
                self._log.create_topic(name, count, config)
            elif len(self._log.describe_topic(name).partitions) < count:
                self._log.create_partitions(name, count)

    def _positions(self, producer: Any) -> dict[TopicPartition, int]:
        """Where to go on; partitions new to the job get a position before their first record."""
        try:
            committed = self._log.describe_group(self.job).offsets
        except GroupNotFound:
            committed = {}
        found = {tp: committed[tp].offset for tp in self._partitions if tp in committed}
        missing = [tp for tp in self._partitions if tp not in found]
        if missing:
            ends = {tp: self._log.offsets(tp.topic, tp.partition).log_end for tp in missing}
            check_empty(self.job, missing, ends)
            starts = self._cluster.ends(missing, beginning=True)
            with producer.transaction():
                producer.send_offsets_to_transaction(starts, self.job)
            found.update(starts)
        return found

    def _read(self, reader: Any, records: int) -> tuple[list[Any], dict[TopicPartition, int]]:
        """Records, and the positions behind them; an end of a partition moves one too."""
        batch: list[Any] = []
        moved: dict[TopicPartition, int] = {}
        at_end = self._cluster.kafka.KafkaError._PARTITION_EOF
        for message in reader.consume(records, _WAIT_S):
            tp = TopicPartition(message.topic(), message.partition())
            error = message.error()
            if error is None:
                batch.append(message)
                moved[tp] = message.offset() + 1
            elif error.code() == at_end:
                moved[tp] = max(message.offset(), moved.get(tp, 0))
            else:
                raise error_for(max(error.code(), -1), f"reading {tp}: {error.str()}")
        return batch, moved


def _produce(transaction: Any, message: Any) -> None:
    _, timestamp = message.timestamp()
    transaction.produce(
        message.topic(),
        message.value(),
        message.key(),
        partition=message.partition(),
        timestamp=timestamp,
        headers=message.headers() or (),
    )
    failpoint("import.record")
