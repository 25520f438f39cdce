"""Conversion of the options of a caller to text, before they are parsed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from eoslog.errors import ConfigError
from eoslog.errors import shown_value as shown
from eoslog.shown_values import printable


def texts_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options under lower-case names.

    Numbers and booleans become text in Spark's form.

    Raises:
        ConfigError: if `options` is not a mapping, or a name or value is not text.
    """
    if not isinstance(options, Mapping):
        raise ConfigError(f"options: expected a mapping, got {shown(options)}")
    found = {}
    for name, value in options.items():
        text = value
        if isinstance(value, bool):
            text = str(value).lower()
        elif isinstance(value, int | float):
            text = shown(value)
        elif isinstance(value, os.PathLike):
            text = os.fspath(value)
        demand_text(name, name)
        if value is not None:
            demand_text(name, text)
            found[name.lower()] = text
    return found


def demand_text(name: object, part: object) -> None:
    """Check that a part is text that can be written to a file or a record.

    Raises:
        ConfigError: if it is not.
    """
    if not isinstance(part, str) or "\0" in part or printable(part) != part:
        raise ConfigError(
            f"option {shown(name)}: expected text that UTF-8 can encode, got {shown(part)}"
        )
