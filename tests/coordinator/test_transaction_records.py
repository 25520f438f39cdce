"""The bytes of `__transaction_state`: Kafka's own, and ours that Kafka's tools can read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eoslog import errors
from eoslog.coordinator.transaction_log import TransactionFold
from eoslog.coordinator.transaction_records import (
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from eoslog.coordinator.transaction_state import (
    Cause,
    Decided,
    Span,
    TransactionMetadata,
    TransactionState,
)
from eoslog.model import TopicPartition
from eoslog.storage.serde import Reader, Writer

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


def test_keys_are_kafkas_bytes() -> None:
    assert encode_key("tx-1") == KEY
    assert decode_key(KEY) == "tx-1"
    assert decode_key(b"\x00\x01\x00\x01a") is None


def test_values_are_kafkas_bytes() -> None:
    assert encode_value(ONGOING) == V1_ONGOING
    assert decode_value("tx-1", V1_ONGOING) == ONGOING


def test_values_of_version_0_are_read() -> None:
    old = decode_value("tx-1", V0_ONGOING)
    assert (old.partitions, old.start_timestamp, old.client_version) == (
        frozenset({T0, T1}), 1700000000000, 0,
    )  # fmt: skip
    assert decode_value("tx-1", V0_EMPTY).partitions == frozenset()


def kafka_reads(value: bytes) -> dict[str, object]:
    """What a reader that knows only Kafka's schema makes of a value (unknown tags skipped)."""
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
spans = st.builds(Span, offsets, offsets, st.binary(min_size=16, max_size=16))
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
        markers=draw(st.dictionaries(partitions, offsets, max_size=4)) if state.complete else {},
        decided=draw(decided if state.preparing else st.none() | decided),
    )  # fmt: skip


@pytest.mark.slow
@given(metadatas())
def test_every_value_comes_back_and_kafka_can_read_it(metadata: TransactionMetadata) -> None:
    value = encode_value(metadata)
    assert decode_value(metadata.transactional_id, value) == metadata
    seen = kafka_reads(value)
    assert (seen["version"], seen["id"], seen["state"]) == (1, metadata.producer_id, metadata.state)
    assert (seen["topics"] is None) == (metadata.state is TransactionState.EMPTY)
    assert {tag for tag in seen["tags"] if 2 < tag < 10000} == set()


@pytest.mark.slow
@given(metadatas(), st.data())
def test_short_values_are_corrupt_and_nothing_else(
    metadata: TransactionMetadata, data: st.DataObject
) -> None:
    value = encode_value(metadata)
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(errors.CorruptRecord):
        decode_value("t", value[:cut])


def test_tags_of_the_future_are_skipped() -> None:
    future = V1_ONGOING[:-5] + Writer().tagged({2: b"\x00\x02", 9: b"new", 10900: b"newer"}).take()
    assert decode_value("tx-1", future) == ONGOING
    with pytest.raises(errors.CorruptRecord, match="state 33"):
        decode_value("tx-1", V1_ONGOING[:16] + b"\x21" + V1_ONGOING[17:])


def test_a_tombstone_forgets_the_id_and_keeps_its_decision() -> None:
    fold = TransactionFold()
    prepared = ONGOING.prepared(True, {T0: Span(1, 2)}, 5)
    fold.apply(0, KEY, encode_value(ONGOING))
    fold.apply(1, KEY, encode_value(prepared))
    fold.apply(2, KEY, encode_value(prepared.completed({T0: 3}, 6)))
    fold.apply(3, KEY, None)
    assert (fold.table, fold.ids) == ({}, {})
    assert fold.decisions[1000, 5].complete
    fold.apply(4, b"\x00\x07\x00\x01a", b"unknown key version")
    fold.apply(5, None, b"no key")
    assert fold.table == {}


def test_kafkas_own_prepare_is_a_decision_too() -> None:
    # Kafka before version 2: PREPARE_COMMIT with the epoch of the data, and no tags of ours.
    fold = TransactionFold()
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
