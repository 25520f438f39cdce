"""The bytes of `__transaction_state`: Kafka's, and ours that Kafka's tools read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eoslog import errors
from eoslog._core import build_batch, transaction_batch, transaction_value
from eoslog.coordinator.transactions.log_fold import TransactionLogFold
from eoslog.coordinator.transactions.records import decode_key, decode_value, encode_key
from eoslog.coordinator.transactions.state import (
    Cause,
    Decided,
    OffsetSpan,
    TransactionMetadata,
    TransactionState,
)
from eoslog.model import TopicPartition
from eoslog.storage.format.serde import Reader, Writer

KEY = bytes.fromhex("0000000474782d31")
V0_ONGOING = bytes.fromhex(
    "000000000000000003e800050000ea6001000000010001740000000200000000000000010000018bcfe56802"
    "0000018bcfe56800"
)
V0_EMPTY = bytes.fromhex(
    "000000000000000003e800050000ea6000ffffffff0000018bcfe56802ffffffffffffffff"
)
V1_ONGOING = bytes.fromhex(
    "000100000000000003e800050000ea6001020274030000000000000001000000018bcfe568020000018bcfe568"
    "000102020002"
)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ONGOING = TransactionMetadata(
    "tx-1", 1000, 5, 60000, TransactionState.ONGOING, frozenset({T0, T1}), 1700000000000,
    1700000000002,
)  # fmt: skip


def test_keys_of_transaction_records_equal_the_bytes_of_kafka() -> None:
    assert encode_key("tx-1") == KEY
    assert decode_key(KEY) == "tx-1"
    assert decode_key(b"\x00\x01\x00\x01a") is None


def test_values_of_transaction_records_equal_the_bytes_of_kafka() -> None:
    assert transaction_value(ONGOING) == V1_ONGOING
    assert decode_value("tx-1", V1_ONGOING) == ONGOING


def test_transaction_values_of_version_0_are_read() -> None:
    old = decode_value("tx-1", V0_ONGOING)
    assert (old.partitions, old.start_timestamp, old.client_version) == (
        frozenset({T0, T1}), 1700000000000, 0,
    )  # fmt: skip
    assert decode_value("tx-1", V0_EMPTY).partitions == frozenset()


def kafka_reads(value: bytes) -> dict[str, object]:
    """Decode a value by Kafka's schema alone; unknown tags are skipped."""
    r = Reader(value)
    found: dict[str, object] = {"version": r.i16(), "id": r.i64(), "epoch": r.i16()}
    found |= {"timeout": r.i32(), "state": r.i8()}
    count = r.compact_array()
    topics = None if count < 0 else {}
    for _ in range(count):
        name = r.compact_string()
        topics[name] = [r.i32() for _ in range(r.compact_array())]  # type: ignore[index]
        assert r.tagged() == {}
    found |= {"topics": topics, "update": r.i64(), "start": r.i64(), "tags": set(r.tagged())}
    assert r.remaining == 0
    return found


names = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=5)
partitions = st.builds(TopicPartition, names, st.integers(0, 99))
offsets = st.integers(0, 2**62)
spans = st.builds(OffsetSpan, offsets, offsets, st.binary(min_size=16, max_size=16))
producer_ids, epochs = st.integers(0, 2**62), st.integers(0, 32767)


@st.composite
def metadatas(draw: st.DrawFn) -> TransactionMetadata:
    state = draw(st.sampled_from([s for s in TransactionState if s < 6]))
    found = draw(st.dictionaries(partitions, spans, max_size=4)) if state.preparing else {}
    named = frozenset(found)
    if state is TransactionState.ONGOING:
        named = draw(st.frozensets(partitions, max_size=4))
    decided = st.builds(Decided, producer_ids, epochs, st.booleans(), st.sampled_from(Cause))
    return TransactionMetadata(
        draw(names), draw(producer_ids), draw(epochs), draw(st.integers(1, 2**31 - 1)), state,
        named, draw(st.integers(-1, 2**50)), draw(st.integers(-1, 2**50)),
        draw(st.integers(-1, 2**62)), draw(st.integers(-1, 2**62)), draw(st.integers(-1, 32767)),
        spans=found,
        owner=draw(st.none() | st.tuples(st.integers(0, 1023), st.integers(0, 2**64 - 1))),
        decided=draw(decided if state.preparing else st.none() | decided),
    )  # fmt: skip


