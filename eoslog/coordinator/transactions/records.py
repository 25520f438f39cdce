"""The format of `__transaction_state` records.

This module reads them; the core writes values.

Keys and values are Kafka's, with value version 1 (flexible), so that Kafka's tools can read them.
eoslog's additions are in tagged fields from 10000 on, which those tools skip.

    key     i16 0, transactional id string
    value   i16 1, producer id i64, epoch i16, timeout i32, state i8,
            partitions: compact nullable array of (topic compact string, compact array of i32, tags)
            last update i64, start i64, tags; null = the id is expired

    tag     written on         bytes
    0       after a rotation   previous producer id i64
    1       PREPARE_*          next producer id i64, if the epoch is exhausted
    2       always             client transaction version i16 = 2
    10000   PREPARE_*          spans: compact array of (topic compact string, topic id uuid,
                               compact array of (partition i32, first i64, last i64)); first and
                               last offset of the transaction, -1 if it wrote nothing
    10001   if it is known     owner: process number i32, nonce u64 of the process that holds the id
    10003   PREPARE_*, COMPLETE_*, and Empty after them
                               decided: producer id i64, epoch of the data i16, commit i8, cause i8
    10004   after a bump       last producer epoch i16
    10005   Ongoing            CLOCK_MONOTONIC at its begin, in ns, i64: valid while its owner is
                               alive
    10006   PREPARED, PARKED   the state i8 and transaction.timeout.ms i32; the state of the value
                               is Ongoing then, and its timeout 2^31 - 1, as of Kafka's transactions
                               with two-phase commit (KIP-939)

A prepared transaction has two more records, with keys of other versions (`prepared_records.py`).

The value of an id is its newest record. A decision is kept longer, by (producer id, epoch of the
data), until all its markers are durable (`log.py`).

After a crash, the recovery of the partition keeps complete records up to some offset. `resolver.py`
then ends the transactions that are unfinished.

Source: Kafka `TransactionLog`, `TransactionLogValue.json`.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from eoslog.coordinator.transactions.state import (
    NO_ENTRIES,
    NO_EPOCH,
    NO_ID,
    NO_PARTITIONS,
    TRANSACTION_VERSION,
    Cause,
    Decided,
    OffsetSpan,
    TransactionMetadata,
    TransactionState,
)
from eoslog.errors import CorruptRecord
from eoslog.model import TopicPartition
from eoslog.storage.format.serde import Reader, Writer
from eoslog.storage.segment.carried_batches import CarriedBatches

TAG_PREVIOUS_ID, TAG_NEXT_ID, TAG_CLIENT_VERSION = 0, 1, 2
TAG_SPANS, TAG_OWNER = 10000, 10001  # earlier versions wrote offsets of the markers as 10002
TAG_DECIDED, TAG_LAST_EPOCH, TAG_OPENED, TAG_UNDECIDED, TAG_CARRIED = range(10003, 10008)
_HEAD, _TIMES = struct.Struct(">hqhib"), struct.Struct(">qq")
_OWNER, _DECIDED = struct.Struct(">iQ"), struct.Struct(">qh?b")
_UNDECIDED = struct.Struct(">bi")
_CAUSES = {int(cause): cause for cause in Cause}
_STATES = {int(state): state for state in TransactionState}
_new = tuple.__new__  # creates a named tuple from a complete tuple of fields


@lru_cache(maxsize=4096)
def encode_key(transactional_id: str) -> bytes:
    """Encode the key of a transactional id's records."""
    return Writer().i16(0).string(transactional_id).take()


def decode_key(data: bytes) -> str | None:
    """Return the id, or None for an unknown key version, which readers skip."""
    reader = Reader(data)
    return reader.string() if reader.i16() == 0 else None


def _decode_spans(data: bytes) -> dict[TopicPartition, OffsetSpan]:
    reader, spans = Reader(data), {}
    for _ in range(reader.compact_array()):
        topic, topic_id = reader.compact_string(), reader.uuid()
        for _ in range(reader.compact_array()):
            tp = TopicPartition(topic, reader.i32())
            spans[tp] = OffsetSpan(reader.i64(), reader.i64(), topic_id)
    return spans


def _integer(data: bytes | None, size: int, default: int) -> int:
    return default if data is None else int.from_bytes(data[:size], "big", signed=True)


def _enum_state(number: int, transactional_id: str) -> TransactionState:
    try:
        return _STATES[number]
    except KeyError:
        raise CorruptRecord(
            f"transactional id {transactional_id!r}: unknown transaction state {number}; read it "
            "with the eoslog version that wrote it"
        ) from None


