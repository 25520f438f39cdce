"""How far a micro-batch goes: `maxOffsetsPerTrigger`, `maxRecordsPerTrigger`, `maxBytesPerTrigger`.

Each is shared by what the partitions have waiting; where several are given the nearest end counts.
Records and bytes are read off the headers of the batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from eoslog import _core
from pyspark_eoslog.catalog import Catalog
from pyspark_eoslog.options import Options, PartitionKey
from pyspark_eoslog.segments import PartitionFiles

Offsets = dict[PartitionKey, int]
# (partition, share) -> (new end, how much of the share it took)
Step = Callable[[PartitionKey, int], tuple[int, int]]


def limited(catalog: Catalog, options: Options, begin: Offsets, end: Offsets) -> Offsets:
    """The ends moved back to where the limits of the options let a micro-batch go.

    It always moves on: one batch, or one offset, goes through any limit.
    """
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
    sizes = {key: end[key] - begin[key] for key in sorted(end)}
    total = sum(sizes.values())
    result: Offsets = {}
    carried = 0.0
    for key, size in sizes.items():
        # What one can't use goes to the next, so that rounding never leaves the sum at zero.
        carried += size * most / total if total else 0
        result[key], taken = step(key, int(carried + 1e-9))
        carried -= taken
    return result if result != begin or end == begin else rescue(begin, end)


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
    result = dict(begin)
    carried = 0.0
    for key in sorted(files):
        carried += sizes[key] * most / total
        stop = files[key].advance(begin[key], end[key], int(carried + 1e-9), at_least_one=False)
        carried -= files[key].size(begin[key], stop)
        result[key] = stop
    if result == begin:  # no batch fits: one goes all the same, of the partition that waits most
        key = max(sizes, key=lambda one: (sizes[one], one))
        result[key] = files[key].advance(begin[key], end[key], 0)
    return result


def _files(options: Options, key: PartitionKey) -> PartitionFiles:
    return PartitionFiles(os.path.join(options.path, f"{key[0]}-{key[1]}"))
