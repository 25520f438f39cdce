"""Opening a partition: what the last session left is finished, checked and published.

Runs once a session and partition, under its append lock, before anybody else touches it.

| a crash leaves | repaired here |
|---|---|
| `.deleted`, `.cleaned`, `.swap`, `.next` files | finished or undone, as Kafka does |
| a torn batch | cut with all behind it, if nothing says that it was flushed (a power cut keeps any
                subset of what was not); else CorruptRecord: there is no replica |
| stale or phantom index entries | indexes are rebuilt from the scanned batches |
| a torn snapshot | found by its CRC, deleted, the next older one taken |
| unflushed bytes | scanned by CRC, flushed before they are published |

Recovery trusts the log, by CRC, and no pointer: neither the control file nor a published end.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import time
from dataclasses import dataclass

from eoslog import _core
from eoslog.errors import CorruptRecord, EoslogError, LockTimeout, StorageError
from eoslog.storage import files
from eoslog.storage.log_settings import FOR_EVER
from eoslog.storage.partition_log import LOCK_TIMEOUT_S, PartitionLog, S
from eoslog.storage.producer_expiry import last_in_use, written_before
from eoslog.storage.producer_snapshots import (
    drop_stray_snapshots,
    drop_torn_snapshots,
    newest_snapshot,
)
from eoslog.storage.segment_swap import finish_renames, unfinished_swap
from eoslog.storage.segments import (
    INDEX,
    LOG,
    PREPARED,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    offsets_among,
    write_snapshot,
)

logger = logging.getLogger("eoslog.storage")

_SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)


@dataclass(frozen=True, slots=True)
class LastSession:
    """What is known of how the last session ended; offsets as the checkpoint files have them."""

    clean: bool
    recovery_point: int = 0
    log_start: int = 0
    poisoned: bool = False


def open_partition(
    log: PartitionLog, last: LastSession, *, producer_expiration_ms: int = FOR_EVER
) -> bool:
    """Recover the partition if this session has not yet, and start this process's fold.

    Args:
        log: not in use yet.
        last: how the session before this one ended.
        producer_expiration_ms: who has not written for this long is forgotten as a session begins.

    Returns:
        True when this call recovered it: its open transactions are then to be looked up.

    Raises:
        CorruptRecord: a damaged batch that no crash explains; nothing was changed.
        LockTimeout: another process holds the partition, or for a reader: has yet to recover it.
        StorageError: the disk failed; it can be tried again.
    """
    recovered = False
    with files.naming(log.path):
        if log.core.session != log.session.control.session:
            if log.session.private:
                start = _scan(log, last, files.names(log.path), read_only=True)
                log.core.publish_recovered(log.topic_id, start, log.core.next_offset)
            elif log.session.read_only:
                _read_apart(log, last)
            else:
                recovered = _recover(log, last, producer_expiration_ms)
        if not log.session.read_only:
            start_fold(log)
    return recovered


def make_directory(log: PartitionLog) -> None:
    """Make a new partition's directory with its first segment."""
    files.make_dir(log.path)
    for suffix in (LOG, INDEX, TIME_INDEX):
        files.close(files.open_file(os.path.join(log.path, file_name(0, suffix)), create=True))
    files.fsync_dir(log.path)


def start_fold(log: PartitionLog) -> None:
    """(Re)build this process's producer state from the newest usable snapshot and the log."""
    while True:
        version, _, listed = log.reader.listing()
        end = log.log_end
        bases = [base for base in listed if base <= end] or [0]
        base, entries = newest_snapshot(log.path, bases, delete_bad=False)
        try:
            log.writer_files.enter(base, producers=entries, version=version)
        except FileNotFoundError:
            if version == log.core.published_segments_version:
                raise
            continue
        if version == log.core.published_segments_version:
            break  # else the files are another's: cleaned, or gone
    log.fold()


