"""Arguments of public calls, looked at before anything is done with them."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from eoslog.errors import ConfigError

__all__ = [
    "as_directory",
    "as_int",
    "as_list_of",
    "as_mapping",
    "as_names",
    "as_path",
    "as_seconds",
    "keys_of_log",
]

_LONGEST_S = 1e9  # a time from now on is one in ns of 64 bits


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


def as_int(what: str, value: Any, expected: str = "an int") -> int:
    """A whole number of any kind as an int.

    Raises:
        ConfigError: it is anything else, booleans too, or has more than 64 bits.
    """
    if not isinstance(value, bool):
        try:
            found = operator.index(value)
        except TypeError:
            pass
        else:
            if -1 << 63 <= found < 1 << 63:
                return found
            raise ConfigError(f"{what}: expected {expected}, got {value!r}, above 64 bits")
    raise ConfigError(f"{what}: expected {expected}, got {value!r}")


def as_seconds(what: str, value: Any) -> float:
    """A timeout; one of more than 30 years, infinity too, is as long as clocks can hold.

    Raises:
        ConfigError: it is no number, not a number, or negative.
    """
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or value != value or value < 0:
        below = ", below 0" if number and value < 0 else ""
        raise ConfigError(f"{what}: expected a timeout in seconds, got {value!r}{below}")
    return value if value < _LONGEST_S else _LONGEST_S  # type: ignore[no-any-return]


def as_list_of(kind: type, what: str, names: str, values: Any) -> list[Any]:
    """Several values of one kind; whole numbers of any kind count as ints.

    Raises:
        ConfigError: it is one value, or one of them is of another kind.
    """
    if isinstance(values, str | bytes):
        raise ConfigError(f"{what}: expected a list of {names}, got the string {values!r}")
    if not isinstance(values, Iterable):
        raise ConfigError(f"{what}: expected a list of {names}, got {values!r}")
    if kind is int:
        return [as_int(what, value, f"a list of {names}") for value in values]
    found = list(values)
    for value in found:
        if not isinstance(value, kind):
            raise ConfigError(f"{what}: expected a list of {names}, got {value!r} in it")
    return found


def as_path(path: Any) -> str:
    """The path of what is there. Raises ConfigError where it is no path."""
    found = path if isinstance(path, str) else getattr(path, "__fspath__", lambda: None)()
    if not isinstance(found, str):
        raise ConfigError(f"path: expected a path, got {path!r}")
    return found


def as_directory(path: Any) -> str:
    """The absolute path of a directory that may be there or not.

    Raises:
        ConfigError: it is no path, or an empty one, which would mean the current directory.
    """
    found = path if isinstance(path, str) else getattr(path, "__fspath__", lambda: None)()
    if not isinstance(found, str) or not found or "\0" in found:
        raise ConfigError(f"path: expected the path of a directory, got {path!r}")
    return os.path.abspath(found)


def keys_of_log(
    path: str, config: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The configuration of a client of an open log.

    Raises:
        ConfigError: it is no mapping; or it, or a keyword, names another directory.
    """
    given = {} if config is None else as_mapping("config", config)
    for keys in (given, options):
        for name in ("log.dir", "log_dir"):
            other = keys.get(name, path)
            # By whatever link it is reached, as when it is opened.
            if os.path.realpath(as_directory(other)) != os.path.realpath(path):
                raise ConfigError(
                    f"{name}: this log is {path!r}, for {other!r} open that one with eoslog.open"
                )
    return {"log.dir": path, **given}
