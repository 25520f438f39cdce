"""Internal names for connectors to other engines, such as the Spark package.

A connector reads segment files in processes of its own, and stages batches that one process
publishes. Everything else that it needs is public: `eoslog.open` and `Log`. Names are imported at
their first use, so that a task loads only what it needs. They may change in any version.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eoslog._core import (
        AbortedTransactions,
        Batch,
        RecordAccumulator,
        TransactionFold,
        batches_end,
        crc32c,
        iter_batches,
        os_pread,
    )
    from eoslog.client.arrow.produce import produce_stream
    from eoslog.client.arrow.schema import nulls, numbers, primitive
    from eoslog.client.scan.pieces import Piece, in_order
    from eoslog.client.scan.scan import Scan, Source
    from eoslog.connector.publish import Staged
    from eoslog.connector.staging import (
        STAGING,
        Attempt,
        AttemptWriter,
        begin_job,
        discard,
        discard_job,
        retire,
    )
    from eoslog.log import Log
    from eoslog.storage.broker.lock import refuse as refuse_running_broker
    from eoslog.storage.directory.offset_checkpoints import bounds_of
    from eoslog.storage.directory.offset_checkpoints import read as read_checkpoint
    from eoslog.storage.directory.offset_jumps import damage_at_end
    from eoslog.storage.format.checkpoints import LOG_START_CHECKPOINT, read_partition_metadata
    from eoslog.storage.format.legacy_messages import LegacyBatch, is_legacy
    from eoslog.storage.format.legacy_messages import as_v2 as legacy_as_v2
    from eoslog.storage.fs.files import close as close_file
    from eoslog.storage.fs.files import failpoint, naming, open_file, read_file
    from eoslog.storage.fs.filesystem import is_local
    from eoslog.storage.segment.listing import settled_segments
    from eoslog.storage.segment.seals import refuted as refuted_by_seal
    from eoslog.storage.segment.segment_files import (
        SegmentFiles,
        fault_of,
        feed_transactions,
        list_snapshots,
        offset_of_name,
        open_before,
        partition_of_path,
        read_snapshot,
    )

_WHERE = {
    "_core": "AbortedTransactions Batch RecordAccumulator TransactionFold batches_end crc32c "
    "iter_batches os_pread",
    "client.arrow.schema": "nulls numbers primitive",
    "client.arrow.produce": "produce_stream",
    "client.scan.pieces": "Piece in_order",
    "connector.publish": "Staged",
    "client.scan.scan": "Scan Source",
    "connector.staging": "STAGING Attempt AttemptWriter begin_job discard discard_job retire",
    "storage.format.checkpoints": "LOG_START_CHECKPOINT read_partition_metadata",
    "storage.fs.files": "close_file=close failpoint naming open_file read_file",
    "storage.fs.filesystem": "is_local",
    "storage.format.legacy_messages": "LegacyBatch is_legacy legacy_as_v2=as_v2",
    "storage.directory.offset_checkpoints": "bounds_of read_checkpoint=read",
    "storage.directory.offset_jumps": "damage_at_end",
    "storage.broker.lock": "refuse_running_broker=refuse",
    "storage.segment.seals": "refuted_by_seal=refuted",
    "storage.segment.segment_files": "SegmentFiles fault_of feed_transactions list_snapshots "
    "offset_of_name open_before partition_of_path read_snapshot",
    "storage.segment.listing": "settled_segments",
}
_FOUND_IN = {
    name.partition("=")[0]: (module, name.rpartition("=")[2])
    for module, names in _WHERE.items()
    for name in names.split()
}

__all__ = [  # noqa: RUF022
    "AbortedTransactions", "Batch", "RecordAccumulator", "TransactionFold", "batches_end", "crc32c",
    "iter_batches", "os_pread", "nulls", "numbers", "primitive", "produce_stream", "Piece",
    "in_order", "Staged", "Scan", "Source", "STAGING", "Attempt", "AttemptWriter", "begin_job",
    "discard", "discard_job", "retire", "LOG_START_CHECKPOINT",
    "read_partition_metadata", "close_file", "failpoint", "naming", "open_file", "read_file",
    "is_local", "LegacyBatch", "legacy_as_v2", "is_legacy", "bounds_of", "read_checkpoint",
    "refuse_running_broker", "SegmentFiles", "feed_transactions", "list_snapshots",
    "offset_of_name", "open_before", "partition_of_path", "read_snapshot", "settled_segments",
    "aborted_transactions", "damage_at_end", "refuted_by_seal", "fault_of",
]  # fmt: skip


def aborted_transactions(
    log: Log, topic: str, partition: int, start: int, end: int
) -> list[tuple[int, int, int]]:
    """List the aborted transactions in [start, end), which read_committed skips.

    Returns:
        (producer id, first offset, marker offset) of each.
    """
    return list(log._engine.partition(topic, partition).aborted(start, end))


def __getattr__(name: str) -> Any:
    if name not in _FOUND_IN:
        raise AttributeError(f"module 'eoslog.connector' has no attribute {name!r}")
    module, there = _FOUND_IN[name]
    value = getattr(import_module(f"eoslog.{module}"), there)
    globals()[name] = value
    return value
