"""Arguments of public calls, looked at before anything is done with them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from eoslog.errors import ConfigError

__all__ = ["as_directory", "as_mapping", "as_names"]


def as_mapping(what: str, value: Any) -> Mapping[Any, Any]:
    """A mapping as it is. Raises ConfigError for anything else."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{what}: expected a dict, got {value!r}")
    return value


def as_names(what: str, values: tuple[Any, ...]) -> list[str]:
    """Topic names that were given one by one. Raises ConfigError where one is no string."""
    for value in values:
        if not isinstance(value, str):
            raise ConfigError(f"{what}: expected topic names one by one ('a', 'b'), got {value!r}")
    return list(values)


def as_directory(path: Any) -> str:
    """The absolute path of a directory that may be there or not.

    Raises:
        ConfigError: it is no path, or an empty one, which would mean the current directory.
    """
    found = path if isinstance(path, str) else getattr(path, "__fspath__", lambda: None)()
    if not isinstance(found, str) or not found or "\0" in found:
        raise ConfigError(f"path: expected the path of a directory, got {path!r}")
    return os.path.abspath(found)
