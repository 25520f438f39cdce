"""Records as consumers get them: what they hold, and that it stays."""

from __future__ import annotations

import pickle
import types

import pytest

from eoslog import Record

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