def decode_value(transactional_id: str, data: bytes, offset: int = -1) -> TransactionMetadata:
    """Decode a value; version 0 is classic, 1 flexible. Unknown tags are skipped.

    Raises:
        CorruptRecord: if the bytes are not such a value, or the version is unknown.
    """
    reader = Reader(data)
    version, producer_id, producer_epoch, timeout_ms, number = reader.unpack(_HEAD)
    if not 0 <= version <= 1:
        raise CorruptRecord(
            f"transactional id {transactional_id!r}: unknown version of its state",
            expected="0 or 1",
            found=version,
        )
    flexible = version >= 1
    array = reader.compact_array if flexible else reader.array
    string = reader.compact_string if flexible else reader.string
    state = _enum_state(number, transactional_id)
    partitions = set()
    for _ in range(array()):
        topic = string()
        for _ in range(array()):
            partitions.add(TopicPartition(topic, reader.i32()))
        if flexible:
            reader.tagged()
    last_update, start = reader.unpack(_TIMES)
    tags = reader.tagged() if flexible else {}
    if TAG_UNDECIDED in tags:
        number, timeout_ms = Reader(tags[TAG_UNDECIDED]).unpack(_UNDECIDED)
        state = _enum_state(number, transactional_id)

    # In the order of the fields, because keywords take four times as long, and an opening process
    # reads thousands.
    metadata = _new(TransactionMetadata, (
        transactional_id, producer_id, producer_epoch, timeout_ms, state,
        frozenset(partitions) if partitions else NO_PARTITIONS,
        start, last_update,
        _integer(tags.get(TAG_PREVIOUS_ID), 8, NO_ID),
        _integer(tags.get(TAG_NEXT_ID), 8, NO_ID),
        _integer(tags.get(TAG_LAST_EPOCH), 2, NO_EPOCH),
        _integer(tags.get(TAG_CLIENT_VERSION), 2, 0),
        _decode_spans(tags[TAG_SPANS]) if TAG_SPANS in tags else NO_ENTRIES,
        _decode_owner(tags.get(TAG_OWNER)),
        _decode_decided(tags.get(TAG_DECIDED)),
        _integer(tags.get(TAG_OPENED), 8, -1),
        offset,
    ))  # fmt: skip
    return _as_ours(metadata) if state.preparing and metadata.decided is None else metadata


def decode_carried(data: bytes) -> dict[tuple[TopicPartition, bytes], CarriedBatches]:
    """Return the batches that a value carries, by partition and topic id."""
    reader = Reader(data)
    if reader.unpack(_HEAD)[0] != 1:  # Kafka's older format has no tagged fields
        return {}
    for _ in range(reader.compact_array()):
        reader.compact_string()
        for _ in range(reader.compact_array()):
            reader.i32()
        reader.tagged()
    reader.unpack(_TIMES)
    tags, carried = reader.tagged(), {}
    rows = Reader(tags.get(TAG_CARRIED, b"\1"))
    for _ in range(rows.compact_array()):
        topic, topic_id = rows.compact_string(), rows.uuid()
        tp = TopicPartition(topic, rows.i32())
        carried[tp, topic_id] = CarriedBatches(rows.i64(), rows.compact_bytes())
        rows.tagged()
    return carried


def _decode_owner(data: bytes | None) -> tuple[int, int] | None:
    if data is None:
        return None
    number, nonce = Reader(data).unpack(_OWNER)
    return number, nonce


def _decode_decided(data: bytes | None) -> Decided | None:
    if data is None:
        return None
    producer_id, epoch, commit, cause = Reader(data).unpack(_DECIDED)
    # Only messages use the cause, so an unknown one is replaced.
    return _new(Decided, (producer_id, epoch, commit, _CAUSES.get(cause, Cause.REQUEST)))


def _as_ours(metadata: TransactionMetadata) -> TransactionMetadata:
    """Complete a PREPARE_* of Kafka, which before version 2 has the data's epoch."""
    bumped = metadata.client_version >= TRANSACTION_VERSION
    epoch = metadata.producer_epoch - (1 if bumped else 0)
    commit = metadata.state is TransactionState.PREPARE_COMMIT
    spans = {tp: OffsetSpan() for tp in metadata.partitions}
    decided = Decided(metadata.producer_id, epoch, commit)
    return metadata._replace(spans=spans, decided=decided)
