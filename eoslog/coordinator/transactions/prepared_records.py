"""The records of prepared transactions in `__transaction_state`, and their fold.

The record of a transactional id has room for one transaction, and forgets it when the next one
begins. A prepared transaction must be found until it is decided, and its outcome for some days
after that, so it has a record of its own, named by producer id and epoch of its data:

    key      version i16 = 100, producer id i64, epoch i16
    value    version i16 = 2, mode i8 (0 inline, 1 staged), state i8, records i32, bytes i64,
             prepared at, due at, decided at, deliver at i64 (ms, -1: none), checks i32,
             transactional id, resolver, meta (compact, nullable), owner: process number i32 and
             nonce u64; payload: producer id i64 and epoch i16, -1 and -1 if inline; spans: compact
             array of (topic compact string, topic id uuid, partition i32, first i64, last i64);
             offsets: compact array of (group compact string, topic compact string, topic id uuid,
             partition i32, offset i64, leader epoch i32, metadata compact string); takeovers i32,
             which version 1 lacks

The spans of an inline transaction are those of its partitions. Those of a staged one are in
`__staged_transactions`. State is PREPARED or PARKED; PREPARE_COMMIT for a staged transaction whose
commit is decided, but not delivered; COMPLETE_COMMIT or COMPLETE_ABORT otherwise.

A check of a pending transaction is a record of 23 bytes, however large its transaction is:

    key      version i16 = 101, producer id i64, epoch i16
    value    due at i64, checks i16, state i8

Kafka's coordinator and its tools skip keys of unknown versions. Both keys are removed by tombstones
when `outcome.retention.ms` has passed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from eoslog.coordinator.transactions.state import (
    PARKED,
    PREPARED,
    OffsetSpan,
    TransactionState,
)
from eoslog.errors import CorruptRecord
from eoslog.model import TopicPartition
from eoslog.storage.format.serde import Reader, Writer

TransactionKey = tuple[int, int]
"""(producer id, epoch of the data): identifies one transaction forever."""
INLINE: Literal["inline"] = "inline"
STAGED: Literal["staged"] = "staged"
NEVER = -1
NO_PAYLOAD: TransactionKey = (-1, -1)
TOKEN_VERSION, CHECK_VERSION = 100, 101
STAGED_PREFIX = "__staged-"
"""Prefix of the ids under which staged transactions are delivered."""
_KEY, _HEAD = struct.Struct(">hqh"), struct.Struct(">hbbiqqqqqi")
_CHECK, _OWNER = struct.Struct(">qhb"), struct.Struct(">iQ")
_PAYLOAD = struct.Struct(">qh")
_MODES = (INLINE, STAGED)
_VERSION = 2
_S = TransactionState


class PendingOffset(NamedTuple):
    """An offset that a staged transaction commits for a group when it is delivered."""

    group_id: str
    topic: str
    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True)
class PreparedEntry:
    """A prepared transaction, as of its newest records.

    Attributes:
        key: producer id and epoch of its data.
        mode: "inline" or "staged".
        state: PREPARED, PARKED, PREPARE_COMMIT (staged only), COMPLETE_COMMIT or COMPLETE_ABORT.
        transactional_id: the id that prepared it.
        resolver: the name of its resolver; None: it has none.
        meta: encoded value of the application; None: it has none.
        prepared_at_ms: when it was prepared, by the wall clock.
        due_at_ms: when its next check is due; -1: as its resolver was registered.
        decided_at_ms: when it was decided; -1: it is undecided.
        deliver_at_ms: the time before which no record appears; -1: none.
        checks: the number of checks that were answered.
        owner: number and nonce of the process that prepared it.
        payload: producer id and epoch in the keys of its staged payload; (-1, -1): it is inline.
        records: the number of its records.
        size: the number of bytes of its payload.
        spans: its records: in its partitions (inline), or in `__staged_transactions`.
        offsets: the offsets that a staged one commits.
        takeovers: how many producers have taken over its id while it was inline and undecided.
        offset: the offset of its newest record in C, without checks; -1 before the append.
    """

    key: TransactionKey
    mode: Literal["inline", "staged"]
    state: TransactionState
    transactional_id: str
    resolver: str | None = None
    meta: bytes | None = None
    prepared_at_ms: int = NEVER
    due_at_ms: int = NEVER
    decided_at_ms: int = NEVER
    deliver_at_ms: int = NEVER
    checks: int = 0
    owner: tuple[int, int] = (-1, 0)
    payload: TransactionKey = NO_PAYLOAD
    records: int = 0
    size: int = 0
    spans: tuple[tuple[TopicPartition, OffsetSpan], ...] = ()
    offsets: tuple[PendingOffset, ...] = ()
    takeovers: int = 0
    offset: int = field(default=-1, compare=False)

    @property
    def pending(self) -> bool:
        """Whether it is undecided."""
        return self.state.undecided

    @property
    def commit(self) -> bool | None:
        """The decision; None while it is undecided."""
        if self.state.undecided:
            return None
        return self.state in (_S.PREPARE_COMMIT, _S.COMPLETE_COMMIT)

    def decided(self, commit: bool, now_ms: int) -> PreparedEntry:
        """Return the entry with its decision; a staged commit still has to be delivered."""
        done = _S.COMPLETE_COMMIT if commit else _S.COMPLETE_ABORT
        state = _S.PREPARE_COMMIT if commit and self.mode == STAGED else done
        return replace(self, state=state, decided_at_ms=now_ms)

    def delivered(self) -> PreparedEntry:
        """Return the entry after the records of a staged commit are in their topics."""
        return replace(self, state=_S.COMPLETE_COMMIT, spans=(), offsets=())


def staged_id(key: TransactionKey) -> str:
    """Return the transactional id under which a staged transaction is delivered."""
    return f"{STAGED_PREFIX}{key[0]}-{key[1]}"


def token_key(key: TransactionKey) -> bytes:
    """Return the key of a prepared transaction's record."""
    return _KEY.pack(TOKEN_VERSION, *key)


