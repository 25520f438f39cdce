"""Jobs that follow their source.

A run copies a fixed set of partitions. When a following job finds a new one at the source, its run
ends after a transaction, and the next run begins. It resumes like a run after a restart, so new
partitions need no rules of their own. A run also ends if the cluster does not answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from eoslog.errors import EoslogError, KafkaError, UnknownTopicOrPartition
from eoslog.kafka.cluster import Moved, MoveOptions, require_confluent_kafka
from eoslog.shown_paths import get_logger

_LOOK_S = 2.0

logger = get_logger("eoslog.kafka")


def run_job(run: Callable[[int], Moved], options: MoveOptions) -> Moved:
    """Run a job once, or again and again if it follows its source.

    Args:
        run: makes one run, after earlier ones have copied so many records. If the job follows its
            source, it returns when the source has new partitions, or after `pause_after`.
        options: the options of the job.
    """
    moved = run(0)
    while options.follow:
        try:
            moved = run(moved.records)
        except KafkaError as error:
            pause_after(error, options, moved.job)
    return moved


def survives(error: EoslogError, options: MoveOptions) -> bool:
    """Whether a job continues with another run after an error.

    Errors of the log itself end the job: their cause is not an exception of the client. A deleted
    topic ends it too, because the next run would create the topic again.
    """
    of_client = (require_confluent_kafka().KafkaException, TimeoutError)
    return (
        options.follow
        and isinstance(error, KafkaError)
        and error.retriable
        and isinstance(error.__cause__, of_client)
        and not isinstance(error, UnknownTopicOrPartition)
    )


def pause_after(error: KafkaError, options: MoveOptions, job: str) -> None:
    """Wait for `_LOOK_S` before the next run, or raise an error that ends the job."""
    if not survives(error, options):
        raise error
    logger.warning("job %r: run failed, resuming at its last position: %s", job, error)
    time.sleep(_LOOK_S)


class NewPartitions:
    """Partitions of a source that a run does not copy, looked up now and then.

    Args:
        copied: the partition counts of the topics that the run copies.
        look: returns the partition counts that the source has now.
    """

    def __init__(self, copied: Mapping[str, int], look: Callable[[], Mapping[str, int]]) -> None:
        """Look for the first time after `_LOOK_S`."""
        self._copied, self._look = copied, look
        self._next = time.monotonic() + _LOOK_S

    def found(self) -> bool:
        """Whether there are any; between two looks, the answer is no."""
        if time.monotonic() < self._next:
            return False
        counts = self._look()
        self._next = time.monotonic() + _LOOK_S
        return any(count > self._copied.get(name, 0) for name, count in counts.items())
