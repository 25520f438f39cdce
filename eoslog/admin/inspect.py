"""Contents of Kafka's files as plain data, as `eoslog dump --format json` prints.

| path | result |
|---|---|
| partition directory | ends, epochs, segments, snapshots; what readers of each isolation get |
| `.log`, or any other file of record batches | one segment, with the indexes next to it |
| `.log.cut-MS` | the same for the bytes that a repair removed |
| `.index` `.timeindex` `.txnindex` | `base_offset` and the entries |
| `.snapshot` | `snapshots`, with one entry |
| checkpoints, `partition.metadata`, `meta.properties`, `quorum-state` | the parsed lines |

Bytes are in hex, null is None, timestamps are ms, ends are exclusive, `last_` is inclusive. Nothing
is written, and damage does not stop the decoding: `error` or `corrupt` describes it, and what is
readable after it follows. `preallocated` counts the zeros after the last batch. Messages of formats
0 and 1 are shown as batches too, a compressed set as one.
"""

from __future__ import annotations

import json
import os
from typing import Any

from eoslog import _core
from eoslog._util.argument_types import explained
from eoslog._util.arguments import as_path
from eoslog.admin.record_schemas import Decoder, decoder_of
from eoslog.errors import CorruptRecord
from eoslog.storage.broker import lock as running_broker
from eoslog.storage.format import checkpoints
from eoslog.storage.format.legacy_messages import LegacyBatch
from eoslog.storage.fs import files
from eoslog.storage.segment import kept_copies, segment_files
from eoslog.storage.segment.segment import CLEANED, DELETED, SWAP
from eoslog.storage.segment.segment_files import SegmentFiles

__all__ = ["batch_as_dict", "inspect"]

CONTROL_TYPES = (
    "ABORT", "COMMIT", "LEADER_CHANGE", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER", "KRAFT_VERSION",
    "KRAFT_VOTERS",
)  # fmt: skip
QUORUM_STATE = "quorum-state"
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")


@explained
def inspect(
    path: str | os.PathLike[str],
    *,
    records: bool = True,
    decoder: str | None = None,
    read_only_anyway: bool = False,
) -> dict[str, Any]:
    """Decode a partition directory, a `.log` or another Kafka file.

    Args:
        path: the file or partition directory, of Kafka or of eoslog.
        records: False leaves out the records and the lists of offsets, and is much faster.
        decoder: "offsets" (`__consumer_offsets`), "transactions" (`__transaction_state`),
            "staged" (`__staged_transactions`) or "positions" (`__positions`) adds `decoded` to each
            record. RocketMQ's names of the second and third, `RMQ_SYS_TRANS_OP_HALF_TOPIC` and
            `RMQ_SYS_TRANS_HALF_TOPIC`, work too.
        read_only_anyway: read the directory of a running broker too; the batch that it is
            appending may look damaged.

    Returns:
        Nested dicts and lists that `json.dumps` accepts.

    Raises:
        StorageError: if the path does not exist or cannot be read.
        CorruptRecord: if the path is an index, snapshot or checkpoint that cannot be decoded.
        ConfigError: if a directory is not a partition directory, or the decoder is unknown.
        LockTimeout: if a broker has the directory open.
    """
    path = as_path(path)
    decode = decoder_of(decoder)
    if not read_only_anyway:
        running_broker.refuse(path)
    if os.path.isdir(path):
        return _partition(path, records, decode)
    # What a crash left half renamed is what it was.
    name = os.path.basename(path)
    for suffix in (SWAP, CLEANED, DELETED):
        name = name.removesuffix(suffix)
    name = kept_copies.name_without_mark(name)  # what a repair took out
    if os.path.exists(path):
        base = segment_files.offset_of_name(name) or 0
        if name.endswith(".index"):
            return {"base_offset": base, "offset_index": _offset_index(path, base)}
        if name.endswith(".timeindex"):
            return {"base_offset": base, "time_index": _time_index(path, base)}
        if name.endswith(".txnindex"):
            return {"base_offset": base, "txn_index": _txn_index(path)}
        if name.endswith(".snapshot"):
            return {"snapshots": {name: _snapshot(path)}}
        if name == checkpoints.LEADER_EPOCH_CHECKPOINT:
            return {"leader_epochs": _leader_epochs(path)}
        if name.endswith("-checkpoint"):
            offsets = checkpoints.read_offsets(path)
            return {"offsets": [[t, p, offset] for (t, p), offset in offsets.items()]}
        if name in (checkpoints.PARTITION_METADATA, checkpoints.META_PROPERTIES):
            return _properties(path)
        if name in (checkpoints.CLEAN_SHUTDOWN, QUORUM_STATE):
            return dict(json.loads(files.read_file(path)))
    (segment,) = segment_files.list_segments(path)
    return _segment(segment, records, decode)[0]


