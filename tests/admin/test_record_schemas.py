"""Records of the internal topics: Kafka's layouts in every version of a value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog import errors
from eoslog.admin.inspect import inspect
from eoslog.admin.record_schemas import decoder_of
from eoslog.storage.format.serde import Writer

TIME = 1_700_000_000_000
OFFSET_KEY = bytes.fromhex("000100016700017400000003")


def offsets(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    decode = decoder_of("offsets")
    assert decode is not None
    return decode(key, value)


def transactions(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    decode = decoder_of("transactions")
    assert decode is not None
    return decode(key, value)


def test_transaction_log_records_are_decoded_as_kafka_lays_them_out() -> None:
    key = bytes.fromhex("0000000474782d31")
    both = {
        "type": "transaction", "key_version": 0, "transactional_id": "tx-1", "producer_id": 1000,
        "producer_epoch": 5, "timeout_ms": 60000, "last_update_timestamp": TIME + 2,
    }  # fmt: skip
    ongoing = both | {
        "state": "Ongoing", "partitions": [{"topic": "t", "partitions": [0, 1]}],
        "start_timestamp": TIME,
    }  # fmt: skip
    version_0 = (
        "000000000000000003e800050000ea6001000000010001740000000200000000000000010000018bcfe56802"
        "0000018bcfe56800"
    )
    assert transactions(key, bytes.fromhex(version_0)) == ongoing | {"version": 0}
    empty = "000000000000000003e800050000ea6000ffffffff0000018bcfe56802ffffffffffffffff"
    assert transactions(key, bytes.fromhex(empty)) == both | {
        "version": 0, "state": "Empty", "partitions": None, "start_timestamp": -1,
    }  # fmt: skip
    version_1 = (
        "000100000000000003e800050000ea6001020274030000000000000001000000018bcfe568020000018bcfe568"
        "000102020002"
    )
    assert transactions(key, bytes.fromhex(version_1)) == ongoing | {
        "version": 1, "client_transaction_version": 2,
    }  # fmt: skip
    assert transactions(key, None)["tombstone"] is True


def test_committed_offsets_are_decoded_as_kafka_lays_them_out() -> None:
    value = bytes.fromhex("0003000000000000002affffffff00000000018bcfe56800")
    assert offsets(OFFSET_KEY, value) == {
        "type": "offset_commit", "key_version": 1, "group": "g", "topic": "t", "partition": 3,
        "version": 3, "offset": 42, "leader_epoch": -1, "metadata": "", "commit_timestamp": TIME,
    }  # fmt: skip
    assert offsets(OFFSET_KEY, None)["tombstone"] is True


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_committed_offset_is_decoded(version: int) -> None:
    out = Writer().i16(version).i64(42)
    if version >= 3:
        out.i32(7)
    out.compact_string("m") if version >= 4 else out.string("m")
    out.i64(TIME)
    if version == 1:
        out.i64(TIME + 9)
    if version >= 4:
        out.tagged({0: bytes(range(16)), 77: b"later"})
    found = offsets(OFFSET_KEY, out.take())
    assert (found["version"], found["offset"], found["metadata"]) == (version, 42, "m")
    assert found.get("leader_epoch") == (7 if version >= 3 else None)
    assert found.get("expire_timestamp") == (TIME + 9 if version == 1 else None)
    assert found["commit_timestamp"] == TIME
    assert ("topic_id" in found, found.get("tag_77")) == (
        (True, b"later".hex()) if version == 4 else (False, None)
    )
    assert "bytes_unknown" not in found


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_classic_group_is_decoded(version: int) -> None:
    flexible = version >= 4
    out = Writer().i16(version)

    def text(value: str | None) -> None:
        out.compact_nullable_string(value) if flexible else out.nullable_string(value)

    def blob(value: bytes) -> None:
        out.compact_bytes(value) if flexible else out.bytes_(value)

    text("consumer"), out.i32(9), text("range"), text(None)
    if version >= 2:
        out.i64(TIME)
    out.compact_array(1) if flexible else out.array(1)
    text("m-1")
    if version >= 3:
        text("static")
    text("client"), text("/127.0.0.1")
    if version >= 1:
        out.i32(300_000)
    out.i32(45_000), blob(b"\x00\x03"), blob(b"\x00\x01")
    if flexible:
        out.tagged().tagged()
    found = offsets(Writer().i16(2).string("g").take(), out.take())
    assert found["type"] == "group_metadata"
    assert (found["generation"], found["protocol"], found["leader"]) == (9, "range", None)
    (member,) = found["members"]
    assert (member["member"], member["session_timeout"]) == ("m-1", 45_000)
    assert (member["subscription"], member["assignment"]) == ("0003", "0001")
    assert member.get("group_instance") == ("static" if version >= 3 else None)
    assert "bytes_unknown" not in found


def test_unknown_types_and_versions_are_named_and_not_guessed() -> None:
    key = Writer().i16(99).string("g").take()
    assert offsets(key, b"\x00\x00abc") == {
        "type": 99, "key": key.hex(), "value": "0000616263",
    }  # fmt: skip
    group = Writer().i16(6).string("g").take()
    found = offsets(group, Writer().i16(3).i32(1).tagged().take())
    assert (found["version"], found["value"]) == (3, "00030000000100")
    for bad in (None, b"", b"\x00", OFFSET_KEY[:-1]):
        assert "error" in offsets(bad, b"")
    whole = bytes.fromhex("0003000000000000002affffffff00000000018bcfe56800")
    for cut in range(len(whole)):
        assert "error" in offsets(OFFSET_KEY, whole[:cut])


def test_every_record_of_an_eoslog_directory_is_decoded(tmp_path: Path) -> None:
    """Groups and transactions as they are written, every record of them known."""
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t", 2)
        with log.producer(transactional_id="tx-1") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.produce("t", b"v", partition=0)
            producer.commit_transaction()
        with log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
            assert consumer.poll(60) is not None
            consumer.commit()
    seen = {
        record["decoded"]["type"]
        for path in (tmp_path / "log").glob("__consumer_offsets-*")
        for segment in inspect(path, decoder="offsets")["segments"]
        for batch in segment["batches"]
        for record in batch["records"]
        if not batch["control"]
    }
    assert {"offset_commit", "consumer_group_metadata", "consumer_group_member_metadata"} <= seen
    assert all(isinstance(kind, str) for kind in seen)
    states = [
        record["decoded"]["state"]
        for path in (tmp_path / "log").glob("__transaction_state-*")
        for segment in inspect(path, decoder="transactions")["segments"]
        for batch in segment["batches"]
        for record in batch["records"]
    ]
    assert states[0] == "Empty"
    assert "PrepareCommit" in states
    assert states[-1] == "CompleteCommit"
    with pytest.raises(errors.ConfigError, match="offsets, transactions"):
        inspect(tmp_path / "log" / "t-0", decoder="groups")
