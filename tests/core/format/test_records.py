"""Records as consumers get them: what they hold, and that it stays."""

from __future__ import annotations

import pickle
import types
from collections.abc import Callable

import pytest

from eoslog import Record, _core
from eoslog.errors import CorruptRecord

FIELDS = {
    "topic": "orders", "partition": 2, "offset": 1 << 40, "timestamp": 5, "timestamp_type": 1, "key": b"k",
    "value": b"v", "headers": [("h", b"1"), ("h", None)], "leader_epoch": 7,
}  # fmt: skip


def test_a_record_has_the_fields_that_it_was_created_with() -> None:
    record = Record(**FIELDS)
    assert {name: getattr(record, name) for name in FIELDS} == FIELDS
    assert record == pickle.loads(pickle.dumps(record)) == Record(**FIELDS)


def test_fields_that_are_not_given_are_null() -> None:
    record = Record("orders", 0, 0)
    assert (record.key, record.value, record.headers, record.timestamp) == (None, None, [], -1)


@pytest.mark.parametrize("name", FIELDS)
def test_no_field_of_a_record_can_be_set_or_deleted(name: str) -> None:
    record = Record(**FIELDS)
    with pytest.raises(AttributeError):
        setattr(record, name, FIELDS[name])
    with pytest.raises(AttributeError):
        delattr(record, name)
    assert getattr(record, name) == FIELDS[name]


@pytest.mark.parametrize("name", ["topic", "key", "value"])
def test_fields_of_a_record_are_read_through_slots(name: str) -> None:
    """As of a class with `__slots__`: the interpreter then needs no call."""
    assert isinstance(vars(Record)[name], types.MemberDescriptorType)
    missing = Record.__new__(Record)
    assert getattr(missing, name) is None


def _batch(base_offset: int, *values: bytes, **options: int | bool) -> bytes:
    return _core.build_batch(
        [(5, None, value, ()) for value in values], base_offset=base_offset, **options
    )


def _decoder(
    data: bytes,
    aborted: _core.AbortedTransactions | None = None,
    value_deserializer: Callable[[bytes], object] | None = None,
) -> _core.RecordDecoder:
    return _core.RecordDecoder(
        "orders", 2, data, 0, 100, aborted, None, value_deserializer, True, None
    )


def test_a_decoder_continues_at_the_batch_after_the_wanted_records() -> None:
    decoder = _decoder(_batch(0, b"a", b"b") + _batch(4, b"c", b"d") + _batch(6, b"e"))
    steps = [([r.value for r in decoder.take(least)], decoder.position) for least in (0, 1, 3, 1)]
    assert steps == [([], 0), ([b"a", b"b"], 2), ([b"c", b"d", b"e"], 7), ([], 7)]


def test_a_decoder_passes_batches_without_records_after_the_last_wanted_one() -> None:
    producer = {"producer_id": 9, "producer_epoch": 0}
    aborted = _batch(1, b"no", base_sequence=0, transactional=True, **producer)
    marker = _core.build_marker(9, 0, False, timestamp=5, coordinator_epoch=0, base_offset=2)
    data = _batch(0, b"a") + aborted + marker + _batch(3, b"b")
    decoder = _decoder(data, aborted=_core.AbortedTransactions([(9, 1, 2)]))
    assert [r.value for r in decoder.take(1)] == [b"a"]
    assert decoder.position == 3
    assert [r.value for r in decoder.take(1)] == [b"b"]


def test_a_decoder_raises_each_time_at_the_damage_after_its_records() -> None:
    first, damaged = _batch(0, b"a"), bytearray(_batch(1, b"b"))
    damaged[-2] ^= 1
    decoder = _decoder(first + bytes(damaged))
    assert [r.value for r in decoder.take(9)] == [b"a"]
    for _ in range(2):
        with pytest.raises(CorruptRecord, match="at offset 1") as caught:
            decoder.take(9)
        assert (caught.value.position, decoder.position) == (len(first), 1)


def test_a_decoder_raises_the_error_of_a_deserializer_at_its_record() -> None:
    decoder = _decoder(_batch(0, b"1", b"2", b"x"), value_deserializer=int)
    assert [r.value for r in decoder.take(9)] == [1, 2]
    with pytest.raises(ValueError, match="invalid literal"):
        decoder.take(9)
    assert decoder.position == 2
