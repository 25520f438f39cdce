"""What a segment's abort index says, compared with the log before it is believed.

The index has no checksum. Where an aborted transaction began in an earlier segment its first offset
is compared with the producer snapshot at the segment's base, and with the batches: recovery makes
an index of what a cleaning has left, and the snapshot may tell of a begin that is gone. The two may
differ as long as no batch lies between: such an entry hides no record and shows none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eoslog.errors import CorruptRecord
from eoslog.storage.segments import TXN_INDEX, Doubt

if TYPE_CHECKING:
    from eoslog.storage.log_reader import LogReader


def entries_of(reader: LogReader, base: int, log_end: int) -> list[tuple[int, int, int]]:
    """(producer id, first, marker offset) of the aborted transactions that end in a segment.

    Args:
        reader: of the partition.
        base: of the segment.
        log_end: entries at or past it are left out.

    Raises:
        CorruptRecord: the log contradicts the index, at this look and at every later one.
    """
    segment = reader.segment(base)
    found = segment.aborted(log_end)
    doubts = segment.judge_aborted(sealed=reader.sealed(base))
    for doubt in doubts:
        wrong = _batch_between(reader, doubt) if doubt.confirmed else _ended(reader, doubt)
        if wrong is not None:
            raise CorruptRecord(
                f"{segment.path(TXN_INDEX)}: a transaction of producer {doubt.producer_id} is said "
                f"to be open from {doubt.first_offset} on, {wrong}; see `eoslog repair`"
            )
    if doubts:
        segment.believe()
    return found


def _ended(reader: LogReader, doubt: Doubt) -> str | None:
    for earlier in reader.bases():
        if earlier < doubt.high and doubt.producer_id in reader.segment(earlier).ends_from(
            doubt.low
        ):
            return f"and ended before {doubt.high}"
    return None


def _batch_between(reader: LogReader, doubt: Doubt) -> str | None:
    for batch in reader.batches(max(doubt.low, reader.log_start), doubt.high):
        if batch.producer_id == doubt.producer_id and batch.count:
            began = doubt.low if doubt.first_offset == doubt.high else doubt.high
            return f"and from {began} on by the snapshot: offset {batch.base_offset} lies between"
    return None
