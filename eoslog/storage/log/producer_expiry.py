"""Expiry of producers that have not written for `producer.id.expiration.ms`.

The partition's slot publishes a horizon: producers whose last batch is below that offset are
expired. All processes use the published horizon, whatever their clocks say. The offset comes from
the times at which segment files were last written, not from timestamps of records. For a producer
that has only markers left since its newest epoch began, the time of the last marker decides.

A producer with an open transaction does not expire. After a producer has expired, its next batch is
accepted with any sequence. So a retry of a batch that was sent before the horizon is stored twice,
as in Kafka.

Source: protocol.md row 10; Kafka ProducerStateManager.removeExpiredProducers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence

from eoslog.errors import EoslogError
from eoslog.shown_paths import get_logger
from eoslog.storage.fs import files
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.segment.segment import LOG, SNAPSHOT, file_path, offsets_in

logger = get_logger("eoslog.storage")


def written_before(path: str, end: int, time_s: float, listed: Sequence[int] | None = None) -> int:
    """Return the offset below which everything was appended before a time; 0 if not known.

    Args:
        path: the partition's directory.
        end: the log end, read before this call.
        time_s: wall clock time in seconds.
        listed: the bases of the segments, ascending; None lists them.
    """
    bases = listed or offsets_in(path, LOG)
    bases = bases[: bisect_right(bases, end)]

    def young(i: int) -> bool:
        found = files.status(file_path(path, bases[i], LOG))
        # An empty file may have been prepared long before the roll that used it.
        return found is None or found.st_size == 0 or found.st_mtime >= time_s

    if not bases or young(0):
        return 0  # the age of deleted records is not known
    first = bisect_left(range(len(bases)), True, key=young)  # segments are written one by one
    return bases[first] if first < len(bases) else end


def last_in_use(path: str, listed: Mapping[str, Sequence[int]]) -> float:
    """Return when the previous session last used a partition: seconds, 0 if unknown.

    Args:
        path: the partition's directory, in which this session has not written yet.
        listed: the offsets of its files, by suffix.
    """
    newest = 0.0
    for suffix in (LOG, SNAPSHOT):
        for offset in listed[suffix][-1:]:
            found = files.status(file_path(path, offset, suffix))
            newest = max(newest, found.st_mtime if found is not None else 0.0)
    return newest


class ProducerExpiry:
    """Moves the horizons of the open partitions of a process.

    A clock that is wrong for a moment must not expire an active producer. Therefore each `look`
    publishes the lower of two horizons: its own, and that of the `look` before.
    """

    def __init__(
        self,
        logs: Callable[[], Iterable[PartitionLog]],
        expiration_ms: int,
        clock_ms: Callable[[], int],
    ) -> None:
        """Begin without horizons.

        Args:
            logs: returns the open partitions.
            expiration_ms: `producer.id.expiration.ms`.
            clock_ms: returns the wall clock time in ms.
        """
        self._logs = logs
        self._expiration_ms = expiration_ms
        self._clock_ms = clock_ms
        self._found: dict[str, int] = {}

    def look(self) -> None:
        """Publish the horizons that the last call and this one agree on; call it regularly.

        If a partition cannot be locked or listed, its horizon stays, and the next call tries again.
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
                    logger.warning(
                        "%s: inactive producers not expired, retrying later: %s", log.name, error
                    )