def check_key(key: TransactionKey) -> bytes:
    """Return the key of the record of a prepared transaction's checks."""
    return _KEY.pack(CHECK_VERSION, *key)


def check_value(due_at_ms: int, checks: int, state: TransactionState) -> bytes:
    """Return the record of a check."""
    return _CHECK.pack(due_at_ms, min(checks, 32767), state)


def decode_check(data: bytes, key: TransactionKey) -> tuple[int, int, TransactionState]:
    """Decode the record of a check: (time of the next one in ms, checks, state).

    Raises:
        CorruptRecord: if the bytes are not such a value.
    """
    due, checks, state = Reader(data).unpack(_CHECK)
    return due, checks, _state(state, key)


def prepared_key(data: bytes) -> tuple[int, TransactionKey] | None:
    """Return (version, key) of a prepared transaction's record; None for others."""
    if len(data) != _KEY.size:
        return None
    version, producer_id, epoch = _KEY.unpack(data)
    return (version, (producer_id, epoch)) if version in (TOKEN_VERSION, CHECK_VERSION) else None


def encode_entry(entry: PreparedEntry) -> bytes:
    """Return the value of a prepared transaction's record."""
    out = Writer().raw(
        _HEAD.pack(
            _VERSION, _MODES.index(entry.mode), entry.state, entry.records, entry.size,
            entry.prepared_at_ms, entry.due_at_ms, entry.decided_at_ms, entry.deliver_at_ms,
            entry.checks,
        )
    )  # fmt: skip
    out.compact_string(entry.transactional_id).compact_nullable_string(entry.resolver)
    out.compact_nullable_bytes(entry.meta).raw(_OWNER.pack(*entry.owner))
    out.raw(_PAYLOAD.pack(*entry.payload))
    out.compact_array(len(entry.spans))
    for tp, span in entry.spans:
        out.compact_string(tp.topic).uuid(span.topic_id).i32(tp.partition)
        out.i64(span.first).i64(span.last)
    out.compact_array(len(entry.offsets))
    for one in entry.offsets:
        out.compact_string(one.group_id).compact_string(one.topic).uuid(one.topic_id)
        out.i32(one.partition).i64(one.offset).i32(one.leader_epoch).compact_string(one.metadata)
    return out.i32(entry.takeovers).take()


def entry_row(entry: PreparedEntry) -> tuple[bytes, bytes]:
    """Return key and value of a prepared transaction's record."""
    return token_key(entry.key), encode_entry(entry)


