"""A producer's identity: producer id, epoch, and sequences by partition."""

from __future__ import annotations

from collections.abc import Callable

from eoslog.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

__all__ = ["Identity", "next_sequence"]

MAX_SEQUENCE = 2**31 - 1
MAX_EPOCH = 32_766  # 32767 is reserved for a coordinator that fences

Place = tuple[str, int]


def next_sequence(sequence: int, count: int) -> int:
    """The sequence `count` records after another; 0 follows 2^31-1."""
    return (sequence + count) & MAX_SEQUENCE


class Identity:
    """Producer id, epoch and sequences.

    A sequence advances when an append has succeeded, not when it is attempted. So a rejected batch
    leaves no gap. Not thread-safe: the sender's lock guards it.

    Source: KIP-98; KIP-360 for the bump.
    """

    def __init__(self, allocate: Callable[[], int] | None) -> None:
        """Start without an id.

        Args:
            allocate: allocates a new durable producer id; None if a coordinator assigns it.
        """
        self._allocate = allocate
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self._sequences: dict[Place, int] = {}

    def ensure(self) -> None:
        """Allocate an id at the first use."""
        if self.producer_id < 0 and self._allocate is not None:
            self.take(self._allocate(), 0)

    def take(self, producer_id: int, producer_epoch: int) -> None:
        """Use this id and epoch from now on; all sequences start at 0."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self._sequences.clear()

    def bump(self) -> None:
        """Abandon unresolved sequences: use the next epoch or, after the last, a new id.

        Only for idempotent producers. No other producer has their id, so their epochs need not be
        recorded in a log.
        """
        if self.producer_epoch >= MAX_EPOCH:
            self.renew()
        else:
            self.take(self.producer_id, self.producer_epoch + 1)

    def renew(self) -> None:
        """Allocate a new id."""
        self.producer_id = NO_PRODUCER_ID
        self.ensure()

    def sequence(self, place: Place) -> int:
        """The sequence of the partition's next batch; -1 without an id."""
        return NO_SEQUENCE if self.producer_id < 0 else self._sequences.get(place, 0)

    def advance(self, place: Place, sequence: int, count: int) -> None:
        """Move past the batch that began at `sequence` and is now in the log."""
        self._sequences[place] = next_sequence(sequence, count)
