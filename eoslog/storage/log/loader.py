"""Recovery of a partition when a session opens it for the first time.

Recovery runs once per session and partition, with the append lock held, before any other access. It
finishes what the last session left incomplete, verifies what that session did not flush, rebuilds
derived files, and then publishes the log end.

| After a crash there may be | Recovery |
|---|---|
| `.deleted`, `.cleaned`, `.swap`, `.next` files | completes or undoes the operation, like Kafka |
| a damaged batch that was never flushed | truncates the log before it, complete batches after it
                included: a power loss keeps any subset of unflushed pages |
| a damaged batch that was flushed | raises CorruptRecord and changes nothing: there is no replica |
| zeros up to the end of the last segment's file, or in a segment that ends where the next begins |
                truncates the file: it was preallocated. Batches that were flushed are missing if
                the last segment ends below a durable offset: raises CorruptRecord |
| a gap between batches | raises CorruptRecord in the last segment: appends leave no gap, so a base
                         offset is damaged; also between segments, if a transaction is open
                         there, because its end may be missing |
| missing, stale or premature index entries | rebuilds the index from the scanned batches |
| a torn producer snapshot | detects it by CRC, deletes it, and loads the next older one |
| unflushed, intact bytes | flushes them before they are published |
| batches that only a decision carries | writes them at the end of the log (protocol.md, Carry) |

After an unclean end, batches are verified by their CRCs. After a clean close, the headers of the
last segment must agree with its seal and snapshot; otherwise the CRCs are verified too. Published
ends and the control file decide nothing, because both may be stale after a reboot, a copy or a
restore (protocol.md, rows 6 and 7).

A read-only log without writers scans the same segments with the same checks, but changes no file
(`scan_for_reader`).
"""

from __future__ import annotations

import contextlib
import os
import time
from bisect import bisect_right
from typing import NamedTuple, Protocol

from eoslog import _core
from eoslog.errors import CorruptRecord, EoslogError, LockTimeout, StorageError
from eoslog.model import TRANSACTION_STATE_TOPIC
from eoslog.shown_paths import get_logger
from eoslog.storage.directory.last_run import LastSession
from eoslog.storage.directory.processes import lock_text
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from eoslog.storage.fs.timeouts import LOCK_TIMEOUT_S
from eoslog.storage.log.append_status import AppendStatus
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.log.producer_expiry import last_in_use, written_before
from eoslog.storage.log.segment_writer import FoldStart
from eoslog.storage.log.settings import FOR_EVER
from eoslog.storage.log.torn_tails import (
    accept_zeros,
    check_tail,
    lost_before,
    refuse_gap,
    refuse_lost_markers,
    warn_of_loss,
)
from eoslog.storage.segment import seals
from eoslog.storage.segment.carried_batches import (
    CarriedAbove,
    missing_bytes,
    nothing_carried,
    write_missing,
)
from eoslog.storage.segment.producer_snapshots import (
    agrees_with_snapshot,
    drop_stray_snapshots,
    drop_torn_snapshots,
    newest_snapshot,
    write_snapshot,
)
from eoslog.storage.segment.replacement import finish_renames, unfinished_swap
from eoslog.storage.segment.scans import SegmentScan, scan_open_segment
from eoslog.storage.segment.segment import (
    INDEX,
    LOG,
    PREPARED,
    SEAL,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    PartitionNames,
    file_path,
    is_of_a_partition,
)

logger = get_logger("eoslog.storage")

_SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)


class Recovery(NamedTuple):
    """The result of a recovery.

    Attributes:
        log_start: log start offset.
        base: base of the first scanned segment.
        producers: entries of the producer snapshot at that offset.
        settled: whether only the last segment was scanned, and no file was created or removed.
    """

    log_start: int
    base: int
    producers: bytes
    settled: bool


class TopicExists(Protocol):
    """Whether a partition's topic still exists."""

    @property
    def outdated(self) -> bool:
        """Whether topics have changed since the last `refuse_deleted`."""

    def refuse_deleted(self) -> None:
        """Raise UnknownTopicOrPartition if the topic was deleted."""


