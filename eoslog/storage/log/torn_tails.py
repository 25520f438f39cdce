"""Torn tails: whether bytes after a log's valid end can be truncated, or are damage to durable
data.

A write that was never flushed may be torn by a crash, and recovery truncates it. A bad batch is
damage if a recovery point, a durable end or a clean close proves that it was durable. Then recovery
raises CorruptRecord and changes nothing.
"""

from __future__ import annotations

import mmap
import os

from eoslog import _core
from eoslog.errors import CorruptRecord
from eoslog.shown_paths import get_logger
from eoslog.storage.directory.last_run import LastSession
from eoslog.storage.fs import files
from eoslog.storage.log.context import LogContext
from eoslog.storage.segment.scans import SegmentScan, raised_base, zeros_are_space
from eoslog.storage.segment.segment import HEADER_SIZE, LOG, file_path

logger = get_logger("eoslog.storage")

__all__ = [
    "accept_zeros",
    "check_tail",
    "lost_before",
    "refuse_gap",
    "refuse_lost_markers",
    "valid_batch_after",
    "warn_of_loss",
]


def lost_before(context: LogContext, base: int, last: LastSession) -> bool:
    """Whether a power loss took the batches between the end of a segment and the next one's base.

    Such batches were never flushed, so the caller drops all later segments, as in `check_tail`. A
    gap below a durable or cleaned offset is legitimate: Kafka's cleaner may remove the last batches
    of a segment (eoslog's keeps the last one).
    """
    end = context.core.next_offset
    if (
        base <= end
        or last.clean
        or end < _known_durable(context, last)
        or base <= context.cleaned_by_a_broker()
    ):
        return False
    text = "%s: truncating at offset %d, before the segment at %d: batches between were not flushed"
    logger.warning(text, context.path, end, base)
    return True


def accept_zeros(
    context: LogContext, scan: SegmentScan, later: list[int], last: LastSession
) -> None:
    """Accept zeros after a segment's batches if they are preallocated space.

    Args:
        context: the partition's.
        scan: the scan that may have ended at zeros; without a fault on return if they are the end.
        later: bases of the segments after it.
        last: how the last session ended.
    """
    following, durable = later[0] if later else None, _known_durable(context, last)
    if scan.blank and zeros_are_space(scan.offset, following, durable=durable, clean=last.clean):
        scan.fault = None


def refuse_gap(
    context: LogContext, scan: SegmentScan, before: SegmentScan | None, *, active: bool
) -> None:
    """Raise CorruptRecord if a gap in a segment shows that a base offset is too high.

    Appends leave no gaps, and a cleaner does not rewrite the active segment. So a gap in the active
    segment is damage, even above the recovery point: the batch has the right CRC, so the write was
    not torn. In a sealed segment, a cleaner may have left the gap. It is damage if the scan stopped
    there, because recovery would truncate the log, and a cleaner's output is durable. Below the
    offset in `cleaner-offset-checkpoint`, gaps are legitimate.

    Args:
        context: the partition's.
        scan: the scan of a segment.
        before: the scan of the segment before it, None if that was not scanned.
        active: whether the segment is the last one.

    Raises:
        CorruptRecord: if there is such a batch; nothing was changed.
    """
    gap, path = scan.gap if active or scan.fault is not None else None, scan.path
    if gap is None and before is not None and scan.fault is not None and before.offset > scan.base:
        gap, path = before.gap, before.path  # the end of that segment contradicts this one's base
    if gap is None or gap.end <= context.cleaned_by_a_broker():
        return
    raise raised_base(context.name, path, gap)


def refuse_lost_markers(context: LogContext, base: int, path: str) -> None:
    """Raise CorruptRecord if the end of a transaction may be lost before a segment.

    The fold would take the transaction as open: readers would wait at its first record, without an
    error, or its records would share the outcome of a later transaction.

    Args:
        context: the partition's, with the fold at the end of the segment before.
        base: the base of the segment.
        path: the log file of the segment before.

    Raises:
        CorruptRecord: if offsets before `base` are missing, a transaction is open there, and no
            cleaner of a broker has removed them; nothing was changed.
    """
    end = context.core.next_offset
    if end >= base or base <= context.cleaned_by_a_broker() or not context.core.open_transactions():
        return
    raise CorruptRecord(
        f"{context.name}: offsets {end} to {base - 1}, after {os.path.basename(path)}, are "
        "missing, and may include the end of a transaction that began before them. Nothing was "
        "changed; put the right file back, or run `eoslog repair`",
        path=path,
        position=files.size(path),
    )


