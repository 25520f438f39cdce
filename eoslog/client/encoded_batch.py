"""Batches that came encoded, in the shape of one that the accumulator seals."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from eoslog import _core
from eoslog.client.delivery import Delivery
from eoslog.errors import CorruptRecord, ErrorCode, InvalidRecord, UnsupportedFormat, error_for
from eoslog.storage import codecs as _codecs  # noqa: F401  binds the codecs of batches
from eoslog.storage import segment_files

__all__ = ["EncodedBatches", "HalfBatch", "can_split", "chunks", "split"]

_MOST_BATCHES = 64  # a run that is sent again is judged batch by batch, each inside the one before


class EncodedBatches:
    """A run of batches of one partition that somebody else encoded: sent as one, whole or not.

    Args:
        topic, partition: where it goes.
        data: v2 batches, one behind the other; stamped in place where it is writable, else a copy.
        found: what `data` holds.
    """

    __slots__ = (
        "attempts", "base_sequence", "batches", "callbacks", "count", "created_ns", "data",
        "delivery", "doubtful", "partition", "producer_epoch", "producer_id", "retry_at_ns",
        "topic",
    )  # fmt: skip

    def __init__(
        self, topic: str, partition: int, data: memoryview, found: list[_core.Batch]
    ) -> None:
        """Count."""
        self.topic = topic
        self.partition = partition
        self.batches = len(found)
        self.count = sum(batch.count for batch in found)
        self.data: memoryview | bytearray = data
        self.delivery = Delivery()  # of its first record
        self.callbacks = [(0, found[0].max_timestamp, self.delivery)]
        self.created_ns = time.monotonic_ns()
        self.attempts = self.retry_at_ns = 0
        self.doubtful = False
        self.producer_id = self.producer_epoch = self.base_sequence = -1

    def __len__(self) -> int:
        return len(self.data)

    @property
    def origin(self) -> Any:
        """The batch whose memory is given back with this one; None: the caller keeps it."""
        return None

    def stamp(self, producer_id: int, epoch: int, sequence: int, transactional: bool) -> None:
        """As `SealedBatch.stamp`.

        Raises:
            CorruptRecord: a CRC is wrong.
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
    """One half of the records of a batch that was too large; no longer what anybody encoded."""

    __slots__ = ("_origin",)

    def __init__(self, whole: Any, records: list[Any], begin: int, compression: str) -> None:
        """Encode the records, of which the first was at `begin` in the whole."""
        data = memoryview(bytearray(_core.build_batch(records, compression=compression)))
        super().__init__(whole.topic, whole.partition, data, _core.iter_batches(data))
        self.callbacks = [
            (delta - begin, timestamp, target)
            for delta, timestamp, target in whole.callbacks or ()
            if begin <= delta < begin + len(records)
        ]
        self.created_ns = whole.created_ns
        self._origin: Any = None

    @property
    def origin(self) -> Any:
        """The accumulator's batch, in the half that ends it."""
        return self._origin


def can_split(batch: Any) -> bool:
    """Whether its records may go in smaller batches: those that the caller encoded stay whole, and
    of a doubtful one the log may hold the records.
    """
    return batch.count > 1 and not batch.doubtful and type(batch) is not EncodedBatches


def split(batch: Any) -> list[EncodedBatches]:
    """A batch as two, in order; each with the callbacks of its records.

    Source: Kafka Sender.splitAndReenqueue.
    """
    (found,) = _core.iter_batches(batch.data)
    records = [record[1:] for record in found.records()]
    middle = len(records) // 2
    first = HalfBatch(batch, records[:middle], 0, found.compression)
    last = HalfBatch(batch, records[middle:], middle, found.compression)
    last._origin = batch.origin if isinstance(batch, HalfBatch) else batch
    return [first, last]


def chunks(
    topic: str, partition: int, runs: Iterable[Any], size: int, *, trusted: bool = False
) -> Iterator[list[EncodedBatches]]:
    """What goes to one partition in lists of about `size` bytes, looked at as it is taken.

    Args:
        topic: where it goes,
        partition: and into which partition.
        runs: whole batches, one or several a run.
        size: bytes.
        trusted: the records in them are not looked at.

    Raises:
        CorruptRecord: one of `runs` does not hold whole batches of data, and nothing else.
        InvalidRecord, UnsupportedFormat, KafkaError: as `_check_records`.
    """
    chunk: list[EncodedBatches] = []
    held = 0
    for run in runs:
        for part in _parts(topic, partition, memoryview(run), size, trusted):
            chunk.append(part)
            held += len(part)
            if held >= size:
                yield chunk
                chunk, held = [], 0
    if chunk:
        yield chunk


def _parts(
    topic: str, partition: int, run: memoryview, size: int, trusted: bool
) -> Iterator[EncodedBatches]:
    """A run cut where a batch ends, each part of at most `size` bytes or a single batch."""
    found = _core.iter_batches(run)
    whole = sum(batch.size for batch in found)
    if not found or whole != len(run) or any(batch.control for batch in found):
        raise CorruptRecord(
            f"{topic}-{partition}: {whole} of {len(run)} bytes are whole batches of data"
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
    """Walk the records as readers will: they stop for ever at a batch that they can't read.

    Raises:
        InvalidRecord: its records are not as many, or not as its header says.
        UnsupportedFormat: a codec that is not known. ConfigError: its library is missing.
        CorruptRecord: its CRC is wrong.
        KafkaError: INVALID_TIMESTAMP, 64 bits don't hold the time of a record.
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
        text = f"{where}: the time of record {index} is more than 64 bits hold"
        raise error_for(ErrorCode.INVALID_TIMESTAMP, text)
