"""What a topic's configuration demands of the batches that clients append.

Looked at before the partition's lock is asked for, and only where a topic demands something. What
is written already and sent again is not judged anew: the answer to it is its old offset.

Source: Kafka `LogValidator`: cleanup.policy, compression.type, message.timestamp.*.max.ms.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from eoslog import _core
from eoslog.errors import ErrorCode, InvalidRecord, error_for
from eoslog.storage import codecs as _codecs  # noqa: F401  binds the codecs of batches
from eoslog.storage.log_settings import FOR_EVER, LogSettings

if TYPE_CHECKING:
    from eoslog.storage.partition_log import PartitionLog

_SEQUENCES = 1 << 31


def demands(settings: LogSettings) -> bool:
    """Whether a client's batches must be looked at."""
    return settings.compacts or _bounds_time(settings) or settings.compression_type != "producer"


def conforming(log: PartitionLog, data: memoryview) -> memoryview:
    """The batches of one append, in the topic's codec.

    Raises:
        InvalidRecord: a record without a key for a compacted topic.
        KafkaError: INVALID_TIMESTAMP, a record is too old or too far ahead.
    """
    settings = log.settings
    batches = _core.iter_batches(data)
    for batch in batches:
        if settings.compacts:
            _demand_keys(log, batch)
        if _bounds_time(settings):
            _bound_time(log, batch)
    if settings.compression_type == "producer":
        return data
    codec = settings.compression_type.replace("uncompressed", "none")
    if all(batch.compression == codec for batch in batches) or not all(b.valid for b in batches):
        return data  # a damaged batch must not get a new CRC: the core refuses it
    whole = bytearray()
    for batch in batches:
        whole += batch.tobytes() if batch.compression == codec else _core.recompressed(batch, codec)
    return memoryview(whole)


def _demand_keys(log: PartitionLog, batch: _core.Batch) -> None:
    """A record without a key is refused, as Kafka does: none could take its place."""
    index = _core.first_without_key(batch)
    if index >= 0:
        raise InvalidRecord(
            f"{log.name}: record {index} of a batch of {batch.count} has no key; "
            "the topic is compacted (cleanup.policy)"
        )


def _bounds_time(settings: LogSettings) -> bool:
    if settings.log_append_time:
        return False  # the time is not the client's
    before, after = (
        settings.message_timestamp_before_max_ms,
        settings.message_timestamp_after_max_ms,
    )
    return before < FOR_EVER or after < FOR_EVER


def _bound_time(log: PartitionLog, batch: _core.Batch) -> None:
    """Records are neither too old nor too far ahead; one without a time (-1) is neither."""
    now = int(time.time() * 1000)
    before = log.settings.message_timestamp_before_max_ms
    after = log.settings.message_timestamp_after_max_ms
    if batch.max_timestamp - now > after:
        what = (
            f"largest timestamp {batch.max_timestamp} is more than message.timestamp.after.max.ms"
        )
        what = f"{what} = {after} after now, {now}"
    else:
        # The header has the largest time only; the smallest may be any record's.
        index = _core.first_older(batch, now - before) if before < FOR_EVER else -1
        if index < 0:
            return
        what = f"record {index} is more than message.timestamp.before.max.ms = {before} before now"
        what = f"{what}, {now}"
    if not _is_stored(log, batch):
        raise error_for(
            ErrorCode.INVALID_TIMESTAMP, f"{log.name}: of {batch.count} records, {what}"
        )


def _is_stored(log: PartitionLog, batch: _core.Batch) -> bool:
    """Whether the producer's sequence is past this batch: it is sent again, or out of order."""
    known = log.producer_state(batch.producer_id) if batch.producer_id >= 0 else None
    if known is None or known.producer_epoch != batch.producer_epoch:
        return False
    return (known.last_sequence - batch.base_sequence) % _SEQUENCES < _SEQUENCES // 2