def _read_apart(log: PartitionLog, last: LastSession) -> None:
    """For a reader beside writers that have not come to this partition: what a clean end left.

    Their recovery cuts nothing of that, and their first append follows it: whoever finds their slot
    void after the scan has read nothing else, and takes the slot once it is filled. After another
    end the tail may be cut.
    """
    core = log.core
    if not last.clean or core.deleted:
        raise LockTimeout(f"{log.topic}-{log.partition}: its writers have not recovered it yet")
    core.stand_apart()
    try:
        start = _scan(log, last, files.names(log.path), read_only=True)
        if core.publish_apart(log.topic_id, start):
            log.reader.bases()  # under these versions: with others, all is opened anew
    except (EoslogError, FileNotFoundError):
        if core.session != log.session.control.session:
            raise
    if core.published_segments_version != log.reader.version:
        log.reader.begin_anew()  # writers came to it meanwhile
    core.load(0, b"")  # what a reader beside writers knows of producers: nothing


def _recover(log: PartitionLog, last: LastSession, producer_expiration_ms: int) -> bool:
    if log.core.lock_for_recovery(LOCK_TIMEOUT_S) != S["APPENDED"]:
        raise LockTimeout(
            f"{log.topic}-{log.partition}: append lock not free within {LOCK_TIMEOUT_S:g} s"
        )
    try:
        if log.core.session == log.session.control.session:
            return False  # another process did it meanwhile
        names = files.names(log.path)
        left = [name for name in names if name.endswith((PREPARED, ".tmp"))]
        for name in left:
            files.remove(os.path.join(log.path, name))
        changed = finish_renames(log.path, names) or bool(left)
        standing = files.names(log.path) if changed else names
        # Before the scan touches the files. A clock that is looked at once may be wrong: it counts
        # as far as the last session had come; `ProducerExpiry` does the rest.
        now_s = min(time.time(), last_in_use(log.path, standing))
        horizon_ms = int(now_s * 1000) - producer_expiration_ms
        below = written_before(log.path, 1 << 62, horizon_ms / 1000) if horizon_ms > 0 else 0
        start = _scan(log, last, standing, read_only=False)
        found = files.names(log.path)  # the scan may have made files, and removed some
        changed |= drop_stray_snapshots(log.path, found, log.core.next_offset) or found != names
        if not last.clean:
            drop_torn_snapshots(log.path)
        if changed or not last.clean:
            files.fsync_dir(log.path)
        end = log.core.next_offset
        log.core.publish_recovered(
            log.topic_id, start, end, min(below, end), max(horizon_ms, 0) if below else 0
        )
        return True
    finally:
        log.core.unlock_after_recovery()


def _scan(log: PartitionLog, last: LastSession, names: list[str], *, read_only: bool) -> int:
    """Fold and check every segment from the recovery point on, cut a torn tail; the log's start.

    `names` is what lies in the partition's directory.
    """
    core, path = log.core, log.path
    half = unfinished_swap(names)
    if half is not None:
        raise StorageError(
            f"{os.path.join(path, half)}: a swap of segments is half done; "
            "open the directory for writing once, which finishes it",
            path=path,
        )
    bases = offsets_among(names, LOG)
    if not bases:
        if read_only:
            core.load(0, b"")
            return 0
        first = max(last.log_start, 0)
        for suffix in (LOG, INDEX, TIME_INDEX):
            files.close(files.open_file(os.path.join(path, file_name(first, suffix)), create=True))
        files.fsync_dir(path)
        bases = [first]
    log_start = max(last.log_start, bases[0])
    # A segment that ends at the recovery point was active when that was written: its indexes were
    # not synced with it.
    verify_from = (
        bases[-1]
        if last.clean
        else max((b for b in bases if b < last.recovery_point), default=bases[0])
    )
    base, entries = newest_snapshot(
        path, [b for b in bases if b <= verify_from], delete_bad=not read_only
    )
    core.load(base, entries)
    todo = [b for b in bases if b >= base]
    for i, current in enumerate(todo):
        if i and current > core.next_offset and _lost_before(log, current, core.next_offset, last):
            if not read_only:
                _drop_segments(path, todo[i:])
            break
        fds = _open_for_scan(log, current, read_only)
        try:
            core.use_segment(current, fds[0])
            verify = not last.clean and current >= verify_from
            doubtful = verify and not read_only and (log.strict or last.poisoned)
            if doubtful:
                files.forget_cached(fds[0])
            size = os.fstat(fds[0]).st_size
            valid, end, index, time_index, aborted, reason = core.scan_segment(size, verify)
            if reason is not None:
                _judge_tail(log, current, valid, end, size, reason, todo[i + 1 :], last)
            sealed = i + 1 < len(todo) and reason is None
            if sealed:
                time_index += core.final_time_entry()
            if read_only:
                log.segment(current).use_index(index, time_index, aborted)
            else:
                indexes = index, time_index, aborted
                _settle(log, current, fds, valid, size, indexes, verify, doubtful)
                if doubtful:
                    _rewrite(fds[0], _position(index, current, last.recovery_point), valid)
            if not read_only and not last.clean:
                _core.os_sync(fds[0])
            if (
                sealed
                and not read_only
                and not files.exists(os.path.join(path, file_name(end, SNAPSHOT)))
            ):
                write_snapshot(path, end, core.export_producers()[1])
        finally:
            core.use_segment(current, -1)
            for fd in fds:
                files.close(fd)
        if reason is not None:
            if not read_only:
                _drop_segments(path, todo[i + 1 :])
            break
    end = core.next_offset
    if end < last.recovery_point:  # not by the page: it may be another copy's (protocol.md row 6)
        raise CorruptRecord(
            f"{path}: the log ends at offset {end}, it was flushed up to offset "
            f"{last.recovery_point}: a file is missing or cut short. "
            "Nothing was cut: see `eoslog repair`"
        )
    return min(log_start, end)


