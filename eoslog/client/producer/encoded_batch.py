"""Batches that the caller encoded, with the accumulator's interface."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from eoslog import _core
from eoslog._util.arguments import shown
from eoslog.client.producer.batch import ProducerBatch
from eoslog.client.producer.delivery import Delivery, OnDelivery
from eoslog.errors import (
    ConfigError,
    CorruptRecord,
    ErrorCode,
    InvalidRecord,
    UnsupportedFormat,
    error_for,
)
from eoslog.storage.format import codecs as _codecs  # noqa: F401  binds the codecs of batches
from eoslog.storage.segment import segment_files

__all__ = ["EncodedBatches", "HalfBatch", "can_split", "chunks", "split"]

_MOST_BATCHES = 64  # a retry of a run checks each batch for duplicates, in nested calls


class EncodedBatches:
    """A run of batches that the caller encoded for one partition, appended together.

    Args:
        topic, partition: the target partition.
        data: consecutive v2 batches; a writable buffer is stamped in place, others are copied.
        found: the batches in `data`.
    """

    __slots__ = (
        "attempts", "base_sequence", "batches", "callbacks", "count", "created_ns", "data",
        "delivery", "doubtful", "partition", "producer_epoch", "producer_id", "retry_at_ns",
        "settled", "topic",
    )  # fmt: skip

    def __init__(
        self, topic: str, partition: int, data: memoryview, found: list[_core.Batch]
    ) -> None:
        """Count the batches and records."""
        self.topic = topic
        self.partition = partition
        self.batches = len(found)
        self.count = sum(batch.count for batch in found)
        self.data: memoryview | bytearray = data
        self.delivery = Delivery()  # for its first record
        self.callbacks: list[tuple[int, int, OnDelivery]] = [
            (0, found[0].max_timestamp, self.delivery)
        ]
        self.created_ns = time.monotonic_ns()
        self.attempts = self.retry_at_ns = 0
        self.doubtful = self.settled = False
        self.producer_id = self.producer_epoch = self.base_sequence = -1

    def __len__(self) -> int:
        return len(self.data)

    @property
    def origin(self) -> _core.SealedBatch | None:
        """None: the caller owns the memory of this batch."""
        return None

    def stamp(self, producer_id: int, epoch: int, sequence: int, transactional: bool) -> None:
        """Write the producer's fields, as `SealedBatch.stamp` does.

        Raises:
            CorruptRecord: if a CRC is wrong.
        """
        if isinstance(self.data, memoryview) and self.data.readonly:
            self.data = bytearray(self.data)
        _core.stamp_batches(
            self.data,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        self.producer_id, self.producer_epoch, self.base_sequence = producer_id, epoch, sequence


class HalfBatch(EncodedBatches):
    """One half of the records of a batch that was too large, encoded again."""

    __slots__ = ("_origin",)

    def __init__(
        self, whole: ProducerBatch, records: list[Any], begin: int, compression: str
    ) -> None:
        """Encode the records; the first had index `begin` in the original batch."""
        data = memoryview(bytearray(_core.build_batch(records, compression=compression)))
        super().__init__(whole.topic, whole.partition, data, _core.iter_batches(data))
        self.callbacks = [
            (delta - begin, timestamp, target)
            for delta, timestamp, target in whole.callbacks or ()
            if begin <= delta < begin + len(records)
        ]
        self.created_ns = whole.created_ns
        self._origin: _core.SealedBatch | None = None

    @property
    def origin(self) -> _core.SealedBatch | None:
        """The accumulator's batch, in the second half; None in the first."""
        return self._origin


def can_split(batch: ProducerBatch) -> bool:
    """Whether the records may be encoded into smaller batches.

    Batches that the caller encoded stay as they are. The log may already have a doubtful batch.
    """
    return batch.count > 1 and not batch.doubtful and type(batch) is not EncodedBatches


def split(batch: ProducerBatch) -> list[EncodedBatches]:
    """Split a batch into two, in order, each with the callbacks of its records.

    Source: Kafka Sender.splitAndReenqueue.
    """
    (found,) = _core.iter_batches(batch.data)
    records = [record[1:] for record in found.records()]
    middle = len(records) // 2
    first = HalfBatch(batch, records[:middle], 0, found.compression)
    last = HalfBatch(batch, records[middle:], middle, found.compression)
    last._origin = batch.origin
    return [first, last]


def chunks(
    topic: str, partition: int, runs: Iterable[Any], size: int, *, trusted: bool = False
) -> Iterator[list[EncodedBatches]]:
    """Group encoded batches for one partition into lists of about `size` bytes.

    Each run is checked when the iteration reaches it.

    Args:
        topic: the target topic.
        partition: the target partition.
        runs: buffers with one or more complete batches each.
        size: the size of a list in bytes.
        trusted: do not check the records.

    Raises:
        CorruptRecord: if a run has anything but complete batches of data.
        InvalidRecord, UnsupportedFormat, KafkaError: as in `_check_records`.
    """
    chunk: list[EncodedBatches] = []
    held = 0
    for run in runs:
        for part in _parts(topic, partition, _bytes_of(run), size, trusted):
            chunk.append(part)
            held += len(part)
            if held >= size:
                yield chunk
                chunk, held = [], 0
    if chunk:
        yield chunk


def _bytes_of(run: Any) -> memoryview:
    try:
        return memoryview(run).cast("B")
    except (TypeError, ValueError, BufferError):
        raise ConfigError(
            f"produce_batches: batches: expected bytes of complete batches, got {shown(run)}"
        ) from None


def _parts(
    topic: str, partition: int, run: memoryview, size: int, trusted: bool
) -> Iterator[EncodedBatches]:
    """Split a run between batches into parts of `size` bytes or one batch."""
    found = _core.iter_batches(run)
    whole = sum(batch.size for batch in found)
    if not found or whole != len(run) or any(batch.control for batch in found):
        raise CorruptRecord(
            f"{topic}-{partition}: expected complete batches of data, but only {whole} of "
            f"{len(run)} bytes are; pass complete v2 batches without control batches"
        )
    if not trusted:
        for number, batch in enumerate(found):
            _check_records(f"{topic}-{partition}: batch {number} of {len(found)}", batch)
    part: list[_core.Batch] = []
    begin = end = 0
    for batch in found:
        if part and (end + batch.size - begin > size or len(part) == _MOST_BATCHES):
            yield EncodedBatches(topic, partition, run[begin:end], part)
            part, begin = [], end
        part.append(batch)
        end += batch.size
    yield EncodedBatches(topic, partition, run[begin:end], part)


def _check_records(where: str, batch: _core.Batch) -> None:
    """Parse the records as readers do, which cannot pass an unreadable batch.

    Raises:
        InvalidRecord: if the records do not match the batch header.
        UnsupportedFormat: if the codec is unknown. ConfigError: if its library is missing.
        CorruptRecord: if the CRC is wrong.
        KafkaError: INVALID_TIMESTAMP, if a record's timestamp does not fit into 64 bits.
    """
    fault = segment_files.fault_of(batch)
    if fault is not None:
        unknown = batch.compression.startswith("unknown")
        raise (UnsupportedFormat if unknown else CorruptRecord)(f"{where}: {fault}")
    try:
        index = _core.first_beyond_time(batch)
    except CorruptRecord as error:
        raise InvalidRecord(f"{where}: {error}") from error
    if index >= 0:
        text = f"{where}: the timestamp of record {index} does not fit into 64 bits"
        raise error_for(ErrorCode.INVALID_TIMESTAMP, text)
