"""Limits of a micro-batch: `maxOffsetsPerTrigger` and its counterparts.

`maxRecordsPerTrigger` counts records, `maxBytesPerTrigger` bytes; both come from the headers of the
batches. A limit is divided among the partitions in proportion to their backlog. If several limits
are set, the nearest end counts.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable

from eoslog.connector import AbortedTransactions
from eoslog.connector.byte_ranges import RELISTINGS, PartitionFiles
from eoslog.errors import OffsetOutOfRange
from pyspark_eoslog.options.options import Options, PartitionKey
from pyspark_eoslog.read.catalog import Catalog

Offsets = dict[PartitionKey, int]
# (partition, share) -> (new end, used part of the share)
Step = Callable[[PartitionKey, int], tuple[int, int]]


def limited(catalog: Catalog, options: Options, begin: Offsets, end: Offsets) -> Offsets:
    """Lower the ends to the limits of the options.

    A micro-batch always makes progress: any limit admits one batch or one offset.
    """
    for _ in range(RELISTINGS):
        try:
            return _limited(catalog, options, begin, end)
        except FileNotFoundError:  # retention or the cleaner removed a segment after the listing
            continue
    raise OffsetOutOfRange("segments changed in each attempt to plan the next micro-batch; retry")


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
    """Lower the ends so that at most `most` offsets, and at least one, remain."""

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
    # Partitions with a small backlog come first and get at least one, so that none waits
    # indefinitely for others with a large one. If there is not one for each, they rotate.
    waiting = sorted((key for key in end if sizes[key] > 0), key=lambda key: (sizes[key], key))
    if len(waiting) > most:
        first = _turn(begin) % len(waiting)
        waiting = waiting[first:] + waiting[:first]
    total = sum(sizes[key] for key in waiting)
    result = {key: begin[key] if sizes[key] > 0 else end[key] for key in end}
    carried, left = 0.0, most
    for key in waiting:
        # Carry an unused share over to the next partition, and subtract what was given in advance.
        carried += sizes[key] * most / total
        share = min(max(int(carried + 1e-9), 1), left)
        if share > 0:
            result[key], taken = step(key, share)
            carried -= taken
            left -= taken
    return result if result != begin or end == begin else rescue(begin, end)


def _turn(begin: Offsets) -> int:
    """Return a number that differs between micro-batches, but not between replans."""
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
            aborted = AbortedTransactions(catalog.aborted(*key, begin[key], end[key]))
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
