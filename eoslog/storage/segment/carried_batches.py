"""Carried batches: what a decision has of a partition whose files may lack it.

A commit of few bytes does not flush its partitions. Its decision in `__transaction_state` carries
their batches instead, from the end of what is durable to the end of the transaction. After a power
loss, recovery writes into the files what they lack of these batches.

Source: protocol.md "Carry".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from eoslog import _core
from eoslog.errors import CorruptRecord
from eoslog.storage.fs import files
from eoslog.storage.segment.segment import LOG, file_path

__all__ = [
    "CarriedAbove", "CarriedBatches", "end_of", "missing_bytes", "nothing_carried", "write_missing",
]  # fmt: skip


class CarriedBatches(NamedTuple):
    """Batches that follow each other: the first offset, and the bytes of the log."""

    first: int
    data: bytes


CarriedAbove = Callable[[int], Sequence[CarriedBatches]]
"""Returns the carried batches of a partition that reach beyond an offset."""


def nothing_carried(_: int) -> Sequence[CarriedBatches]:
    """The `CarriedAbove` of a partition without carried batches."""
    return ()


def end_of(carried: Iterable[CarriedBatches]) -> int:
    """Return the end offset of carried batches; 0 without any."""
    ends = (_core.iter_batches(part.data)[-1].last_offset + 1 for part in carried)
    return max(ends, default=0)


def missing_bytes(name: str, end: int, carried: Iterable[CarriedBatches]) -> bytes:
    """Return the carried batches from a log's end on; empty if the log has them all.

    Each run of carried batches begins at an offset below which the log was durable.

    Args:
        name: name of the partition, for the error.
        end: the end offset of the log's valid batches.
        carried: carried batches, in any order; they may overlap.

    Raises:
        CorruptRecord: if they do not continue the log, which therefore lacks durable records.
    """
    missing, log_end = bytearray(), end
    for first, data in sorted(carried):
        if first > end:
            raise CorruptRecord(
                f"{name}: the log ends at offset {log_end}, but it was durable up to {first}, "
                "from which on a committed transaction carries batches. Nothing was changed; run "
                "`eoslog repair`"
            )
        for batch in _core.iter_batches(data):
            if batch.last_offset < end:
                continue
            if batch.base_offset != end or not batch.valid:
                raise CorruptRecord(
                    f"{name}: the log ends at offset {log_end}, inside a batch with offsets "
                    f"{batch.base_offset} to {batch.last_offset} that a committed transaction "
                    "carries. Nothing was changed; run `eoslog repair`"
                )
            missing += data[batch.position : batch.position + batch.size]
            end = batch.last_offset + 1
    return bytes(missing)


def write_missing(directory: str, base: int, position: int, missing: bytes) -> None:
    """Write batches at the end of a partition's last segment.

    A crash leaves a torn tail, which the next recovery writes again.

    Args:
        directory: the partition's folder. Later segments were removed from it.
        base: base offset of the segment.
        position: the byte after its valid batches; what follows is replaced.
        missing: the batches.

    Durability: durable on return.
    """
    # A power loss must not bring back a removed segment, whose offsets would overlap with these.
    files.fsync_dir(directory)
    path = file_path(directory, base, LOG)
    files.own(path)
    fd = files.open_file(path)
    try:
        with files.naming(path):
            _core.os_truncate(fd, position)
            _core.os_pwrite(fd, missing, position)
            _core.os_sync(fd)
    finally:
        files.close(fd)