@pytest.mark.slow
@given(metadatas())
def test_every_transaction_value_survives_a_round_trip_and_kafka_reads_it(
    metadata: TransactionMetadata,
) -> None:
    value = transaction_value(metadata)
    assert decode_value(metadata.transactional_id, value) == metadata
    seen = kafka_reads(value)
    assert (seen["version"], seen["id"], seen["state"]) == (1, metadata.producer_id, metadata.state)
    assert (seen["topics"] is None) == (metadata.state is TransactionState.EMPTY)
    assert {tag for tag in seen["tags"] if 2 < tag < 10000} == set()


def slowly(m: TransactionMetadata) -> bytes:
    """The value field by field, as the table in `records.py` draws it."""

    def topics(rows: list[tuple[str, bytes, bytes]], after: bytes = b"") -> bytes:
        groups: dict[tuple[str, bytes], list[bytes]] = {}
        for topic, topic_id, row in rows:
            groups.setdefault((topic, topic_id), []).append(row)
        out = Writer().compact_array(len(groups))
        for (topic, topic_id), each in sorted(groups.items()):
            out.compact_string(topic).raw(topic_id).compact_array(len(each))
            out.raw(b"".join(each)).raw(after)
        return out.take()

    def i64(value: int) -> bytes:
        return Writer().i64(value).take()

    named = [(p.topic, b"", Writer().i32(p.partition).take()) for p in sorted(m.partitions)]
    spans = [
        (p.topic, s.topic_id, Writer().i32(p.partition).i64(s.first).i64(s.last).take())
        for p, s in sorted(m.spans.items())
    ]
    tags = {2: Writer().i16(m.client_version).take()}
    tags |= {0: i64(m.previous_producer_id)} if m.previous_producer_id >= 0 else {}
    tags |= {1: i64(m.next_producer_id)} if m.next_producer_id >= 0 else {}
    tags |= {10000: topics(spans)} if spans else {}
    if m.owner is not None:
        tags[10001] = Writer().i32(m.owner[0]).raw(m.owner[1].to_bytes(8, "big")).take()
    if m.decided is not None:
        d = m.decided
        tags[10003] = Writer().i64(d.producer_id).i16(d.data_epoch).i8(d.commit).i8(d.cause).take()
    tags |= (
        {10004: Writer().i16(m.last_producer_epoch).take()} if m.last_producer_epoch >= 0 else {}
    )
    out = Writer().i16(1).i64(m.producer_id).i16(m.producer_epoch).i32(m.timeout_ms).i8(m.state)
    out.raw(b"\x00" if m.state is TransactionState.EMPTY else topics(named, b"\x00"))
    return out.i64(m.last_update_timestamp).i64(m.start_timestamp).tagged(tags).take()


@pytest.mark.slow
@given(metadatas(), st.integers(0, 2**50))
def test_the_core_and_the_model_encode_equal_transaction_records(
    metadata: TransactionMetadata, now: int
) -> None:
    assert transaction_value(metadata) == slowly(metadata)
    row = (now, encode_key(metadata.transactional_id), slowly(metadata), ())
    assert transaction_batch(now, metadata) == build_batch([row])


