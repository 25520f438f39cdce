"""The records of `__staged_transactions`: batches that wait for a decision.

    key        producer id i64, epoch i16, number of the part i32
    value      complete record batches of one partition, as they were produced; null: a tombstone
    headers    topic, partition (decimal), topic.id (16 bytes), records (decimal), owner (process
               number i32, nonce u64)

The producer id and epoch name one attempt to write the payload. They are those of the token, unless
the payload was set aside.

Source: RocketMQ keeps the real topic of a half message in the message's properties.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from eoslog.errors import CorruptRecord
from eoslog.model import STAGED_TRANSACTIONS_TOPIC, TopicPartition
from eoslog.storage.format.serde import Reader

Headers = Sequence[tuple[str, bytes | None]]
_KEY, _OWNER = struct.Struct(">qhi"), struct.Struct(">iQ")
_ID_BYTES = 16


class StagedKey(NamedTuple):
    """The key of a part."""

    producer_id: int
    producer_epoch: int
    number: int

    @property
    def attempt(self) -> tuple[int, int]:
        """Producer id and epoch, the same in all parts of a transaction."""
        return self.producer_id, self.producer_epoch


@dataclass(frozen=True, slots=True)
class StagedBatches:
    """Consecutive batches of one partition."""

    partition: TopicPartition
    topic_id: bytes
    data: Any
    records: int


def encode_key(attempt: tuple[int, int], number: int) -> bytes:
    """Return the key of a part."""
    return _KEY.pack(*attempt, number)


def decode_key(key: bytes | None) -> StagedKey:
    """Return the key of a part.

    Raises:
        CorruptRecord: if the key is missing or has another size.
    """
    if key is None or len(key) != _KEY.size:
        raise CorruptRecord(
            f"{STAGED_TRANSACTIONS_TOPIC}: bytes in the key of a staged record",
            expected=_KEY.size,
            found="no key" if key is None else len(key),
        )
    return StagedKey(*_KEY.unpack(key))


def encode_headers(part: StagedBatches, owner: tuple[int, int]) -> list[tuple[str, bytes]]:
    """Return the headers of a part that the process `owner` writes."""
    return [
        ("topic", part.partition.topic.encode()),
        ("partition", str(part.partition.partition).encode()),
        ("topic.id", part.topic_id),
        ("records", str(part.records).encode()),
        ("owner", _OWNER.pack(*owner)),
    ]


def decode_part(value: bytes, headers: Headers) -> StagedBatches:
    """Return the batches of a part, with their target.

    Raises:
        CorruptRecord: if a header is missing or invalid.
    """
    known = {name: data or b"" for name, data in headers}
    try:
        place = TopicPartition(known["topic"].decode(), int(known["partition"]))
        topic_id, records = known["topic.id"], int(known["records"])
    except (KeyError, ValueError) as error:
        raise CorruptRecord(
            f"{STAGED_TRANSACTIONS_TOPIC}: header of a staged record is missing or invalid: "
            f"{error!r}"
        ) from None
    if len(topic_id) != _ID_BYTES:
        raise CorruptRecord(
            f"{STAGED_TRANSACTIONS_TOPIC}: bytes in the topic.id of a staged record",
            expected=_ID_BYTES,
            found=len(topic_id),
        )
    return StagedBatches(place, topic_id, value, records)


def decode_owner(headers: Headers) -> tuple[int, int]:
    """Return number and nonce of the process that wrote a part.

    Raises:
        CorruptRecord: if the header is missing or too short.
    """
    number, nonce = Reader(dict(headers).get("owner") or b"").unpack(_OWNER)
    return number, nonce
