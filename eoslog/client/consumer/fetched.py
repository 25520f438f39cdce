"""What a fetch has read, as far as it is not decoded.

Records are decoded when they are needed, because a fetch has more of them than fit into the
processor's cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eoslog import _core

if TYPE_CHECKING:
    from eoslog.storage.log.reader import Slice

__all__ = ["Fetched"]


@dataclass(slots=True)
class Fetched:
    """Batches that a consumer has read and not decoded yet.

    Attributes:
        slices: the batches, in order.
        aborted: transactions to leave out; None: none (read_uncommitted).
        bound: the readable end when they were read.
        decoder: decodes the first slice; None before it began.
    """

    slices: list[Slice]
    aborted: _core.AbortedTransactions | None
    bound: int
    decoder: _core.RecordDecoder | None = None

    def drop_slice(self) -> None:
        """Continue with the next slice."""
        del self.slices[0]
        self.decoder = None
