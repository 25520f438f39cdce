"""Segment swap: replacing old segments by a cleaned one, so that a crash leaves all-old or all-new.

    1  NNN.log.cleaned ...           written and flushed; the old segments are untouched
    2  directory flushed; .cleaned -> .swap, the log's file last; directory flushed
    3  the old segments -> .deleted; directory flushed
    4  .swap -> final name           the log's file first; directory flushed
    5  .deleted files are removed

| a crash leaves | the next process |
|---|---|
| a `.cleaned` file, with or without `.swap` files | removes both: all-old |
| `.swap` files only | removes old segments in that range of offsets, renames `.swap`: all-new |
| `.deleted` files only | removes them |

During steps 3 and 4, `cleaned_version` in the partition's slot is odd, and a list of segments made
then is not used. If the process dies there, the next process that gets the partition's cleaner lock
finishes the swap (`PartitionLog.finish_swap`).

Source: Kafka UnifiedLog.replaceSegments, LogLoader.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from eoslog.errors import IllegalState, StorageError
from eoslog.storage.fs import files
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.segment import seals
from eoslog.storage.segment.replacement import SEGMENT_SUFFIXES, remove_all
from eoslog.storage.segment.segment import (
    CLEANED,
    DELETED,
    SEAL,
    SNAPSHOT,
    SWAP,
    file_path,
)


def swap_in(log: PartitionLog, base: int, old: Sequence[int], cleaned_to: int) -> None:
    """Replace old segments by the `.cleaned` files of `base`, which are flushed.

    Args:
        log: the partition; the caller holds its cleaner lock.
        base: base of the new segment, the first one of `old`.
        old: bases of the segments that it replaces.
        cleaned_to: the offset at which the new segment ends.

    Durability: the new segments are durable on return.
    """
    path = log.path
    # The segment after the cleaned ones may have its name from an unflushed roll. Without it, the
    # new segment would be the last one, whose gaps are damage.
    files.fsync_dir(path)
    seal = seals.read(path, cleaned_to)
    # The seal describes the old segment. Step 2 makes its removal durable, so that no crash leaves
    # the seal with the new segment.
    files.remove(file_path(path, cleaned_to, SEAL))
    present = [s for s in SEGMENT_SUFFIXES if _exists(path, base, s + CLEANED)]
    for suffix in reversed(present):
        _rename(path, base, suffix + CLEANED, suffix + SWAP)
        files.failpoint("clean.swap.made")
    files.fsync_dir(path)
    files.failpoint("clean.swap.durable")
    try:
        log.mark_swap(True, cleaned_to)
    except IllegalState:  # a clean close of the log has begun: undo step 2
        for suffix in present:
            _rename(path, base, suffix + SWAP, suffix + CLEANED)
        raise
    files.failpoint("clean.swap.begun")
    for gone in old:
        suffixes = SEGMENT_SUFFIXES if gone == base else (*SEGMENT_SUFFIXES, SNAPSHOT, SEAL)
        for suffix in suffixes:
            if _exists(path, gone, suffix):
                _rename(path, gone, suffix, suffix + DELETED)
                files.failpoint("clean.old.renamed")
    # A power loss may keep some renames and lose others, in any order. So the removal of the old
    # names must be durable before the new segment gets its name.
    files.fsync_dir(path)
    files.failpoint("clean.old.durable")
    for suffix in present:
        _rename(path, base, suffix + SWAP, suffix)
        files.failpoint("clean.swap.named")
    files.fsync_dir(path)
    files.failpoint("clean.swap.placed")
    log.mark_swap(False, cleaned_to)
    files.failpoint("clean.swap.published")
    with contextlib.suppress(StorageError):  # readers scan a segment without a seal
        snapshot = seals.NO_FILE if seal is None else seal.snapshot  # unchanged by the swap
        seals.seal_files(path, log.topic_id, base, cleaned_to, snapshot)
    remove_all(path, DELETED)


def _exists(path: str, base: int, suffix: str) -> bool:
    return files.exists(file_path(path, base, suffix))


def _rename(path: str, base: int, suffix: str, new_suffix: str) -> None:
    files.rename(file_path(path, base, suffix), file_path(path, base, new_suffix))
