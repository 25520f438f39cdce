"""Producer ids for this process, from blocks allocated in the metadata log.

A block is durable in the metadata log before an id of it is used, so no crash can issue an id
twice. The rest of a process's block is lost when it exits, which is acceptable because there are
2^63 ids. The next block is allocated in the background when nine tenths of a block are used, so
that no caller waits for its flush.

Source: KIP-730; Kafka RPCProducerIdManager.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from eoslog.errors import CoordinatorLoadInProgress, KafkaError

_PREFETCH_LEFT = 0.1


class ProducerIds:
    """Allocates producer ids, each once.

    Thread-safe. Other processes have other blocks.

    Args:
        allocate: allocates the next block, durable on return (`MetadataLog.allocate_producer_ids`).
        aside: runs a function in another thread, or drops it; the default drops it.
    """

    def __init__(
        self,
        allocate: Callable[[], range],
        aside: Callable[[Callable[[], None]], None] = lambda _: None,
    ) -> None:
        """Start without a block, because most processes never need one."""
        self._allocate = allocate
        self._aside = aside
        self._lock = threading.Lock()
        self._block = range(0)
        self._size = 0
        self._next = range(0)

    def next_producer_id(self) -> int:
        """Return the next id.

        Raises:
            CoordinatorLoadInProgress: if no block could be allocated now; retriable.
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
            raise CoordinatorLoadInProgress(
                f"producer ids: no block could be allocated ({error}); retry"
            ) from error

    def _fetch(self) -> None:
        if self._next:
            return
        block = self._allocate()
        with self._lock:
            self._next = block