def batch_as_dict(
    batch: _core.Batch | LegacyBatch, *, records: bool = True, decode: Decoder | None = None
) -> dict[str, Any]:
    """One batch in the form of `inspect`."""
    valid = batch.valid
    found: dict[str, Any] = {
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "position": batch.position,
        "size": batch.size,
        "magic": batch.magic,
        "crc": batch.crc,
        "valid": valid,
        "compression": batch.compression,
        "timestamp_type": TIMESTAMP_TYPES[batch.timestamp_type]
        if batch.magic
        else "NoTimestampType",
        "max_timestamp": batch.max_timestamp,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "last_sequence": batch.last_sequence,
        "leader_epoch": batch.leader_epoch,
        "transactional": batch.transactional,
        "control": batch.control,
        "delete_horizon_ms": batch.delete_horizon_ms,
        "count": batch.count,
    }
    if not records:
        return found
    found["records"] = []
    if not valid:
        found["error"] = segment_files.fault_of(batch)
        return found
    try:
        if isinstance(batch, LegacyBatch):
            found["records"] = [
                _record(batch, *fields) | ({} if whole else {"valid": False})
                for fields, whole in batch.unfolded()
            ]
        found["records"] = [_record(batch, *fields) for fields in batch.records()]
        if decode is not None and not batch.control:
            for shown, (_, _, key, value, _) in zip(found["records"], batch.records(), strict=True):
                shown["decoded"] = decode(key, value)
    except CorruptRecord as error:
        found["error"] = str(error)
    return found


def _record(
    batch: _core.Batch | LegacyBatch,
    offset: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
) -> dict[str, Any]:
    sequence = batch.base_sequence
    if sequence >= 0:
        sequence = (sequence + offset - batch.base_offset) & 0x7FFFFFFF
    found: dict[str, Any] = {
        "offset": offset,
        "timestamp": timestamp,
        "sequence": sequence,
        "key": _hex(key),
        "value": _hex(value),
        "headers": [[name, _hex(content)] for name, content in headers],
    }
    if batch.control:
        kind = batch.control_type
        known = kind is not None and 0 <= kind < len(CONTROL_TYPES)
        found["control_type"] = CONTROL_TYPES[kind] if kind is not None and known else "UNKNOWN"
        found["coordinator_epoch"] = batch.coordinator_epoch
    return found


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def _segment(
    segment: SegmentFiles, records: bool, decode: Decoder | None
) -> tuple[dict[str, Any], int]:
    """The segment, and how many of its bytes recovery would keep."""
    batches: list[dict[str, Any]] = []
    corrupt: str | None = None
    sound, damaged = 0, False
    end: int | None = 0
    blank = 0
    while end is not None and end < segment.size:
        start = end
        try:
            for batch in segment.batches(start):
                batches.append(batch_as_dict(batch, records=records, decode=decode))
                damaged = damaged or not batches[-1]["valid"] or "error" in batches[-1]
                start = batch.position + batch.size
                if not damaged:
                    sound = start
            if start == segment.size:
                break
            rest = segment.size - start
            if segment.blank_from(start):
                blank = rest
                break
            corrupt = corrupt or f"{rest} bytes at position {start} are not a complete batch"
        except CorruptRecord as error:
            corrupt = corrupt or str(error)
        damaged = True
        end = segment.next_valid(start, batches[-1]["last_offset"] if batches else -1)
    found: dict[str, Any] = {
        "base_offset": segment.base_offset,
        "size": segment.size,
        "offset_index": _offset_index(segment.with_suffix("index"), segment.base_offset),
        "time_index": _time_index(segment.with_suffix("timeindex"), segment.base_offset),
        "txn_index": [],
        "batches": batches,
    }
    try:
        found["txn_index"] = _txn_index(segment.with_suffix("txnindex"))
    except CorruptRecord as error:
        found["error"] = str(error)
    if blank:
        found["preallocated"] = blank
    if corrupt is not None:
        found["corrupt"] = corrupt
    return found, segment.size if blank and sound + blank == segment.size else sound


