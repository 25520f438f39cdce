"""The numbers of an application's workers, and the check of their topology.

`eoslog.apps/<id>/<n>.lock` in the directory of the log is locked by the living worker `n`. It has
the topology of that worker. A worker takes the lowest number that is free, and its transactional
id is `<id>-<n>`. So after a crash, the next worker completes or aborts what the number has left.

Two workers with different topologies cannot both start: each writes its topology before it reads
those of the others.
"""

from __future__ import annotations

import itertools
import json
import os
import time
import weakref
from typing import Any

from eoslog import _core
from eoslog._util.closing import Closing
from eoslog.errors import TopologyChanged
from eoslog.storage.fs import files

__all__ = ["Instance", "folder_of"]

Topology = dict[str, Any]

_LOOK_AGAIN_S = 1.0
"""A number that was taken just now has the topology of its previous worker for a moment."""

_instances: weakref.WeakSet[Instance] = weakref.WeakSet()


def folder_of(log_path: str, app_id: str) -> str:
    """Return the folder of an application's files, and create it if it is missing."""
    parent = os.path.join(log_path, "eoslog.apps")
    folder = os.path.join(parent, app_id)
    mode = files.shared_mode(log_path)
    for path in (parent, folder):
        if not files.is_dir(path):
            files.make_dir(path, mode=mode)
    return folder


class Instance(Closing):
    """The number of a worker, which it holds until it is closed or its process ends.

    Attributes:
        number: the number.
        folder: the folder of the application.
    """

    def __init__(self, folder: str, app_id: str, topology: Topology) -> None:
        """Take the lowest number that is free.

        Raises:
            TopologyChanged: if another worker runs with another topology.
            StorageError: if the files cannot be written.
        """
        self.folder = folder
        self._fd = -1
        for number in itertools.count():
            fd = files.open_file(self._path(number), create=True)
            if _core.try_lock(fd, 0):
                self.number, self._fd = number, fd
                break
            files.close(fd)
        _instances.add(self)
        try:
            self._write(json.dumps(topology, sort_keys=True))
            self._compare(app_id, topology)
        except BaseException:
            self.close()
            raise

    def _path(self, number: int) -> str:
        return os.path.join(self.folder, f"{number}.lock")

    def _write(self, text: str) -> None:
        with files.naming(self._path(self.number)):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text.encode(), 0)

    def _compare(self, app_id: str, topology: Topology) -> None:
        for name in files.names(self.folder):
            number = name.removesuffix(".lock")
            if number.isdecimal() and int(number) != self.number:
                other = self._other(int(number), topology)
                if other is not None:
                    raise TopologyChanged(
                        f"app {app_id!r}: worker {number} runs with other tasks or tables "
                        f"({_difference(other, topology)}); stop its process first, or give this "
                        "application another id"
                    )

    def _other(self, number: int, topology: Topology) -> Topology | None:
        """The topology of a living worker; None if it is the same, or no worker lives."""
        deadline = time.monotonic() + _LOOK_AGAIN_S
        while True:
            fd = files.open_or_none(self._path(number))
            if fd < 0:
                return None
            try:
                if _core.try_lock(fd, 0):  # freed by the close
                    return None
                with files.naming(self._path(number)):
                    text = os.pread(fd, 1 << 20, 0)
            finally:
                files.close(fd)
            other = _parsed(text)
            if other == topology:
                return None
            if time.monotonic() >= deadline:
                return other
            time.sleep(0.02)

    def close(self) -> None:
        """Free the number."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            files.close(fd)


def _parsed(text: bytes) -> Topology | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None  # it is being written
    return found if isinstance(found, dict) else None


def _difference(theirs: Topology, ours: Topology) -> str:
    """The first difference of two topologies, in words."""
    for kind in sorted(theirs.keys() | ours.keys()):
        left, right = theirs.get(kind, {}), ours.get(kind, {})
        for name in sorted(left.keys() | right.keys()):
            if left.get(name) != right.get(name):
                return f"{kind} {name!r} is {left.get(name)} there and {right.get(name)} here"
    return "they differ"


def _after_fork() -> None:
    for instance in list(_instances):
        instance.close()  # else the child would hold the number after the worker's end


os.register_at_fork(after_in_child=_after_fork)
