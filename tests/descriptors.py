"""The files of a folder that this process has open."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def opened_files(folder: str | os.PathLike[str]) -> list[tuple[str, int]]:
    """Path and `open(2)` flags of each descriptor at or below `folder`, sorted.

    Logs of other tests may still open and close files of theirs, so descriptors are not counted
    for the whole process.
    """
    place, found = os.path.realpath(folder), []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor that listed them
            name = os.readlink(f"/proc/self/fd/{fd}")
            info = Path(f"/proc/self/fdinfo/{fd}").read_text()
            if name == place or name.startswith(place + "/"):
                found.append((name, int(info.split("flags:")[1].split()[0], 8)))
    return sorted(found)
