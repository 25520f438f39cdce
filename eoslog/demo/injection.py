"""Lost acknowledgements: the batch is in the log, but its producer resends it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from eoslog.demo import faults
from eoslog.storage.fs import files

if TYPE_CHECKING:
    from eoslog.demo.faults import Notes
    from eoslog.errors import KafkaError
    from eoslog.model import RecordMetadata


class AckLoss:
    """A fault that loses a producer's acknowledgements and keeps resends' results.

    A resent batch is delivered with `duplicate` set and the offset of the first copy. That offset
    is noted, and the report checks that the log has one copy at it.
    """

    def __init__(self, notes: Notes, writer: str) -> None:
        self._notes = notes
        self._writer = writer
        self._duplicates: list[tuple[str, int, int]] = []

    @contextmanager
    def around(self, lose: bool) -> Iterator[None]:
        """Lose the acknowledgement of the first batch sent in this block, if `lose`."""
        if lose:
            files.arm_failpoint("producer.ack_lost", "trip")
        yield

    def on_delivery(self, error: KafkaError | None, metadata: RecordMetadata | None) -> None:
        """Remember a record that was acknowledged as a duplicate."""
        if error is None and metadata is not None and metadata.duplicate:
            self._duplicates.append((metadata.topic, metadata.partition, metadata.offset))

    def write_down(self) -> None:
        """Note the places of the duplicates met since the last call, as runs of offsets."""
        if self._duplicates:
            places = runs(self._duplicates)
            self._duplicates.clear()
            self._notes.note(faults.RESENT, self._writer, places=places)


def runs(places: Iterable[tuple[str, int, int]]) -> list[tuple[str, int, int, int]]:
    """Gather (topic, partition, offset) into (topic, partition, first, last)."""
    found: list[tuple[str, int, int, int]] = []
    for topic, partition, offset in sorted(set(places)):
        if found and found[-1][:2] == (topic, partition) and found[-1][3] == offset - 1:
            found[-1] = (topic, partition, found[-1][2], offset)
        else:
            found.append((topic, partition, offset, offset))
    return found