def open_partition(
    log: PartitionLog,
    last: LastSession,
    *,
    producer_expiration_ms: int = FOR_EVER,
    carried: CarriedAbove = nothing_carried,
    topic: TopicExists | None = None,
) -> bool:
    """Recover the partition unless this session has done so, and start this process's fold.

    Args:
        log: the partition, not in use yet.
        last: how the last session ended.
        producer_expiration_ms: producers that were inactive for this long expire.
        carried: the batches that decisions of earlier sessions carry.
        topic: whether the topic exists; None if it cannot be deleted.

    Returns:
        Whether this call recovered the partition, so that open transactions must be looked up.

    Raises:
        CorruptRecord: if a batch is damaged and a crash cannot be the cause; nothing was changed.
        LockTimeout: if another process holds the append lock, or (for a reader) a writer has not
            recovered the partition yet.
        StorageError: if a file operation failed; the caller can retry.
    """
    recovered, start = False, None
    with files.naming(log.path):
        if log.core.session != log.session.control.session:
            if log.session.private:
                log_start = scan_for_reader(log, last, PartitionNames.listed(log.path), carried)
                log.core.publish_recovered(log.topic_id, log_start, log.core.next_offset)
            elif log.session.read_only:
                _read_apart(log, last)
            else:
                recovered, start = _recover(log, last, producer_expiration_ms, carried, topic)
        if not log.session.read_only:
            log.writer_files.restart_fold(start)
    return recovered


def make_directory(log: PartitionLog) -> None:
    """Create a new partition's directory with its first segment."""
    files.make_dir(log.path)
    for suffix in (LOG, INDEX, TIME_INDEX):
        files.close(files.open_file(file_path(log.path, 0, suffix), create=True))
    files.fsync_dir(log.path)


def _read_apart(log: PartitionLog, last: LastSession) -> None:
    """Scan for a reader whose writers have not recovered the partition yet, after a clean close.

    The writers' recovery will not truncate such a log, and their first append follows its end. So
    if their slot is still void after the scan, the scan has read nothing else, and its bounds are
    used until the slot is filled. After an unclean end, recovery may truncate the tail.
    """
    core = log.core
    if not last.clean or core.deleted:
        raise LockTimeout(
            f"{log.name}: the writers have not recovered it yet; retry when one of them has used it"
        )
    core.stand_apart()
    try:
        log_start = scan_for_reader(log, last, PartitionNames.listed(log.path))
        if core.publish_apart(log.topic_id, log_start):
            log.segments.bases()  # list now: a later version makes the reader start again
    except (EoslogError, FileNotFoundError):
        if core.session != log.session.control.session:
            raise
    if core.published_segments_version != log.segments.listed.version:
        log.segments.clear()  # a writer has recovered the partition in the meantime
    core.load(0, b"")  # a reader with writers keeps no producer state


def _recover(
    log: PartitionLog, last: LastSession, producer_expiration_ms: int, carried: CarriedAbove,
    topic: TopicExists | None,
) -> tuple[bool, FoldStart | None]:  # fmt: skip
    """Recover under the append lock; (whether this call did it, start of the fold if known)."""
    while True:
        if topic is not None:
            topic.refuse_deleted()
        if log.core.lock_for_recovery(LOCK_TIMEOUT_S) != AppendStatus.APPENDED:
            holder = lock_text(log.session, log.slot, "append")
            raise LockTimeout(
                f"{log.name}: append lock not free within {LOCK_TIMEOUT_S:g} s; held by {holder}; "
                "retry"
            )
        try:
            if log.core.session == log.session.control.session:
                return False, None  # another process was first
            # From here on a deletion waits, because a new topic's files would have these names.
            if topic is None or not topic.outdated:
                return True, _recover_locked(log, last, producer_expiration_ms, carried)
        finally:
            log.core.unlock_after_recovery()


def _recover_locked(
    log: PartitionLog, last: LastSession, producer_expiration_ms: int, carried: CarriedAbove
) -> FoldStart | None:
    """Recover, and return the start of the fold if it is known."""
    names = PartitionNames.listed(log.path)
    left = [n for n in names.others if n.endswith((PREPARED, ".tmp")) and is_of_a_partition(n)]
    for name in left:
        files.remove(os.path.join(log.path, name))
    changed = finish_renames(log.path, names) or bool(left)
    standing = PartitionNames.listed(log.path) if changed else names
    # Find the horizon before the scan changes file times. A single look at the clock may be
    # wrong, so use it only up to the last session's file times; `ProducerExpiry` does the rest.
    now_s = min(time.time(), last_in_use(log.path, standing.offsets))
    horizon_ms = int(now_s * 1000) - producer_expiration_ms
    limit_s = horizon_ms / 1000
    bases = standing.offsets[LOG]
    below = written_before(log.path, 1 << 62, limit_s, bases) if horizon_ms > 0 else 0
    done = recover_for_writer(log, last, standing, carried)
    # The scan may have created or removed files.
    found = standing if done.settled else PartitionNames.listed(log.path)
    changed |= drop_stray_snapshots(log.path, found.offsets, log.core.next_offset)
    changed |= found != names
    if not last.clean:
        drop_torn_snapshots(log.path)
    if changed or not last.clean:
        files.fsync_dir(log.path)
    end = log.core.next_offset
    log.core.publish_recovered(
        log.topic_id, done.log_start, end, min(below, end), max(horizon_ms, 0) if below else 0
    )
    if not done.settled:
        return None
    version = log.core.published_segments_version
    return FoldStart(version, done.base, done.producers)


