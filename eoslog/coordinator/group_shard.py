"""One partition of `__consumer_offsets` in this process: its fold, and the loop that changes it.

A change is: fold to the published end, decide, append on the condition that the partition still
ends there; if somebody was quicker, fold on and decide again. The mutex guards the fold only and
is never held while appending, so a slow disk or a held lock stops nobody who only reads.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from eoslog._core import build_batch
from eoslog.coordinator.group_rebalance import Change
from eoslog.coordinator.group_state import GroupTable
from eoslog.errors import CorruptRecord
from eoslog.model import AppendOrigin, AppendResult

_CALM_ATTEMPTS = 8
_LONGEST_BACKOFF_S = 0.05

Conditions = Sequence[tuple[Any, int]]


class GroupShard:
    """The fold of one partition, shared by the threads of this process.

    Thread-safety: any thread; the table is only touched inside `folded`.
    """

    def __init__(self, log: Any, clock_ms: Callable[[], int]) -> None:
        """Fold `log` from its start at the first use."""
        self.log = log
        self._clock_ms = clock_ms
        self._mutex = threading.Lock()
        self._table = GroupTable()
        self._cleaned = 0

    @contextmanager
    def folded(self) -> Iterator[tuple[GroupTable, int]]:
        """The table as of the partition's published end, and that end."""
        with self._mutex:
            # The fold may put a new table in place of the old one: it comes first.
            end = self._fold()
            yield self._table, end

    def _fold(self) -> int:
        log, table = self.log, self._table
        cleaned = log.cleaned_to
        behind = table.next_offset < cleaned and self._cleaned < cleaned
        if behind or table.next_offset < log.log_start:
            # What was deleted or cleaned behind the fold may have held tombstones: start over.
            table = self._table = GroupTable()
            table.next_offset = log.log_start
        self._cleaned = cleaned
        start: int = table.next_offset
        end: int = log.log_end
        try:
            if table.next_offset < end:
                for batch in log.batches(table.next_offset, end):
                    try:
                        table.apply(batch)
                    except CorruptRecord as error:
                        where = f"{log.topic}-{log.partition}, offset {batch.base_offset}"
                        raise CorruptRecord(f"{where}: {error}") from error
                table.next_offset = end
                if start < log.cleaned_to != cleaned:
                    self._table = GroupTable()  # cleaned meanwhile: half old, half new
                    return self._fold()
        except BaseException:
            # Half a batch may be in the table; it is rebuilt rather than trusted.
            self._table = GroupTable()
            raise
        return end

    def change(
        self,
        decide: Callable[[GroupTable], Change],
        *,
        conditions: Callable[[], Conditions] | None = None,
        **header: Any,
    ) -> AppendResult | None:
        """Append what `decide` wants of the current table, however often the table changes.

        Args:
            decide: looks at the table and returns records; nothing to append if empty. It may be
                called many times, and what it raises ends the loop.
            conditions: more logs that must not have moved, asked for before each decision.
            header: fields of the batch, as `producer_id` and `transactional`.

        Returns:
            Where the batch is, or None if there was nothing to append.

        Durability: published on return, durable only after `log.flush`.
        """
        attempt = 0
        while True:
            expect = list(conditions()) if conditions is not None else []
            with self.folded() as (table, end):
                change = decide(table)
            if not change:
                return None
            now = self._clock_ms()
            batch = build_batch([(now, key, value, ()) for key, value in change], **header)
            result: AppendResult | None = self.log.append(
                batch, expect=[(self.log, end), *expect], origin=AppendOrigin.COORDINATOR
            )
            if result is not None:
                return result
            attempt += 1
            if attempt > _CALM_ATTEMPTS:
                time.sleep(random.uniform(0, min(0.001 * attempt, _LONGEST_BACKOFF_S)))
