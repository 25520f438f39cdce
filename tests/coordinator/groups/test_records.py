"""Records of `__consumer_offsets`: Kafka's bytes, versions, unknown keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eoslog.coordinator.groups import records
from eoslog.coordinator.groups.offset_records import (
    OffsetKey,
    OffsetValue,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
)
from eoslog.coordinator.groups.records import (
    CurrentAssignment,
    MemberMetadata,
    MemberState,
    RecordType,
    TopicMetadata,
)
from eoslog.errors import CorruptRecord
from eoslog.storage.format.serde import Writer

names = st.text(max_size=12)
owned = st.frozensets(
    st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 99)), max_size=8
)


def test_offset_keys_and_values_equal_the_bytes_of_kafka() -> None:
    key = bytes.fromhex("000100016700017400000003")
    value = bytes.fromhex("0003000000000000002affffffff00000000018bcfe56800")
    assert encode_offset_key("g", "t", 3) == key
    assert encode_offset_value(OffsetValue(42, -1, "", 1_700_000_000_000)) == value
    assert records.decode_key(key) == OffsetKey("g", "t", 3)
    assert decode_offset_value(value) == OffsetValue(42, -1, "", 1_700_000_000_000)


def test_group_keys_equal_the_bytes_of_kafka() -> None:
    assert records.encode_group_key(RecordType.CLASSIC_GROUP, "g") == bytes.fromhex("0002000167")


def test_offset_with_expiry_is_written_as_version_1() -> None:
    value = OffsetValue(7, -1, "m", 1000, 2000)
    data = encode_offset_value(value)
    assert data[:2] == b"\x00\x01"
    assert decode_offset_value(data) == value


def test_every_offset_value_version_is_read() -> None:
    v0 = Writer().i16(0).i64(5).string("m").take()
    v2 = Writer().i16(2).i64(5).string("m").i64(9).take()
    v4 = Writer().i16(4).i64(5).i32(3).compact_string("m").i64(9).tagged({0: b"x", 9: b"yy"}).take()
    assert decode_offset_value(v0) == OffsetValue(5, -1, "m")
    assert decode_offset_value(v2) == OffsetValue(5, -1, "m", 9)
    assert decode_offset_value(v4) == OffsetValue(5, 3, "m", 9)


@pytest.mark.parametrize("data", [b"", b"\x00\x07", b"\x00\x03\x00\x00", b"\x00\x09" + bytes(40)])
def test_damaged_offset_values_raise_corrupt_record(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode_offset_value(data)


def test_unknown_key_types_are_skipped() -> None:
    assert records.decode_key(Writer().i16(15).string("share").take()) is None
    assert records.decode_key(None) is None


@pytest.mark.slow
@given(
    st.builds(
        MemberMetadata,
        instance_id=st.none() | names,
        rack_id=st.none() | names,
        client_id=names,
        client_host=names,
        topics=st.lists(names, max_size=4).map(tuple),
        regex=st.none() | names,
        rebalance_timeout_ms=st.integers(-1, 2**31 - 1),
        assignor=st.none() | names,
        process_number=st.integers(0, 2**31 - 1),
        process_nonce=st.integers(0, 2**64 - 1),
        session_timeout_ms=st.integers(0, 2**31 - 1),
    )  # fmt: skip
)
def test_members_survive_encoding_and_decoding(member: MemberMetadata) -> None:
    assert records.decode_member(records.encode_member(member)) == member


def test_a_member_of_another_implementation_has_no_process() -> None:
    member = records.decode_member(records.encode_member(MemberMetadata(client_id="java")))
    assert member.process_number == -1


@pytest.mark.slow
@given(owned, owned, st.integers(-2, 2**31 - 1), st.sampled_from(MemberState))
def test_assignments_survive_encoding_and_decoding(
    assigned: records.Owned, pending: records.Owned, epoch: int, state: MemberState
) -> None:
    current = CurrentAssignment(epoch, epoch - 1 if epoch else -1, state, assigned, pending)
    assert records.decode_member_current(records.encode_member_current(current)) == current
    assert records.decode_member_target(records.encode_member_target(assigned)) == assigned


@pytest.mark.slow
@given(st.dictionaries(st.text(min_size=1, max_size=9), st.integers(1, 99), max_size=5))
def test_subscribed_topics_survive_encoding_and_decoding(counts: dict[str, int]) -> None:
    topics = {name: TopicMetadata(bytes(16), name, count) for name, count in counts.items()}
    assert records.decode_topics(records.encode_topics(topics.values())) == topics


@given(names, names)
def test_member_keys_survive_encoding_and_decoding(group_id: str, member_id: str) -> None:
    for kind in (RecordType.MEMBER, RecordType.MEMBER_TARGET, RecordType.MEMBER_CURRENT):
        key = records.encode_member_key(kind, group_id, member_id)
        assert records.decode_key(key) == records.MemberKey(kind, group_id, member_id)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_decode_or_raise_corrupt_record(data: bytes) -> None:
    decoders = (
        records.decode_member, records.decode_topics, records.decode_member_current,
        records.decode_member_target, records.decode_epoch, records.decode_classic_group,
        decode_offset_value,
    )  # fmt: skip
    for decode in decoders:
        for prefix in (b"", b"\x00\x00"):
            try:
                decode(prefix + data)
            except CorruptRecord:
                pass
    for prefix in (b"", b"\x00\x01", b"\x00\x08"):
        try:
            records.decode_key(prefix + data)
        except CorruptRecord:
            pass


def test_a_classic_group_record_is_read() -> None:
    writer = Writer().i16(3).string("consumer").i32(4).nullable_string("range")
    writer.nullable_string("m1").i64(1000).array(1).string("m1").nullable_string(None)
    writer.string("client").string("/host").i32(60000).i32(45000).bytes_(b"s").bytes_(b"a")
    group = records.decode_classic_group(writer.take())
    assert (group.generation, group.protocol, group.leader) == (4, "range", "m1")
    assert group.members == ("m1",)