def scan_for_reader(
    log: PartitionLog, last: LastSession, names: PartitionNames,
    carried: CarriedAbove = nothing_carried, *, distrust: bool = False,
) -> int:  # fmt: skip
    """Fold the segments from the newest snapshot on. Returns the log start.

    Changes no file: the indexes computed from the batches are used from memory.

    Args:
        log: the partition.
        last: how the last session ended.
        names: the names in the partition's directory.
        carried: the batches that decisions of earlier sessions carry.
        distrust: verify CRCs even after a clean close.

    Raises:
        StorageError: if the log lacks batches that a decision carries.
    """
    core, path = log.core, log.path
    bases = _bases(path, names)
    if not bases:
        return _require_empty(log, last)
    log_start = _log_start(log, bases, last)
    verify_from, todo, _ = _load_snapshot(log, bases, last, delete_bad=False)
    seal, before = None, None
    for i, base in enumerate(todo):
        if i and lost_before(log.context, base, last):
            break
        if i:
            refuse_lost_markers(log.context, base, file_path(path, todo[i - 1], LOG))
        later = todo[i + 1 :]
        verify = distrust or (not last.clean and base >= verify_from)
        where = file_path(path, base, LOG)
        fd = files.open_file(where, read_only=True)
        try:
            core.use_segment(base, fd)
            if last.clean and not later:
                seal = _identify(log, base, fd, last)
            scan = scan_open_segment(core, base, where, fd, verify=verify)
            if not (verify or later or _agrees(log, scan, seal)):
                return scan_for_reader(log, last, names, carried, distrust=True)
            accept_zeros(log.context, scan, later, last)
            refuse_gap(log.context, scan, before, active=not later)
            if scan.fault is not None:
                check_tail(log.context, scan, later, last)
            elif later:
                scan.times += core.final_time_entry()
            log.segment(base).use_index(
                scan.offset_index, scan.times, scan.aborted, scan.offset,
                bool(core.open_transactions()),
            )  # fmt: skip
            if log.session.private:  # other readers follow the writers past the scan's end
                log.segment(base).end = scan.position
        finally:
            core.use_segment(base, -1)
            files.close(fd)
        if scan.fault is not None:
            break
        before = scan
    if _carried_from(log, carried):
        raise StorageError(
            f"{log.name}: records from offset {core.next_offset} on are only in "
            f"{TRANSACTION_STATE_TOPIC} since a power loss; open the log for writing once, which "
            "writes them into the partition",
            path=path,
        )
    return _checked_start(log, log_start, last)


