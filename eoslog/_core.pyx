# cython: language_level=3, binding=True, embedsignature=True, embedsignature.format=python
# cython: auto_pickle=False, autotestdict=False, boundscheck=False, wraparound=False
# cython: initializedcheck=False, cdivision=True
"""Compiled core of eoslog: record batches, segments, producer state. Private: use `eoslog`.

This file only includes the modules below. Inline functions without Python are in `_core/*/*.pxd`.
"""
cimport cython

import os
import struct
from os import urandom

from eoslog import errors
shown = errors.shown_value

include "_core/format/fault.pxi"
include "_core/hashes/hashes.pxi"
include "_core/format/compression.pxi"
include "_core/format/field_reader.pxi"
include "_core/format/batch_builder.pxi"
include "_core/coordinator/transaction_records.pxi"
include "_core/partition/producer_state.pxi"
include "_core/partition/producer_snapshot.pxi"
include "_core/shared/control_file.pxi"
include "_core/sys/os_calls.pxi"
include "_core/sys/try_lock.pxi"
include "_core/sys/wakeup.pxi"
include "_core/shared/group_commit.pxi"
include "_core/shared/partition_name.pxi"
include "_core/partition/segment_state.pxi"
include "_core/partition/partition_state.pxi"
include "_core/partition/partition_lock.pxi"
include "_core/shared/consistent_cut.pxi"
include "_core/partition/segment_roll.pxi"
include "_core/partition/recovery.pxi"
include "_core/partition/carried_batches.pxi"
include "_core/partition/append_validation.pxi"
include "_core/partition/conditional_append.pxi"
include "_core/partition/partition.pxi"
include "_core/partition/segment_ingest.pxi"
include "_core/coordinator/transaction_table.pxi"
include "_core/format/record_batch.pxi"
include "_core/compaction/offset_map.pxi"
include "_core/consumer/aborted_transactions.pxi"
include "_core/partition/leader_epochs.pxi"
include "_core/format/records.pxi"
include "_core/consumer/fetched_records.pxi"
include "_core/columns/binary_column.pxi"
include "_core/columns/column_types.pxi"
include "_core/columns/column_fill.pxi"
include "_core/columns/column_decoder.pxi"
include "_core/columns/arrow_export.pxi"
include "_core/format/batch_walk.pxi"
include "_core/producer/sealed_batch.pxi"
include "_core/producer/partition_builders.pxi"
include "_core/producer/column_input.pxi"
include "_core/producer/accumulator.pxi"
include "_core/producer/bulk_encoder.pxi"

__all__ = (
    "RecordAccumulator",
    "SealedBatch",
    "AbortedTransactions",
    "Batch",
    "ColumnDecoder",
    "Decision",
    "FetchedRecords",
    "FoldedTransactions",
    "LeaderEpochs",
    "OffsetMap",
    "OneThread",
    "PartitionName",
    "RecordPolling",
    "Record",
    "RecordDecoder",
    "TransactionFold",
    "TransactionTable",
    "TransactionTimes",
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
    "os_forget",
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
