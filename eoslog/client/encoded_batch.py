"""A batch that came encoded, in the shape of those that the accumulator seals."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from eoslog import _core
from eoslog.client.delivery import Delivery
from eoslog.errors import CorruptRecord

__all__ = ["EncodedBatch", "chunks"]


class EncodedBatch:
    """A batch that somebody else encoded; the sender stamps a copy of it.

    Args:
        topic, partition: where it goes.
        data: exactly one v2 batch.

    Raises:
        CorruptRecord: `data` is not one whole, valid batch of data.
    """

    __slots__ = (
        "attempts", "base_sequence", "callbacks", "count", "created_ns", "data", "delivery",
        "doubtful", "partition", "producer_epoch", "producer_id", "retry_at_ns", "topic",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, data: Any) -> None:
        """Look at the header."""
        found = _core.iter_batches(data)
        if len(found) != 1 or found[0].size != len(data) or found[0].control:
            raise CorruptRecord(
                f"{topic}-{partition}: {len(data)} bytes hold {len(found)} whole batches"
            )
        self.topic = topic
        self.partition = partition
        self.count = found[0].count
        self.data = data
        self.delivery = Delivery()  # of its first record
        self.callbacks = [(0, found[0].max_timestamp, self.delivery)]
        self.created_ns = time.monotonic_ns()
        self.attempts = self.retry_at_ns = 0
        self.doubtful = False
        self.producer_id = self.producer_epoch = self.base_sequence = -1

    def __len__(self) -> int:
        return len(self.data)

    def stamp(self, producer_id: int, epoch: int, sequence: int, transactional: bool) -> None:
        """As `SealedBatch.stamp`."""
        self.data = _core.stamp_batch(
            self.data,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        self.producer_id, self.producer_epoch, self.base_sequence = producer_id, epoch, sequence


def chunks(
    topic: str, partition: int, batches: Iterable[Any], size: int
) -> Iterator[list[EncodedBatch]]:
    """Batches of one partition in lists of about `size` bytes, looked at as they are taken."""
    chunk: list[EncodedBatch] = []
    held = 0
    for data in batches:
        chunk.append(EncodedBatch(topic, partition, data))
        held += len(data)
        if held >= size:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk
