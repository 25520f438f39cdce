"""Times, durations and sizes as people type them."""

from __future__ import annotations

import re
import time
from datetime import datetime

import click

_MS = {
    "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
    "w": 604_800_000,
}  # fmt: skip
_BYTES = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)")


def milliseconds(text: str) -> int | None:
    """Return a duration such as `7d`, `1.5h` or `90s`, in ms; None if it is not one."""
    return _scaled(text, _MS)


def size(text: str) -> int | None:
    """Return a size such as `1GiB` or `500kB`, in bytes; None if it is not one."""
    return _scaled(text, _BYTES)


def _scaled(text: str, units: dict[str, int]) -> int | None:
    found = _NUMBER.fullmatch(text.strip())
    if found is None or found[2].lower() not in units:
        return None
    return round(float(found[1]) * units[found[2].lower()])


def key_value(key: str, value: str) -> str:
    """Return a configuration value; a duration or size becomes a number."""
    if key.endswith((".ms", "_ms")):
        number = milliseconds(value)
    elif key.endswith((".bytes", "_bytes", ".size", "_size", ".memory", "_memory")):
        number = size(value)
    else:
        number = None
    return value if number is None else str(number)


class Moment(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """A point in time: in ISO form, local without a zone, or a duration before now."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the time, in ms since the epoch."""
        if isinstance(value, int):
            return value
        text = str(value)
        if (age := milliseconds(text)) is not None:
            return int(time.time() * 1000) - age
        try:
            return int(datetime.fromisoformat(text).timestamp() * 1000)
        except (ValueError, OverflowError, OSError):
            self.fail(
                f"expected a time such as 2026-11-26T14:30, 2026-11-26T14:30Z or 90m (ago), "
                f"got {text!r}",
                param, ctx,
            )  # fmt: skip
