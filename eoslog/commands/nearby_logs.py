"""Find logs near a directory that is not a log, for the error message."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

_MOST_LOOKED_AT, _MOST_NAMED = 500, 4


def is_log(directory: str) -> bool:
    """Return whether a directory is a log of eoslog, by its meta.properties."""
    try:
        with open(os.path.join(directory, "meta.properties"), encoding="utf-8") as file:
            return "eoslog.format" in file.read(100_000)
    except (OSError, ValueError):
        return False


def nearby(directory: str) -> list[str]:
    """Return logs in, above and next to the directory, nearest first, as -d values."""
    place = os.path.realpath(directory)
    found = []
    for candidate in _around(place):
        if candidate != place and candidate not in found and is_log(candidate):
            found.append(candidate)
            if len(found) == _MOST_NAMED:
                break
    here = os.path.realpath(".")
    return [_short(path, here) for path in found]


def _around(place: str) -> Iterator[str]:
    yield from _folders(place)
    above = place
    while not os.path.isdir(above):  # a path that was mistyped somewhere
        above = os.path.dirname(above)
    above = os.path.dirname(above) if above == place else above
    yield above
    yield from _folders(above)
    yield os.path.dirname(above)


def _folders(place: str) -> Iterator[str]:
    try:
        with os.scandir(place) as entries:
            names = [entry.path for entry, _ in zip(entries, range(_MOST_LOOKED_AT), strict=False)]
    except OSError:
        return
    yield from sorted(path for path in names if os.path.isdir(path))


def _short(path: str, here: str) -> str:
    relative = os.path.relpath(path, here)
    return min(relative, path, key=len)


def missing(directory: str, why: str) -> str:
    """Return the message for a directory without a log, with possible values of -d."""
    logs = " or ".join(f"-d {shlex.quote(path)}" for path in nearby(directory))
    instead = f"there is a log nearby: {logs}" if logs else "-d DIR names the directory of a log"
    return f"{why}; {instead} (`eoslog init` creates one)"
