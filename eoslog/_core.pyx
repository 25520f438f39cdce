# cython: language_level=3, binding=True, embedsignature=True, embedsignature.format=python
# cython: auto_pickle=False, autotestdict=False, boundscheck=False, wraparound=False
# cython: initializedcheck=False, cdivision=True
"""Compiled core of eoslog: record batches, segments, producer state. Private: use `eoslog`.

A facade: classes live in the chapters included below, leaf functions in `_core/*.pxd`.
"""
cimport cython

import os
from os import urandom

from eoslog import errors

include "_core/fault.pxi"
include "_core/hashes.pxi"
include "_core/codec.pxi"
include "_core/batch_builder.pxi"
include "_core/transaction_records.pxi"
include "_core/producer_state.pxi"
include "_core/producer_entries.pxi"
include "_core/control.pxi"
include "_core/files.pxi"
include "_core/turns.pxi"
include "_core/bell.pxi"
include "_core/group_commit.pxi"
include "_core/segment_fold.pxi"
include "_core/partition_state.pxi"
include "_core/partition_lock.pxi"
include "_core/instant.pxi"
include "_core/segment_roll.pxi"
include "_core/recovery.pxi"
include "_core/incoming_batches.pxi"
include "_core/conditional_append.pxi"
include "_core/partition.pxi"
include "_core/adoption.pxi"
include "_core/record_batch.pxi"
include "_core/offset_map.pxi"
include "_core/aborted.pxi"
include "_core/records.pxi"
include "_core/polling.pxi"
include "_core/cells.pxi"
include "_core/column_types.pxi"
include "_core/column_runs.pxi"
include "_core/columns.pxi"
include "_core/arrow_export.pxi"
include "_core/walk.pxi"
include "_core/sealed_batch.pxi"
include "_core/builders.pxi"
include "_core/columns_in.pxi"
include "_core/accumulator.pxi"
include "_core/bulk.pxi"

__all__ = (
    "RecordAccumulator",
    "SealedBatch",
    "AbortedTransactions",
    "Batch",
    "ColumnDecoder",
    "FetchedRecords",
    "OffsetMap",
    "OneThread",
    "RecordPolling",
    "Record",
    "TransactionFold",
    "ControlFile",
    "Partition",
    "SegmentFile",
    "FAULT_CALLS",
    "MAX_SLOTS",
    "STATUS",
    "adopt_segment",
    "arm_fault",
    "arrow_array",
    "arrow_schema",
    "arrow_stream",
    "disarm_faults",
    "fault_count",
    "fork_generation",
    "guard_across_fork",
    "os_open",
    "os_pread",
    "os_pwrite",
    "os_rename",
    "os_sync",
    "os_truncate",
    "os_unlink",
    "read_instant",
    "release_guard",
    "TryFileLock",
    "TryMutex",
    "try_lock",
    "find_in_index",
    "find_in_time_index",
    "debug_locks",
    "lock_times",
    "unlock",
    "transaction_batch",
    "transaction_ends", "walk_batches",
    "transaction_value",
    "batches_end",
    "build_batch",
    "build_marker",
    "crc32c",
    "crc32c_combine",
    "crc32c_backend",
    "crc32c_software",
    "decode_records",
    "empty_batch",
    "first_beyond_time",
    "first_older",
    "first_without_key",
    "iter_batches",
    "java_hash",
    "murmur2",
    "partition_for_key",
    "produce_columns",
    "recompressed",
    "set_codecs",
    "stamp_batch",
    "stamp_horizon",
)