def _partition(path: str, records: bool, decode: Decoder | None) -> dict[str, Any]:
    segments = segment_files.list_segments(path)
    found = []
    fold = _core.TransactionFold(segment_files.open_before(segments))
    log_end, whole = segments[0].base_offset, True
    for segment in segments:
        description, sound = _segment(segment, records, decode)
        found.append(description)
        if whole:  # recovery deletes everything after the first damage
            for window in segment.windows(0, sound or 1, end=sound):
                fold.feed(window.data)
            log_end = max(segment.base_offset, fold.next_offset)
            whole = sound == description["size"]
    stable = max(min([log_end, *fold.open.values()]), segments[0].base_offset)
    snapshots = segment_files.list_snapshots(path)
    result: dict[str, Any] = {
        "log_end_offset": log_end,
        "last_stable_offset": stable,
        "leader_epochs": [],
        "segments": found,
        "snapshots": {},
    }
    try:
        epochs = os.path.join(path, checkpoints.LEADER_EPOCH_CHECKPOINT)
        result["leader_epochs"] = _leader_epochs(epochs)
    except CorruptRecord as error:
        result["error"] = str(error)
    for name in snapshots:
        try:
            result["snapshots"][name] = _snapshot(os.path.join(path, name))
        except CorruptRecord as error:
            result["snapshots"][name] = {"error": str(error)}
    if records:
        aborted = _core.AbortedTransactions(fold.aborted)
        result["read_committed_offsets"] = _visible(found, stable, aborted)
        result["read_uncommitted_offsets"] = _visible(found, log_end, None)
    return result


def _visible(
    segments: list[dict[str, Any]], end: int, aborted: _core.AbortedTransactions | None
) -> list[int]:
    """Offsets of the data records below `end` that no aborted transaction holds."""
    return [
        record["offset"]
        for segment in segments
        for batch in segment["batches"]
        if not batch["control"]
        and not (
            aborted is not None
            and batch["transactional"]
            and (batch["producer_id"], batch["base_offset"]) in aborted
        )
        for record in batch["records"]
        if record["offset"] < end
    ]


def _offset_index(path: str, base: int) -> list[list[int]]:
    return [list(entry) for entry in segment_files.read_offset_index(path, base)]


def _time_index(path: str, base: int) -> list[list[int]]:
    return [list(entry) for entry in segment_files.read_time_index(path, base)]


def _txn_index(path: str) -> list[dict[str, int]]:
    return [entry._asdict() for entry in segment_files.read_txn_index(path)]


def _snapshot(path: str) -> list[dict[str, int | None]]:
    # On disk they are in the order of a hash map.
    entries = sorted(segment_files.read_snapshot(path), key=lambda entry: entry.producer_id)
    found = [entry._asdict() for entry in entries]
    for entry in found:
        del entry["offset_delta"]  # of no use without the batch that it tells the size of
    return found


def _leader_epochs(path: str) -> list[list[int]]:
    return [list(entry) for entry in checkpoints.read_leader_epochs(path)]


def _properties(path: str) -> dict[str, str]:
    lines = files.read_file(path).decode("utf-8", "replace").splitlines()
    separator = ":" if os.path.basename(path) == checkpoints.PARTITION_METADATA else "="
    pairs = (line.partition(separator) for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}