def _lost_before(log: PartitionLog, base: int, end: int, last: LastSession) -> bool:
    """Whether a power cut took what lay between the end of a segment and the next one's base.

    What was never flushed is then gone with all behind it, as in `_judge_tail`. Below what was
    durable, or was cleaned, it is what Kafka's cleaner took from the segment's end; ours keeps the
    last batch.
    """
    if last.clean or end < _known_durable(log, last) or base <= log.reader.cleaned_to():
        return False
    text = "%s: cut at offset %d, though a segment begins at %d: what lay between was never flushed"
    logger.warning(text, log.path, end, base)
    return True


def _known_durable(log: PartitionLog, last: LastSession) -> int:
    """The offset up to which something says that the partition was flushed."""
    return max(last.recovery_point, log.session.durable_before(log.slot, log.topic_id))


def _size(path: str, base: int) -> int:
    return os.path.getsize(os.path.join(path, file_name(base, LOG)))


def _drop_segments(path: str, bases: list[int]) -> None:
    for base in bases:
        for suffix in (*_SUFFIXES, SNAPSHOT):
            files.remove(os.path.join(path, file_name(base, suffix)))


def _open_for_scan(log: PartitionLog, base: int, read_only: bool) -> tuple[int, int, int, int]:
    if not read_only:
        return log.writer_files.open(base)
    return files.open_file(os.path.join(log.path, file_name(base, LOG)), read_only=True), -1, -1, -1


def _judge_tail(
    log: PartitionLog,
    base: int,
    valid: int,
    end: int,
    size: int,
    reason: str,
    later: list[int],
    last: LastSession,
) -> None:
    """A bad batch is a torn tail unless something says that it was durable: then it is damage.

    Whole batches behind it prove nothing: of what was not flushed, a power cut leaves any pages.
    """
    where = os.path.join(log.path, file_name(base, LOG))
    whole = files.read_file(where)[:size]
    data = whole[valid:]
    if reason.startswith("base offset") and len(data) >= 8:
        found = int.from_bytes(data[:8], "big", signed=True)
        if found >= _least_end(whole[:valid], base):
            end = min(end, found)  # which of the two is wrong can't be told
    durable = _known_durable(log, last)
    if end < durable:
        raise CorruptRecord(
            f"{log.name} at offset {end}: {reason}; "
            f"it was durable (flushed up to offset {durable}). "
            "Nothing was cut: see `eoslog repair`",
            path=where,
            position=valid,
        )
    if last.clean:
        raise CorruptRecord(
            f"{log.name} at offset {end}: {reason}; {size - valid} bytes lie behind the "
            "end that the last session closed with, so they are not eoslog's. "
            "Nothing was cut: see `eoslog repair`",
            path=where,
            position=valid,
        )
    follower = valid_batch_after(data, end)
    behind = [b for b in later if _size(log.path, b)]
    if follower is not None or behind:
        at = f"byte {valid + follower}" if follower is not None else f"segment {behind[0]}"
        logger.warning(
            "%s: cut at byte %d, offset %d: %s; never flushed batches that were whole are cut with "
            "it, from %s on", where, valid, end, reason, at,
        )  # fmt: skip