def decode_entry(key: TransactionKey, data: bytes, offset: int = -1) -> PreparedEntry:
    """Decode the value of a prepared transaction's record.

    Raises:
        CorruptRecord: if the bytes are not such a value, or the version is unknown.
    """
    reader = Reader(data)
    version, mode, state, records, size, prepared, due, decided, deliver, checks = reader.unpack(
        _HEAD
    )
    if not 1 <= version <= _VERSION or not 0 <= mode < len(_MODES):
        raise CorruptRecord(
            f"prepared transaction of producer {key[0]}, epoch {key[1]}: unknown version or mode; "
            "read it with the eoslog version that wrote it",
            expected=f"version 1 to {_VERSION}",
            found=f"version {version}, mode {mode}",
        )
    name, resolver = reader.compact_string(), reader.compact_nullable_string()
    meta, owner = reader.compact_nullable_bytes(), reader.unpack(_OWNER)
    payload = reader.unpack(_PAYLOAD)
    spans = []
    for _ in range(reader.compact_array()):
        topic, topic_id = reader.compact_string(), reader.uuid()
        tp = TopicPartition(topic, reader.i32())
        spans.append((tp, OffsetSpan(reader.i64(), reader.i64(), topic_id)))
    offsets = []
    for _ in range(reader.compact_array()):
        group, topic, topic_id = reader.compact_string(), reader.compact_string(), reader.uuid()
        offsets.append(
            PendingOffset(
                group, topic, topic_id, reader.i32(), reader.i64(), reader.i32(),
                reader.compact_string(),
            )
        )  # fmt: skip
    return PreparedEntry(
        key, _MODES[mode], _state(state, key), name, resolver, meta, prepared, due, decided,
        deliver, checks, (owner[0], owner[1]), (payload[0], payload[1]), records, size,
        tuple(spans), tuple(offsets), reader.i32() if version > 1 else 0, offset,
    )  # fmt: skip


def _state(number: int, key: TransactionKey) -> TransactionState:
    try:
        return TransactionState(number)
    except ValueError:
        raise CorruptRecord(
            f"prepared transaction of producer {key[0]}, epoch {key[1]}: unknown state {number}; "
            "read it with the eoslog version that wrote it"
        ) from None


class PreparedFold:
    """The prepared transactions of one `__transaction_state` partition.

    Invariants:
        * `entries[key]` has the newest record of the key, with the checks that came after it.
        * `pending` has the keys that are undecided, or decided and not delivered.
        * `size` is the sum of the payload of `pending`.
        * `changed` has the keys that changed since `take_changed`.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.entries: dict[TransactionKey, PreparedEntry] = {}
        self.pending: dict[TransactionKey, None] = {}
        self.size = 0
        self._of_id: dict[str, dict[TransactionKey, None]] = {}
        self._of_group: dict[str, dict[TransactionKey, None]] = {}
        self.changed: dict[TransactionKey, None] = {}

    def apply(
        self, version: int, key: TransactionKey, value: bytes | None, offset: int = -1
    ) -> None:
        """Fold the record at `offset`."""
        if version == CHECK_VERSION:
            entry = self.entries.get(key)
            if value is not None and entry is not None and entry.pending:
                due, checks, state = decode_check(value, key)
                found = PARKED if state is PARKED else PREPARED
                self.entries[key] = replace(entry, due_at_ms=due, checks=checks, state=found)
                self.changed[key] = None
            return
        old = self.entries.get(key)
        if old is not None:
            if key in self.pending:
                del self.pending[key]
                self.size -= old.size
            self._of_id.get(old.transactional_id, {}).pop(key, None)
            self._leave_groups(old)
        if value is None:
            self.entries.pop(key, None)
        else:
            entry = self.entries[key] = decode_entry(key, value, offset)
            if entry.pending or entry.state is _S.PREPARE_COMMIT:
                self.pending[key] = None
                self.size += entry.size
                self._of_id.setdefault(entry.transactional_id, {})[key] = None
                for offset_of in entry.offsets:
                    self._of_group.setdefault(offset_of.group_id, {})[key] = None
        self.changed[key] = None

    def of_id(self, transactional_id: str) -> list[PreparedEntry]:
        """The undecided transactions of a transactional id."""
        keys = self._of_id.get(transactional_id, ())
        return [entry for key in keys if (entry := self.entries[key]).pending]

    def of_group(self, group_id: str) -> list[PreparedEntry]:
        """The staged transactions with offsets of a group that have not ended."""
        return [self.entries[key] for key in self._of_group.get(group_id, ())]

    def groups(self) -> set[str]:
        """The groups for which `of_group` finds transactions."""
        return set(self._of_group)

    def _leave_groups(self, entry: PreparedEntry) -> None:
        for group_id in {one.group_id for one in entry.offsets}:
            keys = self._of_group.get(group_id)
            if keys is not None and keys.pop(entry.key, True) is None and not keys:
                del self._of_group[group_id]
