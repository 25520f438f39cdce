"""Records of internal topics as plain data.

Keys begin with their type and are classic. A value begins with its version. From a type's first
flexible version, values are compact and have tagged fields. The layouts below are data. They cover
all records of Kafka 0.9 to 4.x except those of streams groups (types 17 and up), which are shown
with their number and in hex. Bytes after the known fields of a later version are only counted.
Records that only eoslog has are decoded by `own_records`.

Source: Kafka group-coordinator and transaction-coordinator message schemas, KIP-848, KIP-890,
KIP-915, KIP-932.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from eoslog.admin import own_records
from eoslog.errors import ConfigError, CorruptRecord
from eoslog.storage.format.checkpoints import id_text
from eoslog.storage.format.serde import Reader

__all__ = ["DECODERS", "decoder_of"]

_EVERY = (0, 99)
Kind = "str | Sequence[Field]"


@dataclass(frozen=True, slots=True)
class Field:
    """A field: a primitive `kind`, an array `[kind]`, or a structure `(fields)`."""

    name: str
    kind: Any
    versions: tuple[int, int] = _EVERY


@dataclass(frozen=True, slots=True)
class Layout:
    """A record type: its key after the type number, its value after the version."""

    name: str
    key: Sequence[Field]
    value: Sequence[Field]
    newest: int = 0
    flexible: int = 0
    """The first flexible version of the value."""
    tags: Mapping[int, Field] = field(default_factory=dict)


_GROUP = (Field("group", "string"),)
_MEMBER = (*_GROUP, Field("member", "string"))
_EPOCH = (Field("epoch", "i32"),)
_OWNED = [Field("topic_id", "uuid"), Field("partitions", ["i32"])]
_CURRENT = (
    Field("member_epoch", "i32"), Field("previous_member_epoch", "i32"), Field("state", "i8"),
    Field("assigned", [_OWNED]),
)  # fmt: skip
_PARTITION_RACKS = [Field("partition", "i32"), Field("racks", ["string"])]
_SHARE_TOPICS = [Field("topic_id", "uuid"), Field("topic", "string"), Field("partitions", ["i32"])]

_OFFSET_COMMIT = Layout(
    "offset_commit",
    (*_GROUP, Field("topic", "string"), Field("partition", "i32")),
    (
        Field("offset", "i64"), Field("leader_epoch", "i32", (3, 99)), Field("metadata", "string"),
        Field("commit_timestamp", "i64"), Field("expire_timestamp", "i64", (1, 1)),
    ),
    newest=4, flexible=4, tags={0: Field("topic_id", "uuid")},
)  # fmt: skip

_GROUP_RECORDS: dict[int, Layout] = {
    0: _OFFSET_COMMIT,
    1: _OFFSET_COMMIT,
    2: Layout(
        "group_metadata",
        _GROUP,
        (
            Field("protocol_type", "string"), Field("generation", "i32"),
            Field("protocol", "string?"), Field("leader", "string?"),
            Field("current_state_timestamp", "i64", (2, 99)),
            Field("members", [[
                Field("member", "string"), Field("group_instance", "string?", (3, 99)),
                Field("client_id", "string"), Field("client_host", "string"),
                Field("rebalance_timeout", "i32", (1, 99)), Field("session_timeout", "i32"),
                Field("subscription", "bytes"), Field("assignment", "bytes"),
            ]]),
        ),
        newest=4, flexible=4,
    ),
    3: Layout(
        "consumer_group_metadata", _GROUP, _EPOCH,
        tags={0: Field("metadata_hash", "i64"), 1: Field("creation_time_ms", "i64")},
    ),
    4: Layout(
        "consumer_group_partition_metadata",
        _GROUP,
        (Field("topics", [[
            Field("topic_id", "uuid"), Field("topic", "string"), Field("partition_count", "i32"),
            Field("partition_metadata", [_PARTITION_RACKS]),
        ]]),),
    ),
    5: Layout(
        "consumer_group_member_metadata",
        _MEMBER,
        (
            Field("instance", "string?"), Field("rack", "string?"), Field("client_id", "string"),
            Field("client_host", "string"), Field("subscribed_topics", ["string"]),
            Field("subscribed_regex", "string?"), Field("rebalance_timeout_ms", "i32"),
            Field("assignor", "string?"),
        ),
    ),
    6: Layout("consumer_group_target_assignment_metadata", _GROUP, _EPOCH),
    7: Layout("consumer_group_target_assignment_member", _MEMBER, (Field("topics", [_OWNED]),)),
    8: Layout(
        "consumer_group_current_member_assignment",
        _MEMBER,
        (*_CURRENT, Field("pending_revocation", [_OWNED])),
    ),
    10: Layout(
        "share_group_member_metadata",
        _MEMBER,
        (
            Field("rack", "string?"), Field("client_id", "string"), Field("client_host", "string"),
            Field("subscribed_topics", ["string"]),
        ),
    ),
    11: Layout("share_group_metadata", _GROUP, (*_EPOCH, Field("metadata_hash", "i64"))),
    12: Layout("share_group_target_assignment_metadata", _GROUP, _EPOCH),
    13: Layout("share_group_target_assignment_member", _MEMBER, (Field("topics", [_OWNED]),)),
    14: Layout("share_group_current_member_assignment", _MEMBER, _CURRENT),
    15: Layout(
        "share_group_state_partition_metadata",
        _GROUP,
        (
            Field("initializing", [[*_SHARE_TOPICS, Field("create_timestamp", "i64")]]),
            Field("initialized", [[*_SHARE_TOPICS, Field("create_timestamp", "i64")]]),
            Field("deleting", [_SHARE_TOPICS[:2]]),
        ),
    ),
    16: Layout(
        "consumer_group_regular_expression",
        (*_GROUP, Field("regex", "string")),
        (Field("topics", ["string"]), Field("version", "i64"), Field("timestamp", "i64")),
    ),
}  # fmt: skip

_TRANSACTION_RECORDS: dict[int, Layout] = {
    0: Layout(
        "transaction",
        (Field("transactional_id", "string"),),
        (
            Field("producer_id", "i64"), Field("producer_epoch", "i16"),
            Field("timeout_ms", "i32"), Field("state", "state"),
            Field("partitions", [[Field("topic", "string"), Field("partitions", ["i32"])]]),
            Field("last_update_timestamp", "i64"), Field("start_timestamp", "i64"),
        ),
        newest=1, flexible=1,
        tags={
            0: Field("previous_producer_id", "i64"), 1: Field("next_producer_id", "i64"),
            2: Field("client_transaction_version", "i16"),
            10006: Field("undecided", (Field("state", "state"), Field("timeout_ms", "i32"))),
            10007: Field("carried", [[
                Field("topic", "string"), Field("topic_id", "uuid"), Field("partition", "i32"),
                Field("first_offset", "i64"), Field("batches", "bytes"),
            ]]),
        },
    ),
}  # fmt: skip

_STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
    "PrepareEpochFence",
)  # fmt: skip
_UNDECIDED = {64: "Prepared", 65: "Parked"}

Decoder = Callable[[bytes | None, bytes | None], dict[str, Any]]


def _decoder(read: Callable[[bytes, bytes | None], dict[str, Any]]) -> Decoder:
    def decode(key: bytes | None, value: bytes | None) -> dict[str, Any]:
        try:
            if key is None:
                raise CorruptRecord("a record of an internal topic without a key")
            return read(key, value)
        except CorruptRecord as error:
            return {"error": str(error)}

    return decode


def _transaction(key: bytes, value: bytes | None) -> dict[str, Any]:
    prepared = own_records.prepared(key, value)
    return _record(_TRANSACTION_RECORDS, key, value) if prepared is None else prepared


def _record(layouts: Mapping[int, Layout], key: bytes, value: bytes | None) -> dict[str, Any]:
    reader = Reader(key)
    kind = reader.i16()
    layout = layouts.get(kind)
    if layout is None:
        return {"type": kind, "key": key.hex(), "value": None if value is None else value.hex()}
    found: dict[str, Any] = {"type": layout.name, "key_version": kind}
    found |= _structure(reader, layout.key, kind, False)
    if value is None:
        return {**found, "tombstone": True}
    reader = Reader(value)
    version = reader.i16()
    found["version"] = version
    if version < 0 or (version > layout.newest and version < layout.flexible):
        raise CorruptRecord(f"version {version} of {layout.name}, {layout.newest} is the newest")
    if version > layout.newest and not layout.tags and layout.flexible == 0:
        found["value"] = value.hex()  # fields may have come in between
        return found
    flexible = version >= layout.flexible
    found |= _structure(reader, layout.value, version, flexible, layout.tags)
    if reader.remaining:
        found["bytes_unknown"] = reader.remaining
    return found


def _structure(
    reader: Reader,
    fields: Sequence[Field],
    version: int,
    flexible: bool,
    tags: Mapping[int, Field] | None = None,
) -> dict[str, Any]:
    found = {
        f.name: _read(reader, f.kind, version, flexible)
        for f in fields
        if f.versions[0] <= version <= f.versions[1]
    }
    if flexible:
        for tag, data in reader.tagged().items():
            known = (tags or {}).get(tag)
            if known is None:
                found[f"tag_{tag}"] = data.hex()
            else:
                found[known.name] = _read(Reader(data), known.kind, version, True)
    return found


def _read(reader: Reader, kind: Any, version: int, flexible: bool) -> Any:
    if isinstance(kind, tuple):
        return _structure(reader, kind, version, False)
    if isinstance(kind, list):
        count = reader.compact_array() if flexible else reader.array()
        element = kind[0]
        if isinstance(element, list):
            read = [_structure(reader, element, version, flexible) for _ in range(count)]
        else:
            read = [_read(reader, element, version, flexible) for _ in range(count)]
        return read if count >= 0 else None
    if kind == "string":
        return reader.compact_string() if flexible else reader.string()
    if kind == "string?":
        return reader.compact_nullable_string() if flexible else reader.nullable_string()
    if kind == "bytes":
        return (reader.compact_bytes() if flexible else reader.bytes_()).hex()
    if kind == "uuid":
        return id_text(reader.uuid())
    if kind == "state":
        number = reader.i8()
        return _STATES[number] if 0 <= number < len(_STATES) else _UNDECIDED.get(number, number)
    return getattr(reader, kind)()


DECODERS: dict[str, Decoder] = {
    "offsets": _decoder(partial(_record, _GROUP_RECORDS)),
    "transactions": _decoder(_transaction),
    "staged": _decoder(own_records.staged),
    "positions": _decoder(own_records.position),
}
"""By the name that `eoslog dump --decoder` takes; each makes a dict of a key and a value."""
_ROCKETMQ_TOPICS = {
    "RMQ_SYS_TRANS_HALF_TOPIC": "staged",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": "transactions",
}
"""Where eoslog has what RocketMQ keeps in a topic: half messages, and what decided them."""


def decoder_of(name: str | None) -> Decoder | None:
    """The decoder of a name, or of a topic of RocketMQ; None for None.

    Raises:
        ConfigError: an unknown name.
    """
    if name is None:
        return None
    known = _ROCKETMQ_TOPICS.get(name, name)
    if known not in DECODERS:
        raise ConfigError(f"decoder {name!r} is none of {', '.join(DECODERS)}")
    return DECODERS[known]