def _least_end(data: bytes, base: int) -> int:
    """Where a segment's bytes would end if their last base offset, under no CRC, were too high.

    What comes next and says less is itself wrong: a torn sector took its base offset.
    """
    *before, last = [None, *_core.iter_batches(data, strict=False)]
    if last is None:
        return base
    start = base if before[-1] is None else before[-1].last_offset + 1
    return int(start + last.last_offset - last.base_offset + 1)


def valid_batch_after(data: bytes | mmap.mmap, offset: int, begin: int = 1) -> int | None:
    """Where a valid batch of a later offset begins, at a byte or behind it."""
    at = data.find(b"\x02", begin + 16)
    while at >= 0:
        start = at - 16
        size = int.from_bytes(data[start + 8 : start + 12], "big", signed=True) + 12
        base = int.from_bytes(data[start : start + 8], "big", signed=True)
        if 61 <= size <= len(data) - start and offset < base <= offset + (1 << 31):
            crc = int.from_bytes(data[start + 17 : start + 21], "big")
            if crc == _core.crc32c(data[start + 21 : start + size]):
                return start
        at = data.find(b"\x02", at + 1)
    return None


def _settle(
    log: PartitionLog,
    base: int,
    fds: tuple[int, int, int, int],
    valid: int,
    size: int,
    indexes: tuple[bytes, bytes, bytes],
    rewrite: bool,
    doubtful: bool,
) -> None:
    """Cut the log file to its valid bytes and make its index files say what the batches say."""
    aborted = indexes[2]
    if size != valid:
        if os.fstat(fds[0]).st_nlink > 1:  # an adopted broker's own file is behind it
            files.replace_by_copy(os.path.join(log.path, file_name(base, LOG)), valid)
        else:
            _core.os_truncate(fds[0], valid)
    for fd, content in zip(fds[1:], indexes, strict=True):
        if fd >= 0:
            _make_equal(fd, content, rewrite, doubtful)
    if fds[3] < 0 and aborted:
        files.write_file(os.path.join(log.path, file_name(base, TXN_INDEX)), aborted)


def _make_equal(fd: int, content: bytes, rewrite: bool, doubtful: bool) -> None:
    """Make an index file say `content`: in new blocks if writing the old ones may have failed, for
    ext4 keeps those as never written (`files.forget_cached`); else over the old, for it writes out
    at its close what was emptied first.
    """
    size = os.fstat(fd).st_size
    if not rewrite and size == len(content) and bytes(_core.os_pread(fd, size, 0)) == content:
        return
    kept = 0 if doubtful else min(size, len(content))
    if size > kept:
        _core.os_truncate(fd, kept)
    _core.os_pwrite(fd, content, 0)


def _position(index: bytes, base: int, offset: int) -> int:
    """Where a batch begins that lies at or before an offset."""
    entries = struct.iter_unpack(">ii", index)
    return max((position for delta, position in entries if base + delta <= offset), default=0)


def _rewrite(fd: int, start: int, size: int) -> None:
    """Write [start, size) again: the next sync means it even where the cache was not let go.

    Source: protocol.md row 7.
    """
    step = 1 << 20
    for position in range(start, size, step):
        wanted = min(step, size - position)
        data = _core.os_pread(fd, wanted, position)
        if len(data) != wanted:
            raise StorageError(f"{len(data)} bytes at {position}, expected {wanted}")
        _core.os_pwrite(fd, data, position)
