"""A batch that came encoded, in the shape of those that the accumulator seals."""

from __future__ import annotations

import time
from typing import Any

from eoslog import _core
from eoslog.errors import CorruptRecord

__all__ = ["EncodedBatch"]


class EncodedBatch:
    """A batch that somebody else encoded; the sender stamps a copy of it.

    Args:
        topic, partition: where it goes.
        data: exactly one v2 batch.
        on_delivery: told once, of the batch's first record.

    Raises:
        CorruptRecord: `data` is not one whole, valid batch of data.
    """

    __slots__ = (
        "attempts", "base_sequence", "callbacks", "count", "created_ns", "data", "doubtful",
        "partition", "producer_epoch", "producer_id", "retry_at_ns", "topic",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, data: Any, on_delivery: Any) -> None:
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
        self.callbacks = [(0, found[0].max_timestamp, on_delivery)]
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
