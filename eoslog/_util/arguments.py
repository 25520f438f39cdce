"""Arguments of public calls, looked at before anything is done with them."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from eoslog.errors import ConfigError
from eoslog.shown_values import printable
from eoslog.shown_values import shown_value as shown

__all__ = [
    "as_directory",
    "as_int",
    "as_items",
    "as_list_of",
    "as_mapping",
    "as_mode",
    "as_names",
    "as_path",
    "as_seconds",
    "is_one_value",
    "keys_of_log",
    "printable",
    "shown",
]

_NUMBERS = (float, int)
_LONGEST_S = 1e9  # a time from now on is one in ns of 64 bits


def as_mapping(what: str, value: Any) -> Mapping[Any, Any]:
    """Return a mapping unchanged.

    Raises:
        ConfigError: if it is not a mapping.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{what}: expected a dict, got {shown(value)}")
    return value


def as_names(what: str, values: tuple[Any, ...]) -> list[str]:
    """Return topic names that were passed as separate arguments.

    Raises:
        ConfigError: if one of them is not a string.
    """
    for value in values:
        if not isinstance(value, str):
            raise ConfigError(
                f"{what}: expected topic names one by one ('a', 'b'), got {shown(value)}"
            )
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
            raise ConfigError(f"{what}: expected {expected}, got {shown(value)}, above 64 bits")
    raise ConfigError(f"{what}: expected {expected}, got {shown(value)}")


def as_mode(value: Any) -> int | None:
    """Permissions of a directory as an int, or None.

    Raises:
        ConfigError: they are none, or leave the owner less than read, write and search.
    """
    if value is None:
        return None
    found = as_int("mode", value, "permissions such as 0o770")
    if found & 0o700 != 0o700 or not 0 <= found <= 0o777:
        # Digits without 0o before them are a decimal number.
        octal = f"0o{found}" if re.fullmatch("7[0-7][0-7]", str(found)) else "0o770"
        raise ConfigError(f"mode: expected 0o700..0o777, got {found} (0o{found:o}); write {octal}")
    return found


def as_seconds(what: str, value: Any) -> float:
    """Return a timeout; one over 30 years becomes the maximum of the clocks.

    Raises:
        ConfigError: if it is not a number, is NaN, or is negative.
    """
    number = type(value) in _NUMBERS or (  # without the slower look at the abstract class
        isinstance(value, Real) and not isinstance(value, bool)
    )
    if not number or value != value or value < 0:
        below = ", below 0" if number and value < 0 else ""
        raise ConfigError(f"{what}: expected a timeout in seconds, got {shown(value)}{below}")
    return float(value) if value < _LONGEST_S else _LONGEST_S


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
    found = []
    for value in values:
        found.append(value)
        if not isinstance(value, kind):
            raise ConfigError(f"{what}: expected a list of {names}, got {shown(value)} in it")
    return found


def _encodes(path: str) -> bool:
    """Whether the system can have a file of this name."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def is_one_value(values: Any) -> bool:
    """Return whether a value is one string or bytes, which can be iterated too."""
    try:
        return isinstance(values, str) or memoryview(values).itemsize == 1
    except (TypeError, ValueError, BufferError):
        return False


def as_items(values: Iterable[Any]) -> list[Any]:
    """Several values as a list.

    Raises:
        TypeError: it is one string, or the bytes of one value, which may be of any size.
    """
    if is_one_value(values):
        raise TypeError(f"expected several values, got {shown(values)}")
    return list(values)


def as_path(path: Any) -> str:
    """Return an existing path.

    Raises:
        ConfigError: if it is not a path.
    """
    found = path if isinstance(path, str) else getattr(path, "__fspath__", lambda: None)()
    if not isinstance(found, str) or not _encodes(found):
        raise ConfigError(f"path: expected a path, got {shown(path)}")
    return found


def as_directory(path: Any) -> str:
    """Return the absolute path of a directory, which need not exist.

    Raises:
        ConfigError: if it is not a path, or is empty, which would mean the current directory, or
            is relative to a current directory that was removed.
    """
    found = path if isinstance(path, str) else getattr(path, "__fspath__", lambda: None)()
    if not isinstance(found, str) or not found or not _encodes(found):
        raise ConfigError(f"path: expected the path of a directory, got {shown(path)}")
    try:
        return os.path.abspath(found)
    except FileNotFoundError:
        raise ConfigError(
            f"path: {found!r} is relative, and the current directory was removed; give an absolute "
            "path, or change to another directory"
        ) from None


def keys_of_log(
    path: str, config: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The configuration of a client of an open log.

    Raises:
        ConfigError: if it is not a mapping, or if it or a keyword names another directory.
    """
    given = {} if config is None else as_mapping("config", config)
    for keys in (given, options):
        for name in ("log.dir", "log_dir"):
            other = keys.get(name, path)
            # By whatever link it is reached, as when it is opened.
            if os.path.realpath(as_directory(other)) != os.path.realpath(path):
                raise ConfigError(
                    f"{name}: this log is {path!r}, for {shown(other)} open that one with "
                    "eoslog.open"
                )
    return {"log.dir": path, **given}