@pytest.mark.slow
@given(metadatas(), st.dictionaries(partitions, spans, max_size=3), st.booleans())
def test_each_transition_changes_only_its_own_fields(
    metadata: TransactionMetadata, wrote: dict[TopicPartition, OffsetSpan], commit: bool
) -> None:
    before = metadata._replace(producer_epoch=min(metadata.producer_epoch, 32766), offset=9)
    now, start, epoch = 2**51, before.start_timestamp, before.producer_epoch
    same = {"spans": {}, "last_update_timestamp": now, "offset": -1}
    if not before.state.preparing:
        goes_on = before.state is TransactionState.ONGOING
        named = frozenset(wrote) | (before.partitions if goes_on else frozenset())
        same |= {"partitions": named, "start_timestamp": start if goes_on else now}
        same |= {"state": TransactionState.ONGOING, "owner": (3, 4), "decided": None}
        assert before.ongoing(wrote, (3, 4), now) == before._replace(**same)
    elif before.next_producer_id < 0:
        same["partitions"] = frozenset()
        same["state"] = TransactionState(before.state + 2)
        assert before.completed(now) == before._replace(**same)
    else:
        done = before.completed(now)
        assert done[1:3] + done[8:10] == (before.next_producer_id, 0, before.producer_id, -1)
    if before.state is TransactionState.ONGOING:
        same |= {"partitions": frozenset(wrote), "spans": wrote, "producer_epoch": epoch + 1}
        same |= {"state": TransactionState(2 if commit else 3), "last_producer_epoch": epoch}
        same |= {"start_timestamp": now if start < 0 else start, "owner": before.owner}
        same |= {"previous_producer_id": -1, "next_producer_id": 8}
        same["decided"] = Decided(before.producer_id, epoch, commit, Cause.FENCED)
        found = before.prepared(commit, wrote, now, cause=Cause.FENCED, new_id=8)
        assert found == before._replace(**same)


@pytest.mark.slow
@given(metadatas(), st.data())
def test_truncated_values_raise_corrupt_record_and_nothing_else(
    metadata: TransactionMetadata, data: st.DataObject
) -> None:
    value = transaction_value(metadata)
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(errors.CorruptRecord):
        decode_value("t", value[:cut])


def test_unknown_tagged_fields_are_skipped() -> None:
    future = V1_ONGOING[:-5] + Writer().tagged({2: b"\x00\x02", 9: b"new", 10900: b"newer"}).take()
    assert decode_value("tx-1", future) == ONGOING
    with pytest.raises(errors.CorruptRecord, match="state 33"):
        decode_value("tx-1", V1_ONGOING[:16] + b"\x21" + V1_ONGOING[17:])


def test_a_tombstone_expires_the_id_and_keeps_its_decision() -> None:
    fold = TransactionLogFold()
    prepared = ONGOING.prepared(True, {T0: OffsetSpan(1, 2)}, 5)
    fold.apply(0, KEY, transaction_value(ONGOING))
    fold.apply(1, KEY, transaction_value(prepared))
    fold.apply(2, KEY, transaction_value(prepared.completed(6)))
    fold.apply(3, KEY, None)
    assert (fold.table, fold.ids) == ({}, {})
    assert fold.decisions[1000, 5].complete
    fold.apply(4, b"\x00\x07\x00\x01a", b"unknown key version")
    fold.apply(5, None, b"no key")
    assert fold.table == {}


def test_a_prepare_record_of_kafka_counts_as_a_decision() -> None:
    # Kafka before version 2: PREPARE_COMMIT with the epoch of the data, and no tags of ours.
    fold = TransactionLogFold()
    old = bytearray(V0_ONGOING)
    old[16] = TransactionState.PREPARE_COMMIT
    fold.apply(0, KEY, bytes(old))
    assert fold.decisions[1000, 5].commit
    new = bytearray(V1_ONGOING)
    new[16] = TransactionState.PREPARE_ABORT
    fold.apply(1, KEY, bytes(new))
    assert not fold.decisions[1000, 4].commit
    new[16] = TransactionState.COMPLETE_ABORT
    fold.apply(2, KEY, bytes(new))
    assert fold.decisions == {}
