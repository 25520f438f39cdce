"""Values in messages: short, and printable on every terminal and in every log."""

from __future__ import annotations

from typing import Any

_LONGEST_SHOWN = 300


def shown_value(value: Any) -> str:
    """Return a short text for a value, also if its `repr` fails."""
    try:
        text = repr(value)
    except Exception:  # an int of thousands of digits; a class with a faulty __repr__
        size = f" of {value.bit_length():,} bits" if isinstance(value, int) else ""
        text = f"<{type(value).__name__}{size}>"
    if len(text) > _LONGEST_SHOWN:
        text = f"{text[:_LONGEST_SHOWN]}... ({len(text):,} characters)"
    return printable(text)


def printable(text: str) -> str:
    """Return a text that UTF-8 can encode, with escapes for lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()
