"""Batches that came encoded, in the shape of one that the accumulator seals."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from eoslog import _core
from eoslog.client.delivery import Delivery
from eoslog.errors import CorruptRecord

__all__ = ["EncodedBatches", "chunks"]

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


def chunks(
    topic: str, partition: int, runs: Iterable[Any], size: int
) -> Iterator[list[EncodedBatches]]:
    """What goes to one partition in lists of about `size` bytes, looked at as it is taken.

    Raises:
        CorruptRecord: one of `runs` does not hold whole batches of data, and nothing else.
    """
    chunk: list[EncodedBatches] = []
    held = 0
    for run in runs:
        for part in _parts(topic, partition, memoryview(run), size):
            chunk.append(part)
            held += len(part)
            if held >= size:
                yield chunk
                chunk, held = [], 0
    if chunk:
        yield chunk


def _parts(topic: str, partition: int, run: memoryview, size: int) -> Iterator[EncodedBatches]:
    """A run cut where a batch ends, each part of at most `size` bytes or a single batch."""
    found = _core.iter_batches(run)
    whole = sum(batch.size for batch in found)
    if not found or whole != len(run) or any(batch.control for batch in found):
        raise CorruptRecord(
            f"{topic}-{partition}: {whole} of {len(run)} bytes are whole batches of data"
        )
    part: list[_core.Batch] = []
    begin = end = 0
    for batch in found:
        if part and (end + batch.size - begin > size or len(part) == _MOST_BATCHES):
            yield EncodedBatches(topic, partition, run[begin:end], part)
            part, begin = [], end
        part.append(batch)
        end += batch.size
    yield EncodedBatches(topic, partition, run[begin:end], part)
