"""Bugs of the kind that the simulator exists for, planted on purpose: it must find every one of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from typing import Any

from eoslog import _core
from eoslog.client.acknowledger import Acknowledger
from eoslog.coordinator.transaction_ending import Endings
from eoslog.coordinator.transaction_log import TransactionLog
from eoslog.storage import files, log_flusher, log_loader
from eoslog.storage.log_flusher import LogFlusher
from tests.simulation import seam

_WRITTEN, _PUBLISHED = 3, 6


class But:
    """Something, with some of its functions replaced for one who uses it."""

    def __init__(self, _what: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced, _what=_what)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._what, name)


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _acknowledge_before_flush(self: Acknowledger) -> None:
    for item in list(self.waiting):
        self.settle(item.batch, None, item.result)
    self.waiting.clear()


def _rename_first(path: str, data: bytes) -> None:
    temporary = f"{path}.tmp"
    fd = files.open_file(temporary, create=True)
    _core.os_truncate(fd, 0)
    _core.os_pwrite(fd, data, 0)
    os.close(fd)
    _core.os_rename(temporary, path)
    files.fsync_dir(os.path.dirname(path))


class _PublishFirst:
    """The seam's `pwrite` and `point`: an append's bytes come after its publication."""

    def __init__(self) -> None:
        self.pwrite, self.point = seam.Calls.pwrite, seam.Calls.point
        self.busy: dict[object, list[tuple[int, bytes, int]] | None] = {}

    def late_pwrite(self, calls: seam.Calls, fd: int, data: int, size: int, at: int) -> int:
        waiting = self.busy.get(calls.world.current)
        if waiting is None:
            return self.pwrite(calls, fd, data, size, at)
        waiting.append((fd, ctypes.string_at(data, size), at))
        return size

    def seen_point(self, calls: seam.Calls, number: int) -> None:
        me = calls.world.current
        if number == 1:
            self.busy[me] = []
        self.point(calls, number)
        if number == _PUBLISHED:
            for fd, data, at in self.busy.pop(me, None) or []:
                buffer = ctypes.create_string_buffer(data, len(data))
                self.pwrite(calls, fd, ctypes.addressof(buffer), len(data), at)


def _publish_first(stack: contextlib.ExitStack) -> None:
    late = _PublishFirst()
    _put(stack, seam.Calls, "pwrite", lambda calls, *args: late.late_pwrite(calls, *args))
    _put(stack, seam.Calls, "point", lambda calls, number: late.seen_point(calls, number))


def _flush_without_sync(stack: contextlib.ExitStack) -> None:
    made = LogFlusher.__init__

    def make(self: LogFlusher, *args: Any) -> None:
        made(self, *args)
        self._core = But(self._core, sync=_nothing)  # type: ignore[assignment]

    _put(stack, LogFlusher, "__init__", make)


def _recover_without_sync(stack: contextlib.ExitStack) -> None:
    """Neither before it reads nor after it wrote again: one alone is all but enough."""
    _put(stack, log_loader, "_core", But(_core, os_sync=_nothing))
    _put(stack, log_loader.files, "forget_cached", _nothing)


def _put(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


PLANTS: dict[str, Callable[[contextlib.ExitStack], None]] = {
    "a flush without fdatasync": _flush_without_sync,
    "an acknowledgement before the flush": lambda s: _put(
        s, Acknowledger, "flush", _acknowledge_before_flush
    ),
    "a rename before the file is synced": lambda s: _put(
        s, files, "write_atomically", _rename_first
    ),
    "a publication before the bytes": _publish_first,
    "a commit whose data is not flushed": lambda s: _put(
        s, Endings, "_flush", lambda self, spans: False
    ),
    "a decision that is not flushed": lambda s: _put(s, TransactionLog, "make_durable", _nothing),
    "indexes that are never synced": lambda s: _put(s, LogFlusher, "sync_indexes", _nothing),
    "a roll whose names are not synced": lambda s: _put(
        s, log_flusher.files, "fsync_dir", _nothing
    ),
    "recovery without fdatasync": _recover_without_sync,
}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """The product with one bug."""
    with contextlib.ExitStack() as stack:
        PLANTS[name](stack)
        yield
