"""Values as JSON that every parser accepts."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from functools import partial
from typing import Any

NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""The numbers that JSON lacks."""


def as_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON; NaN and infinite numbers are the texts NOT_FINITE."""
    # Characters that stdout cannot encode would be written as \\xfc, which is not JSON.
    plain = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    dumps = partial(json.dumps, default=_plain, ensure_ascii=plain, indent=indent, allow_nan=False)
    try:
        return dumps(value)
    except ValueError:
        return dumps(finite(value))


def finite(value: Any) -> Any:
    """Return a value with the numbers that JSON lacks as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return {finite(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)