def warn_of_loss(context: LogContext, last: LastSession) -> None:
    """Log a WARNING if a recovered log ends below what the last session had flushed.

    It is not an error, because the control file may be newer than the log in a copy of a directory
    that was in use.

    Args:
        context: the partition's, with the fold at the end of the log.
        last: how the last session ended.
    """
    if last.clean:
        return
    end, durable = context.core.next_offset, _known_durable(context, last)
    if end < durable:
        logger.warning(
            "%s: the log ends at offset %d, but the last session had flushed it up to offset %d: a "
            "file is missing or truncated, or the directory is a copy that was made while it was "
            "in use. New records get the offsets from %d on again", context.name, end, durable, end,
        )  # fmt: skip


def _known_durable(context: LogContext, last: LastSession) -> int:
    """Return the offset up to which the partition is known to be flushed."""
    return max(last.recovery_point, context.session.durable_before(context.slot, context.topic_id))


def _size(path: str, base: int) -> int:
    return files.size(file_path(path, base, LOG))


def check_tail(context: LogContext, scan: SegmentScan, later: list[int], last: LastSession) -> None:
    """Raise CorruptRecord if the bad batch at the end of a scan was durable. Otherwise it is torn.

    Complete batches after it prove nothing: a power loss keeps any subset of unflushed pages.

    Args:
        context: the partition's.
        scan: the scan that ended at the bad batch.
        later: bases of the segments after it.
        last: how the last session ended.
    """
    base, where, valid, end = scan.base, scan.path, scan.position, scan.offset
    reason = scan.fault or ""
    whole = files.read_file(where)[: scan.size]
    data = whole[valid:]
    if reason.startswith("base offset") and len(data) >= 8:
        found = int.from_bytes(data[:8], "big", signed=True)
        if found >= _least_end(whole[:valid], base):
            end = min(end, found)  # it is not known which of the two is wrong
    durable = _known_durable(context, last)
    if end < durable:
        raise CorruptRecord(
            f"{context.name}: damaged batch at offset {end} ({reason}), below the flushed offset "
            f"{durable}, so this is not an interrupted write. Nothing was changed; run "
            "`eoslog repair`",
            path=where,
            position=valid,
        )
    if last.clean:
        raise CorruptRecord(
            f"{context.name}: {scan.size - valid} unexpected bytes after offset {end} ({reason}); "
            "the last session closed cleanly before them, so eoslog did not write them. Nothing "
            "was changed; run `eoslog repair`",
            path=where,
            position=valid,
        )
    follower = valid_batch_after(data, end)
    behind = [b for b in later if _size(context.path, b)]
    if follower is not None or behind:
        at = f"byte {valid + follower}" if follower is not None else f"segment {behind[0]}"
        logger.warning(
            "%s: truncating at byte %d, offset %d: %s; the truncated bytes include complete "
            "batches that were never flushed, from %s on", where, valid, end, reason, at,
        )  # fmt: skip


def _least_end(data: bytes, base: int) -> int:
    """Return the end of a segment's batches if their last base offset, which no CRC covers, is
    wrong.

    If the next batch has a lower base offset than this, that batch is the wrong one: a torn sector
    has destroyed its base offset.
    """
    *before, last = [None, *_core.iter_batches(data, strict=False)]
    if last is None:
        return base
    start = base if before[-1] is None else before[-1].last_offset + 1
    return int(start + last.last_offset - last.base_offset + 1)


def valid_batch_after(data: bytes | mmap.mmap, offset: int, begin: int = 1) -> int | None:
    """Find the first valid batch above an offset, from a byte on. Returns its position, or None."""
    at = data.find(b"\x02", begin + 16)
    while at >= 0:
        start = at - 16
        size = int.from_bytes(data[start + 8 : start + 12], "big", signed=True) + 12
        base = int.from_bytes(data[start : start + 8], "big", signed=True)
        if HEADER_SIZE <= size <= len(data) - start and offset < base <= offset + (1 << 31):
            crc = int.from_bytes(data[start + 17 : start + 21], "big")
            if crc == _core.crc32c(data[start + 21 : start + size]):
                return start
        at = data.find(b"\x02", at + 1)
    return None
