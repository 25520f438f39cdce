"""Texts that show how records differ."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from eoslog._core import Record
from eoslog.shown_values import printable

__all__ = ["diff", "explained", "shown_item"]

_FIELDS = (
    "topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers",
    "leader_epoch",
)  # fmt: skip
_LONGEST = 500
_AROUND = 2
"""Equal lines that a difference is shown with, before and after it."""


def short(value: object) -> str:
    """Return the `repr` of a value on one line, cut if it is long."""
    text = printable(repr(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text):,} characters)"


def shown_item(item: Any) -> str:
    """Return one line for a record, a (key, value), or a value."""
    if isinstance(item, Record):
        headers = f" headers={short(item.headers)}" if item.headers else ""
        return f"{short(item.key)}: {short(item.value)}{headers}"
    if isinstance(item, tuple) and len(item) == 2:
        return f"{short(item[0])}: {short(item[1])}"
    return short(item)


def diff(expected: Sequence[str], got: Sequence[str], places: Sequence[str]) -> list[str]:
    """Return lines that begin with "-" (expected), "+" (got) or a space (both).

    Args:
        expected: one line for each.
        got: one line for each.
        places: where each of `got` is; added to its line.
    """
    lines: list[str] = []
    matcher = difflib.SequenceMatcher(None, expected, got, autojunk=False)
    opcodes = matcher.get_opcodes()
    for number, (tag, begin, end, first, after) in enumerate(opcodes):
        if tag == "equal":
            same = [f"  {got[at]}   {places[at]}".rstrip() for at in range(first, after)]
            head = 0 if number == 0 else _AROUND
            tail = 0 if number == len(opcodes) - 1 else _AROUND
            if len(same) > head + tail + 1:
                middle = f"  ... {len(same) - head - tail} equal ..."
                same = [*same[:head], middle, *same[len(same) - tail :]]
            lines += same
            continue
        lines += [f"- {expected[at]}" for at in range(begin, end)]
        lines += [f"+ {got[at]}   {places[at]}".rstrip() for at in range(first, after)]
    return lines


def explained(left: Any, right: Any) -> list[str]:
    """Return the lines that pytest shows for a failed `left == right` with records."""
    if isinstance(left, Record) and isinstance(right, Record):
        return [f"{place(left)} == {place(right)}", *differences(left, right)]
    if not (isinstance(left, list | tuple) and isinstance(right, list | tuple)):
        return [
            f"{_kind(left)} == {_kind(right)}",
            f"a record is equal to records only; compare its fields: {shown_item(left)}",
        ]
    lines = [f"{_kind(left)} == {_kind(right)}"]
    if not all(isinstance(item, Record) for item in (*left, *right)):
        lines.append(
            "a record is equal to records only; compare [record.value for record in ...], or use "
            "eoslog.testing.assert_records"
        )
    for at, (one, other) in enumerate(zip(left, right, strict=False)):
        if isinstance(one, Record) and isinstance(other, Record) and one != other:
            lines += [f"at index {at}:", *(f"  {line}" for line in differences(one, other))]
    for side, items, more in (("left", left, len(right)), ("right", right, len(left))):
        rest = range(more, len(items))
        lines += [f"only {side}, at index {at}: {_line(items[at])}" for at in rest]
    return lines


def differences(left: Record, right: Record) -> list[str]:
    """Return one line for each field in which two records differ."""
    pairs = ((name, getattr(left, name), getattr(right, name)) for name in _FIELDS)
    return [f"{name}: {short(one)} != {short(other)}" for name, one, other in pairs if one != other]


def place(record: Record) -> str:
    """Return where a record is."""
    return f"{record.topic}-{record.partition} at offset {record.offset}"


def _line(item: Any) -> str:
    return f"{place(item)}: {shown_item(item)}" if isinstance(item, Record) else shown_item(item)


def _kind(side: Any) -> str:
    if isinstance(side, list | tuple):
        return f"{type(side).__name__} of {len(side)}"
    return place(side) if isinstance(side, Record) else short(side)
