"""Checks of clients' batches that a topic's configuration requires.

They run before the append lock is taken, and only if the topic requires any. A batch that is stored
already and sent again is not checked again: the append returns its old offset.

Source: Kafka `LogValidator`: cleanup.policy, compression.type, message.timestamp.*.max.ms.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from eoslog import _core
from eoslog.descriptions import ProducerDescription
from eoslog.errors import ErrorCode, InvalidRecord, error_for
from eoslog.storage.format import codecs as _codecs  # noqa: F401  binds the codecs of batches
from eoslog.storage.log.context import LogContext
from eoslog.storage.log.settings import FOR_EVER, LogSettings

_SEQUENCES = 1 << 31
_States = Callable[[int], ProducerDescription | None]
"""Returns the state of a producer id."""


def demands(settings: LogSettings) -> bool:
    """Whether the topic requires checks of clients' batches."""
    return settings.compacts or _bounds_time(settings) or settings.compression_type != "producer"


def conforming(context: LogContext, data: memoryview, states: _States) -> memoryview:
    """Check the batches of one append, and return them in the topic's codec.

    Args:
        context: the partition's.
        data: the batches.
        states: returns the state of a producer id at the published end.

    Raises:
        InvalidRecord: if a record for a compacted topic has no key.
        KafkaError: INVALID_TIMESTAMP, if a record is too old or too far in the future.
    """
    settings = context.settings
    batches = _core.iter_batches(data)
    for batch in batches:
        if settings.compacts:
            _demand_keys(context, batch)
        if _bounds_time(settings):
            _bound_time(context, batch, states)
    if settings.compression_type == "producer":
        return data
    codec = settings.compression_type.replace("uncompressed", "none")
    if all(batch.compression == codec for batch in batches) or not all(b.valid for b in batches):
        return data  # a damaged batch must not get a new CRC: the core rejects it
    whole, level = bytearray(), settings.codec_level
    for batch in batches:
        same = batch.compression == codec
        whole += batch.tobytes() if same else _core.recompressed(batch, codec, level)
    return memoryview(whole)


def _demand_keys(context: LogContext, batch: _core.Batch) -> None:
    """Reject a record without a key, as Kafka does: compaction could never remove it."""
    index = _core.first_without_key(batch)
    if index >= 0:
        raise InvalidRecord(
            f"{context.name}: record {index} of a batch of {batch.count} has no key, but the topic "
            "is compacted (cleanup.policy); give every record a key"
        )


def _bounds_time(settings: LogSettings) -> bool:
    if settings.log_append_time:
        return False  # the log sets the time
    before, after = (
        settings.message_timestamp_before_max_ms,
        settings.message_timestamp_after_max_ms,
    )
    return before < FOR_EVER or after < FOR_EVER


def _bound_time(context: LogContext, batch: _core.Batch, states: _States) -> None:
    """Reject records that are too old or too far in the future; accept records without a time."""
    now = int(time.time() * 1000)
    before = context.settings.message_timestamp_before_max_ms
    after = context.settings.message_timestamp_after_max_ms
    found, distance, side, limit = batch.max_timestamp, batch.max_timestamp - now, "after", after
    if distance <= after:
        # The header has only the largest time. The smallest may be that of any record.
        index = _core.first_older(batch, now - before) if before < FOR_EVER else -1
        if index < 0:
            return
        found = batch.records()[index][1]
        distance, side, limit = now - found, "before", before
    if not _is_stored(batch, states):
        raise error_for(
            ErrorCode.INVALID_TIMESTAMP,
            f"{context.name}: timestamp {found} in a batch of {batch.count} records is {distance} "
            f"ms {side} now ({now}), and the topic's message.timestamp.{side}.max.ms is {limit}; "
            "send another timestamp, or raise that key of the topic",
        )


def _is_stored(batch: _core.Batch, states: _States) -> bool:
    """Whether the producer's sequence is past this batch, so that it is a retry or out of order."""
    known = states(batch.producer_id) if batch.producer_id >= 0 else None
    if known is None or known.producer_epoch != batch.producer_epoch:
        return False
    return (known.last_sequence - batch.base_sequence) % _SEQUENCES < _SEQUENCES // 2
