"""Producer ids for this process, from blocks that the metadata log hands out.

A block is durable in the metadata log before an id of it is used, so that no crash hands an id
out twice; what a process leaves of its block is lost, ids are plenty.

Source: KIP-730; kafka.md 5.10.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from eoslog.errors import CoordinatorLoadInProgress, KafkaError


class ProducerIds:
    """Hands out producer ids, each once.

    Args:
        allocate: takes the next block, durable on return (`MetadataLog.allocate_producer_ids`).

    Thread-safe; other processes take other blocks.
    """

    def __init__(self, allocate: Callable[[], range]) -> None:
        """Start without a block: most processes never need one."""
        self._allocate = allocate
        self._lock = threading.Lock()
        self._block = range(0)

    def next_producer_id(self) -> int:
        """The next id.

        Raises:
            CoordinatorLoadInProgress: no block could be taken now; retriable.
        """
        with self._lock:
            if not self._block:
                try:
                    self._block = self._allocate()
                except KafkaError as error:
                    if not error.retriable:
                        raise
                    raise CoordinatorLoadInProgress(f"no block of producer ids: {error}") from error
            taken, self._block = self._block[0], self._block[1:]
            return taken
