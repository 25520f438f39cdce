"""Forgetting producers that have not written for `producer.id.expiration.ms`.

Who is forgotten is published in the partition's slot as an offset: the producers whose last batch
lies below it. All processes judge by it, whatever their clocks say, and timestamps of records play
no part: it is made of the times at which segment files were last written to. Of who has left
nothing but markers since the newest epoch began, the time of the last one is asked.

A producer with an open transaction is never forgotten. Nor is one that writes: a batch of a
forgotten producer is stored whatever its sequence, so a retry that comes after the horizon is
stored twice (as by a broker).

Source: protocol.md row 10; Kafka ProducerStateManager.removeExpiredProducers.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from eoslog.errors import EoslogError
from eoslog.storage import files
from eoslog.storage.segments import LOG, SNAPSHOT, file_name, offsets_among, offsets_in

if TYPE_CHECKING:
    from eoslog.storage.partition_log import PartitionLog

logger = logging.getLogger("eoslog.storage")


def written_before(path: str, end: int, time_s: float) -> int:
    """The offset below which everything was appended before a time, 0 where none is known.

    Args:
        path: the partition's directory.
        end: the log end, read before this call.
        time_s: seconds of the wall clock.
    """
    bases = [base for base in offsets_in(path, LOG) if base <= end]

    def young(i: int) -> bool:
        found = files.status(os.path.join(path, file_name(bases[i], LOG)))
        # An empty one was made ready, perhaps long ago, for the roll that it came with.
        return found is None or found.st_size == 0 or found.st_mtime >= time_s

    first = bisect_left(range(len(bases)), True, key=young)  # segments are written one by one
    if first == 0:
        return 0  # nothing is known of when what was deleted was written
    return bases[first] if first < len(bases) else end


def last_in_use(path: str, names: Iterable[str]) -> float:
    """When a partition is known to have been in use by the session before: seconds, 0 if unknown.

    Args:
        path: the partition's directory.
        names: what lies in it; nothing of it was written to yet.
    """
    newest = 0.0
    for suffix in (LOG, SNAPSHOT):
        for offset in offsets_among(list(names), suffix)[-1:]:
            found = files.status(os.path.join(path, file_name(offset, suffix)))
            newest = max(newest, found.st_mtime if found is not None else 0.0)
    return newest


class ProducerExpiry:
    """Moves the horizons of a process's open partitions.

    A clock that is wrong for a moment must forget nobody who writes: what a look finds is published
    by the next one, and no further than that finds too.
    """

    def __init__(
        self,
        logs: Callable[[], Iterable[PartitionLog]],
        expiration_ms: int,
        clock_ms: Callable[[], int],
    ) -> None:
        """Nothing was looked at yet."""
        self._logs = logs
        self._expiration_ms = expiration_ms
        self._clock_ms = clock_ms
        self._found: dict[str, int] = {}

    def look(self) -> None:
        """Publish what the last look and this one found; for who calls it now and then.

        The horizon of a partition that cannot be locked or listed stays where it was; the next look
        tries again.
        """
        before_ms = self._clock_ms() - self._expiration_ms
        earlier, self._found = self._found, {}
        for log in self._logs():
            if log.session.read_only or log.core.deleted or log.core.poisoned:
                continue
            try:
                below = written_before(log.path, log.log_end, before_ms / 1000)
                self._found[log.name] = below
                agreed = min(below, earlier.get(log.name, 0))
                if agreed > log.core.expire_below:
                    log.expire_producers(agreed, before_ms)
            except EoslogError as error:
                if not log.core.deleted:
                    logger.warning("%s: producers are not forgotten yet: %s", log.name, error)
