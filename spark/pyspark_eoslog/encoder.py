"""Rows of a DataFrame into record batches, each row routed as a producer would route it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Any

from eoslog import _core
from eoslog.errors import ConfigError, RecordTooLarge, UnknownTopicOrPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from eoslog.client.staging import AttemptWriter

# Larger batches make publishing and scanning cheaper; a batch must stay below a topic's
# max.message.bytes.
BATCH_BYTES = 512 << 10
# Rows without a key change their partition after so many bytes, as a sticky producer does with
# every batch.
STICKY_BYTES = 16 << 10
# Upper bound of what a record costs beside key, value and headers: varints of lengths, deltas and
# counts.
RECORD_OVERHEAD = 40
HEADER_OVERHEAD = 10
BATCH_OVERHEAD = 61

Headers = tuple[tuple[str, bytes | None], ...]
Row = tuple[int, bytes | None, bytes | None, Headers]


class TopicTarget:
    """What a task must know of a topic to write to it; plain values, planned on the driver."""

    def __init__(self, partitions: int, max_message_bytes: int) -> None:
        self.partitions = partitions
        self.max_message_bytes = max_message_bytes


class _Bucket:
    """Rows of one partition that are not a batch yet."""

    __slots__ = ("rows", "size")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.size = 0


class RowEncoder:
    """Turns Arrow batches into record batches in an `AttemptWriter`; one per task attempt.

    A row goes to its `partition` column, else to the murmur2 partition of its key (the same as
    every Kafka client's), else to one partition after the other in turns of about 16 KiB.
    """

    def __init__(
        self,
        out: AttemptWriter,
        targets: Mapping[str, TopicTarget],
        topic: str | None,
        compression: str,
        seed: int,
    ) -> None:
        """Starts with no rows.

        Args:
            out: Takes the encoded batches.
            targets: Every topic that may be written to.
            topic: Where all rows go; None to follow the `topic` column.
            compression: Codec of the batches.
            seed: Where the turns of rows without a key begin; differs between tasks.
        """
        self._out = out
        self._targets = targets
        self._topic = topic
        self._compression = compression
        self._seed = seed
        self._buckets: dict[tuple[str, int], _Bucket] = {}
        self._sticky: dict[str, tuple[int, int]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes the rows of a batch.

        Raises:
            ConfigError: A null topic, or a partition the topic doesn't have.
            RecordTooLarge: A row that doesn't fit the topic's max.message.bytes.
            UnknownTopicOrPartition: A topic that doesn't exist.
        """
        columns = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
        values = _bytes(columns["value"])
        keys = _bytes(columns["key"]) if "key" in columns else repeat(None)
        topics: Iterable[str | None] = repeat(self._topic)
        if self._topic is None:
            topics = columns["topic"].to_pylist()
        partitions: Iterable[int | None] = repeat(None)
        if "partition" in columns:
            partitions = columns["partition"].to_pylist()
        times = _milliseconds(columns["timestamp"]) if "timestamp" in columns else repeat(None)
        headers = columns["headers"].to_pylist() if "headers" in columns else repeat(None)
        now = int(time.time() * 1000)
        buckets = self._buckets
        for value, key, topic, partition, stamp, pairs in zip(
            values, keys, topics, partitions, times, headers, strict=False
        ):
            size = RECORD_OVERHEAD + (len(value) if value else 0) + (len(key) if key else 0)
            header: Headers = ()
            if pairs:
                header = _headers(pairs)
                size += sum(
                    len(name) * 3 + len(data or b"") + HEADER_OVERHEAD for name, data in header
                )
            target = self._targets.get(topic) if topic is not None else None
            if target is None:
                raise _no_topic(topic)
            if size + BATCH_OVERHEAD > target.max_message_bytes:
                raise RecordTooLarge(
                    f"a row of about {size} bytes for topic '{topic}' exceeds its "
                    f"max.message.bytes of {target.max_message_bytes}"
                )
            if partition is None:
                if key is None:
                    partition = self._turn(topic, target.partitions, size)
                else:
                    partition = _core.partition_for_key(key, target.partitions)
            elif not 0 <= partition < target.partitions:
                raise ConfigError(
                    f"column 'partition' is {partition}, "
                    f"topic '{topic}' has partitions 0 to {target.partitions - 1}"
                )
            bucket = buckets.get((topic, partition))
            if bucket is None:
                bucket = buckets[topic, partition] = _Bucket()
            elif bucket.size + size > min(BATCH_BYTES, target.max_message_bytes - BATCH_OVERHEAD):
                self._emit(topic, partition, bucket)
            bucket.rows.append((now if stamp is None else stamp, key, value, header))
            bucket.size += size

    def flush(self) -> None:
        """Emits what is left."""
        for (topic, partition), bucket in sorted(self._buckets.items()):
            if bucket.rows:
                self._emit(topic, partition, bucket)

    def _emit(self, topic: str, partition: int, bucket: _Bucket) -> None:
        self._out.add(
            topic,
            partition,
            _core.build_batch(bucket.rows, compression=self._compression),
            len(bucket.rows),
        )
        bucket.rows = []
        bucket.size = 0

    def _turn(self, topic: str, partitions: int, size: int) -> int:
        chosen, used = self._sticky.get(topic, (self._seed % partitions, 0))
        if used and used + size > STICKY_BYTES:
            chosen, used = (chosen + 1) % partitions, 0
        self._sticky[topic] = (chosen, used + size)
        return chosen


def _no_topic(topic: Any) -> Exception:
    if topic is None:
        return ConfigError("column 'topic' is null in a row, and the option 'topic' is not given")
    return UnknownTopicOrPartition(
        f"topic '{topic}' does not exist; create it first, nothing is created by writing"
    )


def _bytes(column: pa.Array) -> list[bytes | None]:
    """Key or value as bytes; a string is its UTF-8."""
    import pyarrow as pa

    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.binary() if pa.types.is_string(column.type) else pa.large_binary())
    return column.to_pylist()


def _milliseconds(column: pa.Array) -> list[int | None]:
    """Microseconds since 1970 to milliseconds, rounded down."""
    import pyarrow as pa
    from pyarrow import compute

    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return (
        compute.floor(compute.divide(micros.cast(pa.float64()), 1000.0))
        .cast(pa.int64())
        .to_pylist()
    )


def _headers(pairs: Iterable[Mapping[str, Any] | None]) -> Headers:
    result = []
    for pair in pairs:
        if pair is None or pair["key"] is None:
            raise ConfigError("column 'headers' holds a null header or a header without a key")
        result.append((pair["key"], pair["value"]))
    return tuple(result)
