"""The interface of a batch between a producer's buffer and the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from eoslog._core import SealedBatch

__all__ = ["ProducerBatch"]


class ProducerBatch(Protocol):
    """The common interface of `SealedBatch` and `EncodedBatches`.

    The accumulator creates the former; the latter has the caller's batches.

    A batch is in one queue at a time: drained, pending, or waiting for a flush. `doubtful` and
    `settled` are kept apart from `attempts`, because an interrupt may come between any two steps.
    """

    topic: str
    partition: int
    count: int
    """The number of records."""
    created_ns: int
    """The steady-clock time of its first record; `delivery.timeout.ms` counts from here."""
    producer_id: int
    producer_epoch: int
    base_sequence: int
    attempts: int
    """The number of append attempts."""
    doubtful: bool
    """Whether an attempt may have appended the batch without reporting success."""
    settled: bool
    """Whether its callbacks have the result and its memory is released."""
    retry_at_ns: int
    """The earliest steady-clock time of the next attempt."""

    @property
    def batches(self) -> int:
        """The number of v2 batches in it."""
        ...

    @property
    def callbacks(self) -> Sequence[tuple[int, int, Callable[..., Any]]] | None:
        """(offset delta, timestamp, target) of each record with a callback."""
        ...

    @property
    def origin(self) -> SealedBatch | None:
        """The accumulator's batch whose memory is released with this one."""
        ...

    @property
    def data(self) -> Any:
        """Its bytes, as a buffer."""
        ...

    def stamp(self, producer_id: int, epoch: int, sequence: int, transactional: bool, /) -> None:
        """Write the producer's fields of the header; before the first append only."""
        ...

    def __len__(self) -> int: ...