def recover_for_writer(
    log: PartitionLog, last: LastSession, names: PartitionNames,
    carried: CarriedAbove = nothing_carried, *, distrust: bool = False,
) -> Recovery:  # fmt: skip
    """Fold the segments from the newest snapshot on, and repair them. Arguments: `scan_for_reader`.

    Verifies the segments that the last session may not have flushed, truncates a torn tail, and
    makes the index files agree with the batches.

    Durability: after an unclean end, everything found is durable on return.
    """
    core, path = log.core, log.path
    bases = _bases(path, names) or [_make_first_segment(log, last)]
    log_start = _log_start(log, bases, last)
    verify_from, todo, producers = _load_snapshot(log, bases, last, delete_bad=True)
    settled = len(todo) == 1 and _has_its_files(path, todo[0], names, only=len(bases) == 1)
    seal, before, ended = None, None, (todo[0], 0)
    for i, base in enumerate(todo):
        if i and lost_before(log.context, base, last):
            _carried_from(log, carried)  # raises before anything is changed
            _drop_segments(path, todo[i:])
            break
        if i:
            refuse_lost_markers(log.context, base, file_path(path, todo[i - 1], LOG))
        later = todo[i + 1 :]
        verify = distrust or (not last.clean and base >= verify_from)
        doubtful = verify and not last.clean and (log.strict or last.poisoned)
        where = file_path(path, base, LOG)
        fds = log.writer_files.open(base)
        try:
            core.use_segment(base, fds[0])
            on_disk = files.forget_cached(fds[0]) if doubtful else True
            if last.clean and not later:
                seal = _identify(log, base, fds[0], last)
            scan = scan_open_segment(core, base, where, fds[0], verify=verify)
            if not (verify or later or _agrees(log, scan, seal)):
                return recover_for_writer(log, last, names, carried, distrust=True)
            accept_zeros(log.context, scan, later, last)
            refuse_gap(log.context, scan, before, active=not later)
            if scan.fault is not None or (scan.blank and not later):
                _carried_from(log, carried)  # raises before anything is changed
            if scan.fault is not None:
                check_tail(log.context, scan, later, last)
            elif later:
                scan.times += core.final_time_entry()
            settled &= scan.fault is None and (not scan.aborted or fds[3] >= 0)
            _settle(scan, fds, rewrite=verify, doubtful=doubtful)
            if not on_disk:
                logger.info(
                    "%s: copying %d bytes: cached pages could not be dropped, so the disk may lack "
                    "what was read", where, scan.position,
                )  # fmt: skip
                files.replace_by_copy(where, scan.position)
            elif not last.clean:
                _core.os_sync(fds[0])
            if later and scan.fault is None:
                write_snapshot(path, scan.offset, core.export_producers()[1])
                if verify and later[0] <= max(scan.offset, log.context.cleaned_by_a_broker()):
                    with contextlib.suppress(StorageError):  # readers scan segments without a seal
                        seals.seal_files(path, log.topic_id, base, later[0])
        finally:
            core.use_segment(base, -1)
            for fd in fds:
                files.close(fd)
        ended = base, scan.position
        if scan.fault is not None:
            _drop_segments(path, later)
            break
        before = scan
    missing = _carried_from(log, carried)
    if missing:
        logger.info(
            "%s: writing %d carried bytes at offset %d", path, len(missing), core.next_offset
        )
        write_missing(path, *ended, missing)
        return recover_for_writer(log, last, PartitionNames.listed(path), carried)
    return Recovery(_checked_start(log, log_start, last), todo[0], producers, settled)


def _carried_from(log: PartitionLog, carried: CarriedAbove) -> bytes:
    """Return the carried batches that the log lacks; it ends where the fold is.

    Raises:
        CorruptRecord: if they do not continue the log.
    """
    end = log.core.next_offset
    return missing_bytes(log.path, end, carried(end))


def _bases(path: str, names: PartitionNames) -> list[int]:
    """Return the bases of the segments, ascending.

    Raises:
        StorageError: if a swap is incomplete, so that the names mix old and new segments.
    """
    half = unfinished_swap(names.others)
    if half is not None:
        raise StorageError(
            f"{os.path.join(path, half)}: a segment swap is incomplete; "
            "open the log for writing once, which finishes it",
            path=path,
        )
    return names.offsets[LOG]


def _require_empty(log: PartitionLog, last: LastSession) -> int:
    """Return the offset at which a partition without segments begins.

    Raises:
        CorruptRecord: if it had records.
    """
    start = last.log_start if last.start_recorded else 0
    log.core.load(start, b"")
    return _checked_start(log, start, last)


def _make_first_segment(log: PartitionLog, last: LastSession) -> int:
    """Create an empty segment in a partition without any. Returns its base.

    Raises:
        CorruptRecord: if the partition had records.
    """
    first = _require_empty(log, last)
    for suffix in (LOG, INDEX, TIME_INDEX):
        files.close(files.open_file(file_path(log.path, first, suffix), create=True))
    files.fsync_dir(log.path)
    return first


def _load_snapshot(
    log: PartitionLog, bases: list[int], last: LastSession, *, delete_bad: bool
) -> tuple[int, list[int], bytes]:
    """Begin the fold at the newest snapshot.

    Returns:
        (base of the first segment to verify after an unclean end, bases of the segments to scan,
        snapshot entries with which the fold begins).
    """
    # A segment that ends at the recovery point was active when the point was written, so its
    # indexes may not be durable: scan it too.
    verify_from = (
        bases[-1]
        if last.clean
        else max((b for b in bases if b < last.recovery_point), default=bases[0])
    )
    usable = bases[: bisect_right(bases, verify_from)]
    base, entries = newest_snapshot(log.path, usable, delete_bad=delete_bad)
    log.core.load(base, entries)
    return verify_from, bases[bases.index(base) :], entries


