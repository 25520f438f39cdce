"""Encoding of a DataFrame's rows into record batches, with a producer's routing.

Arrow columns go into the core's accumulator unchanged, without a Python object per row. Full
batches are staged instead of sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from eoslog.connector import RecordAccumulator, nulls, numbers, primitive, produce_stream
from eoslog.errors import ConfigError, InvalidTopic, RecordTooLarge, UnknownTopicOrPartition
from eoslog.model import INTERNAL_TOPICS

if TYPE_CHECKING:
    import pyarrow as pa

    from eoslog.connector import AttemptWriter

# Rows without a key change their partition after this many bytes, as a sticky producer does with
# every batch.
STICKY_BYTES = 16 << 10
# Approximate bytes of a record in addition to key and value: lengths and deltas.
RECORD_OVERHEAD = 12
# Full batches are staged when this many bytes are held.
HELD_BYTES = 128 << 20
NEVER_MS = 1e9
NO_LIMIT = (1 << 31) - 1


class TopicTarget:
    """The limits of a topic that a task needs, in plain values from the driver."""

    def __init__(
        self, partitions: int, max_message_bytes: int, topic_id: bytes | None = None
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions
        self.max_message_bytes = max_message_bytes


class RowEncoder(RecordAccumulator):
    """An encoder of Arrow batches into an `AttemptWriter`, one per task attempt.

    The column `partition` decides the partition of a row. If it is null, the murmur2 hash of the
    key decides, as in every Kafka client. Rows without a key go to one partition after the other,
    about 16 KiB at a time.
    """

    def __init__(
        self,
        out: AttemptWriter,
        targets: Mapping[str, TopicTarget],
        topic: str | None,
        compression: str,
        seed: int,
    ) -> None:
        """Create an encoder without rows.

        Args:
            out: Writer of the encoded batches.
            targets: Every writable topic.
            topic: Topic of all rows; None to use the column `topic`.
            compression: Codec of the batches.
            seed: First partition of rows without a key; differs between tasks.
        """
        super().__init__(
            linger_ms=NEVER_MS,
            buffer_memory=HELD_BYTES,
            max_request_size=NO_LIMIT,
            compression=compression,
        )
        self._out = out
        self._targets = targets
        self._topic = topic
        self._seed = seed
        self._turned: dict[str, int] = {}
        self.written: dict[str, bytes | None] = {}  # the ids of the topics that have rows

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch.

        Raises:
            ConfigError: if a topic is null, a header has no key, or the topic does not have the
                partition.
            RecordTooLarge: if a row exceeds the topic's max.message.bytes.
            UnknownTopicOrPartition: if a topic does not exist.
            InvalidTopic: if a topic is internal.
        """
        for topic, rows in self._by_topic(batch):
            target = self._targets.get(topic)
            if target is None:
                if topic in INTERNAL_TOPICS:
                    raise InvalidTopic(f"column 'topic' is '{topic}', an internal topic")
                raise UnknownTopicOrPartition(
                    f"column 'topic' is '{topic}', which does not exist; create the topic first "
                    "(writing does not create topics)"
                )
            self.written[topic] = target.topic_id
            produce_stream(self, topic, self._columns(topic, target, rows), more=True)
            self._stage(force=False)

    def flush(self) -> None:
        """Stage the remaining rows."""
        self._stage(force=True)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        from pyarrow import compute

        if self._topic is not None:
            yield self._topic, batch
            return
        topics = batch.column(batch.schema.names.index("topic"))
        if topics.null_count:
            raise ConfigError(
                "column 'topic' is null in a row, and the option 'topic' is not given"
            )
        for name in compute.unique(topics).to_pylist():
            yield name, batch.filter(compute.equal(topics, name))

    def _columns(self, topic: str, target: TopicTarget, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        names = batch.schema.names
        columns: dict[str, Any] = {
            name: batch.column(names.index(name))
            for name in ("value", "key", "headers")
            if name in names
        }
        if "timestamp" in names:
            columns["timestamp"] = _milliseconds(batch.column(names.index("timestamp")))
        if "headers" in columns:
            _check_headers(columns["headers"])
        places = batch.column(names.index("partition")) if "partition" in names else None
        columns["partition"] = self._places(topic, target, columns, places)
        if columns["partition"] is None:
            del columns["partition"]
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _places(
        self, topic: str, target: TopicTarget, columns: dict[str, Any], given: pa.Array | None
    ) -> pa.Array | None:
        """Return the partition of each row, null if the key decides."""
        import pyarrow as pa
        from pyarrow import compute

        if given is not None and given.null_count < len(given):
            bounds = compute.min_max(given).as_py()
            wrong = bounds["min"] if bounds["min"] < 0 else bounds["max"]
            if not 0 <= wrong < target.partitions:
                raise ConfigError(
                    f"column 'partition' is {wrong}, "
                    f"topic '{topic}' has partitions 0 to {target.partitions - 1}"
                )
        value, key = columns["value"], columns.get("key")
        loose = np.ones(len(value), bool) if key is None else nulls(key)
        by_column = np.zeros(len(value), bool) if given is None else ~nulls(given)
        loose &= ~by_column
        if not loose.any():
            return given
        lengths = numbers(compute.binary_length(value), np.int32).astype(np.int64)
        sizes = np.where(loose, lengths + RECORD_OVERHEAD, 0)
        before = self._turned.get(topic, 0)
        written = before + np.cumsum(sizes)
        self._turned[topic] = int(written[-1])
        turns = (self._seed + (written - sizes) // STICKY_BYTES) % target.partitions
        chosen = np.zeros(len(turns), np.int32) if given is None else numbers(given, np.int32)
        chosen = np.where(loose, turns, chosen).astype(np.int32)
        return primitive(pa.int32(), chosen, ~(loose | by_column))

    def _stage(self, *, force: bool) -> None:
        for batch in self._drain(0, force):
            batch.stamp(-1, -1, -1, False)
            limit = self._targets[batch.topic].max_message_bytes
            if len(batch) > limit:
                raise RecordTooLarge(
                    f"a batch of {batch.count} records is {len(batch)} bytes compressed, topic "
                    f"'{batch.topic}' has max.message.bytes = {limit}"
                )
            self._out.add(batch.topic, batch.partition, batch, batch.count)
            self._release(batch)

    # Callbacks of the accumulator.

    def _describe_topic(self, topic: str) -> tuple[int, int]:
        target = self._targets[topic]
        return target.partitions, target.max_message_bytes

    def _wait_for_space(self, size: int) -> None:
        before = self._used
        self._stage(force=False)
        if self._used == before:
            self._stage(force=True)


def _milliseconds(column: pa.Array) -> pa.Array:
    """Convert to milliseconds since 1970, rounded down; null stays null."""
    import pyarrow as pa

    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return primitive(pa.int64(), np.floor_divide(numbers(micros, np.int64), 1000), nulls(micros))


def _check_headers(column: pa.Array) -> None:
    """Check that every header has a key.

    Raises:
        ConfigError: if a header is null or has no key.
    """
    items = column.flatten()
    if items.null_count or items.field("key").null_count:
        raise ConfigError("column 'headers' holds a null header or a header without a key")
