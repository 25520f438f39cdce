"""Assertions about the records of a topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from eoslog._core import Record
from eoslog.log import Log
from eoslog.testing.comparison import diff, shown_item

__all__ = ["assert_records"]


def assert_records(
    log: Log,
    topic: str,
    expected: Iterable[Any],
    *,
    partition: int | None = None,
    key: Any = None,
    value: Any = None,
    isolation: str = "read_committed",
    in_any_order: bool = False,
) -> None:
    """Assert that a topic has exactly these records.

    Partitions are read one after the other::

        assert_records(log, "orders", [("ada", "3 apples"), ("bob", "1 pear")])
        assert_records(log, "totals", [{"sum": 4}], value="json")

    Args:
        log: the log.
        topic: the topic.
        expected: for each record a value, a tuple (key, value), or a `Record`, which is compared
            with all fields. Without a format, a `str` is its UTF-8 bytes.
        partition: the partition; None means all.
        key: the format of keys, as in `Log.read`.
        value: the format of values, as in `Log.read`.
        isolation: "read_committed" or "read_uncommitted".
        in_any_order: compare without the order.

    Raises:
        AssertionError: if the records differ; the message shows how.
        EoslogError: as `Log.read`.
    """
    __tracebackhide__ = True
    partitions = None if partition is None else [partition]
    read = log.read(topic, partitions=partitions, isolation=isolation, key=key, value=value)
    records = list(read)
    wanted = [_encoded(item, key, value) for item in expected]
    order = list(range(len(records)))
    if in_any_order:
        order = _matched(records, wanted)
    got = [_as(item, records[at]) for item, at in zip(wanted, order, strict=False)]
    got += [_as(wanted[-1] if wanted else None, records[at]) for at in order[len(wanted) :]]
    if got == wanted:
        return
    places = [f"(partition {records[at].partition}, offset {records[at].offset})" for at in order]
    lines = diff([shown_item(item) for item in wanted], [shown_item(item) for item in got], places)
    head = f"{topic}: expected {len(wanted)} records (-), got {len(records)} (+)"
    raise AssertionError("\n".join([head, *lines]))


def _encoded(item: Any, key: Any, value: Any) -> Any:
    """The expected item, with the bytes of a `str` where there is no format."""
    if isinstance(item, tuple) and len(item) == 2:
        return _bytes(item[0], key), _bytes(item[1], value)
    return item if isinstance(item, Record) else _bytes(item, value)


def _bytes(part: Any, format_: Any) -> Any:
    return part.encode() if isinstance(part, str) and format_ is None else part


def _as(item: Any, record: Record) -> Any:
    """The part of a record that is compared with an expected item."""
    if isinstance(item, Record):
        return record
    return (record.key, record.value) if isinstance(item, tuple) else record.value


def _matched(records: list[Record], wanted: list[Any]) -> list[int]:
    """Return positions of records: those equal to the expected items, then the rest."""
    left = list(range(len(records)))
    order: list[int | None] = []
    for item in wanted:
        found = next((at for at in left if _as(item, records[at]) == item), None)
        order.append(found)
        if found is not None:
            left.remove(found)
    return [at if at is not None else left.pop(0) for at in order if at is not None or left] + left