def _checked_start(log: PartitionLog, log_start: int, last: LastSession) -> int:
    """Return the log start, after the scan.

    Raises:
        CorruptRecord: if the log ends below the recovery point.
    """
    path, end = log.path, log.core.next_offset
    if end < last.recovery_point:  # not the control file's: it may be stale (protocol.md row 6)
        raise CorruptRecord(
            f"{path}: the log ends at offset {end}, but it was flushed up to offset "
            f"{last.recovery_point}: a file is missing or truncated. "
            "Nothing was changed; run `eoslog repair`"
        )
    warn_of_loss(log.context, last)
    return min(log_start, end)


def _has_its_files(path: str, base: int, names: PartitionNames, *, only: bool) -> bool:
    """Whether all of a segment's files are among `names`, so that none was created.

    With `only`, the snapshot at its base must still exist: a damaged one was removed.
    """
    offsets = names.offsets
    if only and base in offsets[SNAPSHOT] and not files.exists(file_path(path, base, SNAPSHOT)):
        return False
    return base in offsets[LOG] and base in offsets[INDEX] and base in offsets[TIME_INDEX]


def _identify(log: PartitionLog, base: int, fd: int, last: LastSession) -> seals.Seal | None:
    """Return the seal of the active segment from a clean close, None if there is none.

    Raises CorruptRecord if its log file is not the sealed one.
    """
    seal = seals.read(log.path, last.recovery_point, log.topic_id, base)
    if seal is not None and seal.size and os.fstat(fd).st_size:
        seals.identify(seal, fd, file_path(log.path, base, LOG))
    return seal


def _agrees(log: PartitionLog, scan: SegmentScan, seal: seals.Seal | None) -> bool:
    """Whether the active segment's headers agree with the seal and snapshot of the last close."""
    if seal is not None and not seal.agrees(scan.aborted):
        return False
    return agrees_with_snapshot(log.path, *log.core.export_producers(), seal)


def _log_start(log: PartitionLog, bases: list[int], last: LastSession) -> int:
    """Return the first offset that may be read. Never skips records because of an unproven start.

    Retention first records a start, with a checksum, and then deletes the segments below it. So
    segments below a recorded start are leftovers. If the first segment is above it, a segment is
    missing, and reading its offsets raises CorruptRecord. Kafka's own file has no checksum: its
    start is used only within the first segment, where `delete_records` may have put it.
    """
    if last.start_recorded:
        if bases[0] > last.log_start:
            logger.warning(
                "%s: a segment file is missing (run `eoslog check`): the log starts at offset %d, "
                "but the first segment begins at %d", log.path, last.log_start, bases[0],
            )  # fmt: skip
        return last.log_start
    if len(bases) > 1 and last.log_start >= bases[1]:
        logger.warning(
            "%s: log start ignored: %s says %d, but the segments begin at %d and no deletion is "
            "recorded; starting at %d",
            log.path, checkpoints.LOG_START_CHECKPOINT, last.log_start, bases[0], bases[0],
        )  # fmt: skip
        return bases[0]
    return max(last.log_start, bases[0])


def _drop_segments(path: str, bases: list[int]) -> None:
    for base in bases:
        for suffix in (*_SUFFIXES, SNAPSHOT, SEAL):
            files.remove(file_path(path, base, suffix))


def _settle(
    scan: SegmentScan, fds: tuple[int, int, int, int], *, rewrite: bool, doubtful: bool
) -> None:
    """Truncate the log file to its valid bytes, and make its index files agree with the batches."""
    log_fd, *index_fds = fds
    if scan.size != scan.position:
        if os.fstat(log_fd).st_nlink > 1:  # hard-linked to the file of an adopted broker
            files.replace_by_copy(scan.path, scan.position)
        else:
            _core.os_truncate(log_fd, scan.position)
    indexes = scan.offset_index, scan.times, scan.aborted
    for fd, content in zip(index_fds, indexes, strict=True):
        if fd >= 0:
            _make_equal(fd, content, rewrite, doubtful)
    if index_fds[2] < 0 and scan.aborted:
        files.write_file(scan.path.removesuffix(LOG) + TXN_INDEX, scan.aborted)


def _make_equal(fd: int, content: bytes, rewrite: bool, doubtful: bool) -> None:
    """Write `content` to an index file, unless it is there already.

    If `doubtful`, first empty the file, so that it gets new blocks: after a failed writeback ext4
    keeps the old blocks unwritten (`files.forget_cached`). Otherwise overwrite the old bytes,
    because ext4 flushes a file that was emptied when it is closed.
    """
    size = os.fstat(fd).st_size
    if not rewrite and size == len(content) and bytes(_core.os_pread(fd, size, 0)) == content:
        return
    kept = 0 if doubtful else min(size, len(content))
    if size > kept:
        _core.os_truncate(fd, kept)
    _core.os_pwrite(fd, content, 0)
