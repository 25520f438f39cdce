"""Producer ids for this process, from blocks that the metadata log hands out.

A block is durable in the metadata log before an id of it is used, so that no crash hands an id
out twice; what a process leaves of its block is lost, ids are plenty. The next block is fetched
beside the work when nine tenths of one are used, so that nobody waits for its flush.

Source: KIP-730; Kafka RPCProducerIdManager.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from eoslog.errors import CoordinatorLoadInProgress, KafkaError

_PREFETCH_LEFT = 0.1


class ProducerIds:
    """Hands out producer ids, each once.

    Args:
        allocate: takes the next block, durable on return (`MetadataLog.allocate_producer_ids`).
        aside: runs something on another thread, or drops it; by default it is dropped.

    Thread-safe; other processes take other blocks.
    """

    def __init__(
        self,
        allocate: Callable[[], range],
        aside: Callable[[Callable[[], None]], None] = lambda _: None,
    ) -> None:
        """Start without a block: most processes never need one."""
        self._allocate = allocate
        self._aside = aside
        self._lock = threading.Lock()
        self._block = range(0)
        self._size = 0
        self._next = range(0)

    def next_producer_id(self) -> int:
        """The next id.

        Raises:
            CoordinatorLoadInProgress: no block could be taken now; retriable.
        """
        with self._lock:
            if not self._block:
                self._block, self._next = self._next or self._take_block(), range(0)
                self._size = len(self._block)
            taken, self._block = self._block[0], self._block[1:]
            if len(self._block) <= self._size * _PREFETCH_LEFT and not self._next:
                self._aside(self._fetch)
            return taken

    def _take_block(self) -> range:
        try:
            return self._allocate()
        except KafkaError as error:
            if not error.retriable:
                raise
            raise CoordinatorLoadInProgress(f"no block of producer ids: {error}") from error

    def _fetch(self) -> None:
        if self._next:
            return
        block = self._allocate()
        with self._lock:
            self._next = block
