"""The records of prepared transactions and of their payload, byte by byte."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eoslog import errors
from eoslog.coordinator.transactions import staged_records
from eoslog.coordinator.transactions.prepared_records import (
    CHECK_VERSION,
    TOKEN_VERSION,
    PendingOffset,
    PreparedEntry,
    check_key,
    check_value,
    decode_check,
    decode_entry,
    encode_entry,
    prepared_key,
    token_key,
)
from eoslog.coordinator.transactions.staged_records import StagedBatches
from eoslog.coordinator.transactions.state import PARKED, PREPARED, OffsetSpan
from eoslog.model import TopicPartition

KEY = (1 << 40, 32766)
TOPIC_ID = bytes(range(16))
ENTRY = PreparedEntry(
    KEY, "staged", PARKED, "till-é", "db", b"j{}", 1, 2, -1, 4, 5, (6, 2**64 - 1), (9, 1), 7, 8,
    ((TopicPartition("orders", 3), OffsetSpan(9, 10, TOPIC_ID)),),
    (PendingOffset("g", "orders", TOPIC_ID, 3, 11, -1, "note"),), 12,
)  # fmt: skip
PART = StagedBatches(TopicPartition("orders", 3), TOPIC_ID, b"batches", 2)
HEADERS = staged_records.encode_headers(PART, (6, 2**64 - 1))


@pytest.mark.parametrize("entry", [ENTRY, PreparedEntry(KEY, "inline", PREPARED, "t")])
def test_an_entry_is_read_as_it_was_written(entry: PreparedEntry) -> None:
    assert decode_entry(KEY, encode_entry(entry)) == entry


@pytest.mark.parametrize("size", range(len(encode_entry(ENTRY))))
def test_a_truncated_entry_is_corrupt(size: int) -> None:
    with pytest.raises(errors.CorruptRecord):
        decode_entry(KEY, encode_entry(ENTRY)[:size])


def test_an_entry_of_version_1_was_never_taken_over() -> None:
    data = bytearray(encode_entry(ENTRY)[:-4])
    data[1] = 1
    assert decode_entry(KEY, bytes(data)) == replace(ENTRY, takeovers=0)


@pytest.mark.parametrize(("place", "what"), [(1, "version"), (2, "mode"), (3, "state")])
def test_an_entry_of_another_version_mode_or_state_is_corrupt(place: int, what: str) -> None:
    data = bytearray(encode_entry(ENTRY))
    data[place] = 33
    with pytest.raises(errors.CorruptRecord, match=what):
        decode_entry(KEY, bytes(data))


@pytest.mark.parametrize("size", range(len(check_value(1, 2, PARKED))))
def test_a_truncated_check_is_corrupt(size: int) -> None:
    assert decode_check(check_value(1, 2, PARKED), KEY) == (1, 2, PARKED)
    with pytest.raises(errors.CorruptRecord):
        decode_check(check_value(1, 2, PARKED)[:size], KEY)


def test_keys_of_another_size_or_version_name_no_prepared_transaction() -> None:
    assert prepared_key(token_key(KEY)) == (TOKEN_VERSION, KEY)
    assert prepared_key(check_key(KEY)) == (CHECK_VERSION, KEY)
    for other in (token_key(KEY)[:-1], token_key(KEY) + b"\0", b"\0\x66" + token_key(KEY)[2:], b""):
        assert prepared_key(other) is None


def test_a_part_is_read_as_it_was_written() -> None:
    key = staged_records.decode_key(staged_records.encode_key(KEY, 5))
    assert (key.attempt, key.number) == (KEY, 5)
    assert staged_records.decode_part(b"batches", HEADERS) == PART
    assert staged_records.decode_owner(HEADERS) == (6, 2**64 - 1)


@pytest.mark.parametrize("size", [*range(14), 15])
def test_a_key_of_a_part_with_another_size_is_corrupt(size: int) -> None:
    key = staged_records.encode_key(KEY, 5) + b"\0"
    with pytest.raises(errors.CorruptRecord, match=f"found {size}$"):
        staged_records.decode_key(key[:size])


def test_a_part_without_a_key_is_corrupt() -> None:
    with pytest.raises(errors.CorruptRecord, match="no key"):
        staged_records.decode_key(None)


@pytest.mark.parametrize("name", ["topic", "partition", "topic.id", "records"])
@pytest.mark.parametrize("change", ["missing", "null", "a byte too few", "not text"])
def test_a_part_with_an_invalid_header_is_corrupt_or_decoded(name: str, change: str) -> None:
    changed = {
        "missing": lambda data: None,
        "null": lambda data: [(name, None)],
        "a byte too few": lambda data: [(name, data[:-1])],
        "not text": lambda data: [(name, b"\xff")],
    }[change]
    headers: list[tuple[str, bytes | None]] = []
    for title, data in HEADERS:
        headers += (changed(data) or []) if title == name else [(title, data)]
    if name == "topic" and change in ("null", "a byte too few"):
        assert staged_records.decode_part(b"", headers).partition.topic in ("", "order")
        return  # any text can be the name of a topic
    with pytest.raises(errors.CorruptRecord):
        staged_records.decode_part(b"", headers)


@pytest.mark.parametrize("size", range(12))
def test_a_truncated_owner_of_a_part_is_corrupt(size: int) -> None:
    headers = [(name, data[:size] if name == "owner" else data) for name, data in HEADERS]
    with pytest.raises(errors.CorruptRecord):
        staged_records.decode_owner(headers)
