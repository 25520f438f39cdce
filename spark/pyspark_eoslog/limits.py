"""How far a micro-batch goes: `maxOffsetsPerTrigger`, `maxRecordsPerTrigger`, `maxBytesPerTrigger`.

Each is shared by what the partitions have waiting; where several are given the nearest end counts.
Records and bytes are read off the headers of the batches.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable

from eoslog import _core
from eoslog.errors import OffsetOutOfRange
from pyspark_eoslog.catalog import Catalog
from pyspark_eoslog.options import Options, PartitionKey
from pyspark_eoslog.segments import RELISTINGS, PartitionFiles

Offsets = dict[PartitionKey, int]
# (partition, share) -> (new end, how much of the share it took)
Step = Callable[[PartitionKey, int], tuple[int, int]]


def limited(catalog: Catalog, options: Options, begin: Offsets, end: Offsets) -> Offsets:
    """The ends moved back to where the limits of the options let a micro-batch go.

    It always moves on: one batch, or one offset, goes through any limit.
    """
    for _ in range(RELISTINGS):
        try:
            return _limited(catalog, options, begin, end)
        except FileNotFoundError:  # retention or the cleaner took a segment since it was listed
            continue
    raise OffsetOutOfRange("the segments of the next micro-batch change again and again")


def _limited(catalog: Catalog, options: Options, begin: Offsets, end: Offsets) -> Offsets:
    result = end
    if options.max_offsets_per_trigger is not None:
        result = by_offsets(begin, result, options.max_offsets_per_trigger)
    if options.max_records_per_trigger is not None:
        most = options.max_records_per_trigger
        result = _shared(begin, result, most, _records(catalog, options, begin, result), _first)
    if options.max_bytes_per_trigger is not None:
        result = _by_bytes(options, begin, result, options.max_bytes_per_trigger)
    return result


def by_offsets(begin: Offsets, end: Offsets, most: int) -> Offsets:
    """Ends moved back so that at most `most` offsets lie between, at least one."""

    def step(key: PartitionKey, share: int) -> tuple[int, int]:
        taken = min(end[key] - begin[key], share)
        return begin[key] + taken, taken

    if sum(end[key] - begin[key] for key in end) <= most:
        return end
    return _shared(begin, end, most, step, _first)


def _shared(
    begin: Offsets,
    end: Offsets,
    most: int,
    step: Step,
    rescue: Callable[[Offsets, Offsets], Offsets],
) -> Offsets:
    sizes = {key: end[key] - begin[key] for key in end}
    # The ones with little to give come first and get one at least, so that none waits for ever
    # behind others that have much; where there is not one for each, they take turns.
    waiting = sorted((key for key in end if sizes[key] > 0), key=lambda key: (sizes[key], key))
    if len(waiting) > most:
        first = _turn(begin) % len(waiting)
        waiting = waiting[first:] + waiting[:first]
    total = sum(sizes[key] for key in waiting)
    result = {key: begin[key] if sizes[key] > 0 else end[key] for key in end}
    carried, left = 0.0, most
    for key in waiting:
        # What one can't use goes to the next, and what it was given before its time is made good.
        carried += sizes[key] * most / total
        share = min(max(int(carried + 1e-9), 1), left)
        if share > 0:
            result[key], taken = step(key, share)
            carried -= taken
            left -= taken
    return result if result != begin or end == begin else rescue(begin, end)


def _turn(begin: Offsets) -> int:
    """Another number for each micro-batch, the same if it is planned again."""
    return zlib.crc32(repr(sorted(begin.items())).encode())


def _first(begin: Offsets, end: Offsets) -> Offsets:
    key = next(key for key in sorted(end) if end[key] > begin[key])
    return begin | {key: begin[key] + 1}


def _records(catalog: Catalog, options: Options, begin: Offsets, end: Offsets) -> Step:
    def step(key: PartitionKey, share: int) -> tuple[int, int]:
        if end[key] <= begin[key]:
            return end[key], 0
        files = _files(options, key)
        aborted = None
        if options.isolation == "read_committed":
            aborted = _core.AbortedTransactions(catalog.aborted(*key, begin[key], end[key]))
        stop, taken = files.advance_records(begin[key], end[key], share, aborted)
        return stop, taken

    return step


def _by_bytes(options: Options, begin: Offsets, end: Offsets, most: int) -> Offsets:
    files = {key: _files(options, key) for key in end if end[key] > begin[key]}
    sizes = {key: one.size(begin[key], end[key]) for key, one in files.items()}
    total = sum(sizes.values())
    if total <= most:
        return end
    ordered = sorted(files, key=lambda key: (sizes[key], key))
    first = sorted(files)[_turn(begin) % len(files)]  # gets a batch, however large it is
    result = dict(begin)
    carried, left = 0.0, most
    for key in (first, *(key for key in ordered if key != first)):
        carried += sizes[key] * most / total
        share = min(max(int(carried + 1e-9), 0), left)
        stop = files[key].advance(begin[key], end[key], share, at_least_one=False)
        if stop == begin[key]:
            one = files[key].advance(begin[key], end[key], 0)
            if key == first or files[key].size(begin[key], one) <= left:
                stop = one
        taken = files[key].size(begin[key], stop)
        result[key] = stop
        carried -= taken
        left -= taken
        if left <= 0:
            break
    return result


def _files(options: Options, key: PartitionKey) -> PartitionFiles:
    return PartitionFiles(os.path.join(options.path, f"{key[0]}-{key[1]}"))
