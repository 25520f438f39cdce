"""Record batches of Kafka, of the reference codec and with damage are read."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eoslog import _core, errors
from eoslog.storage.format import codecs  # noqa: F401 (binds the codecs)
from tests.paths import KAFKA_DATA
from tests.reference import codec

BATCHES = KAFKA_DATA / "batches"
NAMES = sorted(path.stem for path in BATCHES.glob("*.bin"))
TS = 1_700_000_000_000


def plain(count: int = 3, **options: Any) -> bytes:
    records = [(TS + i, b"k%d" % i, b"v%d" % i, [("h", b"x"), ("n", None)]) for i in range(count)]
    return codec.encode_batch(records, **options)


def read_all(data: bytes) -> list[Any]:
    out: list[Any] = []
    for batch in _core.iter_batches(data):
        out.append((batch.valid, batch.control_type, batch.coordinator_epoch, batch.records()))
    return out


@pytest.mark.parametrize("name", NAMES)
def test_kafka_batches_are_read_as_kafka_reads_them(name: str) -> None:
    data = (BATCHES / f"{name}.bin").read_bytes()
    expected = json.loads((BATCHES / f"{name}.json").read_text())
    found = _core.iter_batches(data)
    assert len(found) == len(expected)
    for batch, want in zip(found, expected, strict=True):
        for field in want:
            if field == "timestamp_type":
                assert ["CreateTime", "LogAppendTime"][batch.timestamp_type] == want[field]
            elif field != "records":
                assert getattr(batch, field) == want[field], field
        records = batch.records()
        assert [r[0] for r in records] == [w["offset"] for w in want["records"]]
        assert [r[1] for r in records] == [w["timestamp"] for w in want["records"]]
        for got, w in zip(records, want["records"], strict=True):
            assert [None if b is None else b.hex() for b in got[2:4]] == [w["key"], w["value"]]
            assert [[k, v if v is None else v.hex()] for k, v in got[4]] == w["headers"]
        assert batch.tobytes() == data[batch.position : batch.position + batch.size]


def test_a_marker_has_the_type_of_its_decision() -> None:
    batch = _core.iter_batches(
        codec.encode_marker(9, 3, True, coordinator_epoch=347, timestamp=TS)
    )[0]
    assert (batch.control, batch.control_type, batch.coordinator_epoch) == (True, 1, 347)
    assert _core.iter_batches(plain())[0].control_type is None


def test_sequences_wrap_at_two_to_the_31() -> None:
    batch = _core.iter_batches(plain(3, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))[
        0
    ]
    assert (batch.base_sequence, batch.last_sequence) == (2**31 - 2, 0)


def test_a_partial_tail_is_left_out_silently() -> None:
    data = plain(base_offset=0) + plain(base_offset=3)
    half = len(data) // 2
    assert [b.base_offset for b in _core.iter_batches(data)] == [0, 3]
    for cut in range(half, len(data)):
        assert [b.base_offset for b in _core.iter_batches(data[:cut])] == [0]
    assert [b.position for b in _core.iter_batches(data, half, base_position=1000)] == [1000 + half]
    assert [b.base_offset for b in _core.iter_batches(data, 0, half + 5)] == [0]


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (8, (13).to_bytes(4, "big"), "less than 14"),
        (8, (2**32 - 1).to_bytes(4, "big"), "-1 is less than 14"),
        (8, (40).to_bytes(4, "big"), "shorter than its header"),
        (16, b"\x01", "magic 1"),
    ],
)
def test_impossible_headers_stop_the_iteration(at: int, value: bytes, words: str) -> None:
    data = bytearray(plain())
    data[at : at + len(value)] = value
    with pytest.raises(errors.CorruptRecord, match=words):
        _core.iter_batches(data)


def _with(**changes: Any) -> bytes:
    """A batch of three records with a changed payload or header, and a valid CRC."""
    data = bytearray(plain())
    for at, value in changes.get("header", {}).items():
        data[at : at + len(value)] = value
    if "payload" in changes:
        data[61:] = changes["payload"]
        data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[17:21] = codec.crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def record(body: bytes, size: int | None = None) -> bytes:
    return codec.encode_varint(len(body) if size is None else size) + body


R = codec.encode_varint
ONE_HEADER_KEY_MINUS_1 = bytes(3) + R(-1) + R(-1) + R(1) + R(-1) + R(-1)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (_with(header={57: (4).to_bytes(4, "big")}), "counts 4 records but ends after 3"),
        (_with(header={57: (2).to_bytes(4, "big")}), "left over after the last of 2"),
        (_with(header={57: (2**32 - 1).to_bytes(4, "big")}), "negative count of records -1"),
        (_with(header={23: (2**32 - 1).to_bytes(4, "big")}), "last offset delta -1"),
        (_with(header={23: (1).to_bytes(4, "big")}), "offset delta 2 after 1"),
        (_with(header={21: (5).to_bytes(2, "big")}), "codec 5"),
        (_with(header={57: (1).to_bytes(4, "big")}, payload=record(bytes(6), 7)), "claims 7 bytes where 6"),
        (_with(header={57: (1).to_bytes(4, "big")}, payload=record(bytes(5))), "declares 5 bytes"),
        (_with(header={57: (1).to_bytes(4, "big")}, payload=record(bytes(7))), "declares 7 bytes but its fields take 6"),
        (_with(header={57: (1).to_bytes(4, "big")}, payload=record(bytes(3) + R(9) + bytes(4))), "key claims 9"),
        (_with(header={57: (1).to_bytes(4, "big")}, payload=record(bytes(4) + R(9) + bytes(4))), "value claims 9"),
        (_with(header={57: (1).to_bytes(4, "big")}, payload=record(bytes(5) + R(9))), "claims 9 headers in 0"),
        (_with(header={57: (1).to_bytes(4, "big")}, payload=record(bytes(5) + R(-1))), "claims -1 headers"),
        (_with(header={57: (1).to_bytes(4, "big")}, payload=record(bytes(5) + R(2**31 - 1))), "claims 2147483647 headers"),
        (_with(header={57: (1).to_bytes(4, "big")}, payload=record(ONE_HEADER_KEY_MINUS_1)), "header key claims -1"),
        (_with(header={57: (1).to_bytes(4, "big")}, payload=record(bytes(5) + R(1) + R(5) + R(-1))), "header key claims 5"),
        (_with(header={57: (1).to_bytes(4, "big")}, payload=record(bytes(5) + R(1) + R(0) + R(5))), "header value claims 5"),
        (_with(header={57: (1).to_bytes(4, "big")}, payload=b"\xff" * 6), "varint is cut short or too long"),
        (_with(header={57: (1).to_bytes(4, "big")}, payload=record(bytes(1) + b"\xff" * 11)), "varint is cut short"),
    ],
)  # fmt: skip
def test_inconsistent_records_raise_an_error_that_names_them(batch: bytes, words: str) -> None:
    found = _core.iter_batches(batch)[0]
    with pytest.raises(errors.CorruptRecord, match=words):
        found.records()
    with pytest.raises(errors.CorruptRecord, match=words):
        _core.decode_records("t", 0, batch, 0, 100)


def test_an_error_about_a_crc_mismatch_names_both_values() -> None:
    data = bytearray(plain())
    data[-1] ^= 1
    assert not _core.iter_batches(data)[0].valid
    with pytest.raises(errors.CorruptRecord, match=r"CRC-32C [0-9a-f]{8} .* stored [0-9a-f]{8}"):
        _core.decode_records("t", 0, data, 0, 10)
    assert len(_core.decode_records("t", 0, data, 0, 10, check_crc=False)[0]) == 3


def test_the_leader_epoch_and_the_base_offset_are_outside_the_crc() -> None:
    data = bytearray(plain())
    data[0:8], data[12:16] = (77).to_bytes(8, "big"), (5).to_bytes(4, "big")
    batch = _core.iter_batches(data)[0]
    assert (batch.valid, batch.base_offset, batch.leader_epoch) == (True, 77, 5)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_truncation_at_every_byte_raises_only_typed_errors(compression: str) -> None:
    whole = (BATCHES / f"mixed_{compression}.bin").read_bytes()
    head = bytearray(whole)
    for cut in range(61, len(whole)):
        # The length field agrees with the cut, so the reader does go inside.
        head[8:12] = (cut - 12).to_bytes(4, "big")
        piece = bytes(head[:cut])
        batch = _core.iter_batches(piece)[0]
        assert not batch.valid
        with pytest.raises(errors.CorruptRecord):
            batch.records()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mixed_none", "mixed_lz4", "txn_zstd", "mixed_snappy", "mixed_gzip"]
)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_damage_raises_only_typed_errors(name: str, data: st.DataObject) -> None:
    bytes_ = bytearray((BATCHES / f"{name}.bin").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        bytes_[data.draw(st.integers(0, len(bytes_) - 1))] = data.draw(st.integers(0, 255))
    for read in (
        lambda: read_all(bytes(bytes_)),
        lambda: _core.decode_records("t", 0, bytes(bytes_), 0, 2**62, check_crc=False),
        lambda: _core.TransactionFold().feed(bytes(bytes_)),
    ):
        try:
            read()
        except errors.CorruptRecord:
            pass


def test_decode_records_returns_only_the_requested_range() -> None:
    data = plain(4, base_offset=10) + plain(4, base_offset=20)
    records, position = _core.decode_records("t", 7, data, 12, 22)
    assert [r.offset for r in records] == [12, 13, 20, 21]
    assert position == 22
    first = records[0]
    assert (first.topic, first.partition, first.timestamp, first.timestamp_type) == (
        "t",
        7,
        TS + 2,
        0,
    )
    assert (first.key, first.value, first.headers) == (b"k2", b"v2", [("h", b"x"), ("n", None)])
    assert _core.decode_records("t", 7, data, 12, 30)[1] == 24
    assert _core.decode_records("t", 7, data, 14, 19) == ([], 19)


def test_decode_records_stops_at_the_limit_and_continues_from_there() -> None:
    data = plain(4, base_offset=0) + plain(4, base_offset=6)
    seen: list[int] = []
    position = 0
    for _ in range(20):
        records, after = _core.decode_records("t", 0, data, position, 10, None, 3)
        assert len(records) <= 3
        seen += [r.offset for r in records]
        if after == position:
            break
        position = after
    assert seen == [0, 1, 2, 3, 6, 7, 8, 9]
    assert position == 10
    assert _core.decode_records("t", 0, data, 0, 10, None, 0) == ([], 0)


def test_control_and_aborted_batches_are_skipped() -> None:
    txn = {"producer_id": 9, "producer_epoch": 0, "transactional": True}
    data = (
        plain(2, base_offset=0, base_sequence=0, **txn)
        + plain(1, base_offset=2)
        + codec.encode_marker(9, 0, False, coordinator_epoch=0, timestamp=TS, base_offset=3)
        + plain(2, base_offset=4, base_sequence=2, **txn)
        + codec.encode_marker(9, 0, True, coordinator_epoch=0, timestamp=TS, base_offset=6)
    )
    fold = _core.TransactionFold()
    assert fold.feed(data) == len(data)
    assert (fold.aborted, fold.open, fold.last_stable_offset) == ([(9, 0, 3)], {}, 7)
    aborted = _core.AbortedTransactions(fold.aborted)
    committed, position = _core.decode_records("t", 0, data, 0, 100, aborted)
    assert [r.offset for r in committed] == [2, 4, 5]
    assert position == 7
    everything, _ = _core.decode_records("t", 0, data, 0, 100)
    assert [r.offset for r in everything] == [0, 1, 2, 4, 5]
    assert (9, 0) in aborted
    assert (9, 4) not in aborted
    assert (8, 0) not in aborted


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5), st.integers(1, 5)), max_size=30),
    st.randoms(use_true_random=False),
    st.sampled_from(["rising", "by producer", "any order"]),
)
def test_the_lookup_of_aborted_ranges_agrees_with_a_plain_search(
    steps: list[tuple[int, int, int]], dice: random.Random, order: str
) -> None:
    ids = [0, 1, 2, 3, 1 << 32, 1 << 62, 1000, -1]
    ranges: list[tuple[int, int, int]] = []
    at = dict.fromkeys(ids, 0)
    for number, gap, length in steps:
        pid = ids[number]
        first = at[pid] + gap
        ranges.append((pid, first, first + length))
        at[pid] = first + length + 1
    questions = [(pid, offset) for pid in ids for offset in range(at[pid] + 2)]
    if order == "rising":
        questions.sort(key=lambda question: question[1])
        ranges.sort(key=lambda found: found[2])
    elif order == "any order":
        dice.shuffle(questions)
        dice.shuffle(ranges)
    aborted = _core.AbortedTransactions(ranges)
    assert len(aborted) == len(ranges)
    for pid, offset in questions:
        wanted = any(p == pid and f <= offset <= last for p, f, last in ranges)
        assert ((pid, offset) in aborted) == wanted


def test_records_before_damage_are_returned_and_the_next_call_raises() -> None:
    bad = bytearray(plain(2, base_offset=2))
    bad[30] ^= 0xFF
    data = plain(2, base_offset=0) + bytes(bad)
    records, position = _core.decode_records("t", 0, data, 0, 10)
    assert ([r.offset for r in records], position) == ([0, 1], 2)
    with pytest.raises(errors.CorruptRecord, match="at offset 2"):
        _core.decode_records("t", 0, data, position, 10)


def test_deserializers_get_bytes_and_their_errors_wait_for_their_record() -> None:
    data = codec.encode_batch([(TS, b"1", b"x", ()), (TS, None, b"y", ()), (TS, b"no", None, ())])
    records, position = _core.decode_records("t", 0, data, 0, 9, None, None, int, bytes.decode)
    assert [(r.key, r.value) for r in records] == [(1, "x"), (None, "y")]
    assert position == 2
    with pytest.raises(ValueError, match="invalid literal"):
        _core.decode_records("t", 0, data, position, 9, None, None, int, bytes.decode)


def test_a_record_compares_hashes_and_pickles_by_value() -> None:
    record = _core.Record("t", 1, 2, 3, 0, b"k", b"v", [("h", None)], 4)
    assert record == pickle.loads(pickle.dumps(record))
    assert record != _core.Record("t", 1, 2, 3, 0, b"k", b"w", [("h", None)], 4)
    assert hash(record) == hash(_core.Record("t", 1, 2))
    assert "offset=2" in repr(record)
    with pytest.raises(AttributeError):
        record.offset = 5


def test_a_batch_cannot_be_constructed_directly() -> None:
    with pytest.raises(TypeError):
        _core.Batch()
    empty = _core.Batch.__new__(_core.Batch)
    assert empty.count == 0
    assert empty.records() == []


def test_a_limit_that_ends_with_the_last_batch_raises_nothing() -> None:
    data = codec.encode_batch([(TS, b"k", b"v", ())])
    for strict in (True, False):
        assert len(_core.iter_batches(data, strict=strict, limit=1)) == 1
        assert len(_core.iter_batches(data + data, strict=strict, limit=1)) == 1
        assert len(_core.iter_batches(data + data[:9], strict=strict, limit=1)) == 1
