"""Planted bugs, each of which the simulator must find."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

from eoslog import _core
from eoslog.client.producer.acknowledger import Acknowledger
from eoslog.coordinator.transactions.commit import Endings
from eoslog.coordinator.transactions.log import TransactionLog
from eoslog.coordinator.transactions.markers import MarkerDriver
from eoslog.coordinator.transactions.prepared import PreparedTransactions
from eoslog.engine import staged_transactions
from eoslog.engine.staged_transactions import StagedTransactions
from eoslog.errors import OutcomeConflict
from eoslog.storage.fs import files
from eoslog.storage.log import flusher as log_flusher
from eoslog.storage.log import loader as log_loader
from eoslog.storage.log.flusher import LogFlusher
from eoslog.storage.log.partition_log import PartitionLog
from eoslog.storage.segment import carried_batches, seals
from eoslog.storage.segment.derived import Derived
from eoslog.storage.segment.segment import TXN_INDEX
from tests.simulation.machine import seam

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


def _use_indexes_as_they_are(stack: contextlib.ExitStack) -> None:
    """One alone costs a scan, or nothing."""

    def abort_index(self: Derived) -> bytes:
        return seals.content(self._stem + TXN_INDEX) or b""

    _put(stack, LogFlusher, "sync_sealed", _nothing)
    _put(stack, Derived, "abort_index", abort_index)


def _recover_without_sync(stack: contextlib.ExitStack) -> None:
    """Neither before it reads nor after it wrote again: one alone is all but enough."""
    _put(stack, log_loader, "_core", But(_core, os_sync=_nothing))
    _put(stack, carried_batches, "_core", But(_core, os_sync=_nothing))
    _put(stack, log_loader.files, "forget_cached", lambda _fd: True)


def _stage_without_flush(stack: contextlib.ExitStack) -> None:
    """The record that names a payload is durable before the payload."""
    room = StagedTransactions._room

    def unflushed(self: StagedTransactions) -> Any:
        log = room(self)
        return But(log, flush=_nothing)

    _put(stack, StagedTransactions, "_room", unflushed)


def _number_from_the_last_batch(stack: contextlib.ExitStack) -> None:
    """A delivered batch is numbered from the records of the one before it."""

    def stamp(data: Any, *, base_sequence: int, **named: Any) -> int:
        return _core.stamp_batches(data, base_sequence=base_sequence, **named) - base_sequence

    _put(stack, staged_transactions, "_core", But(_core, stamp_batches=stamp))


def _accept_both_decisions(stack: contextlib.ExitStack) -> None:
    """A process that decides gets what it asked for, although another one was faster."""
    resolve = PreparedTransactions.resolve

    def agree(self: PreparedTransactions, token: str, commit: bool) -> None:
        with contextlib.suppress(OutcomeConflict):
            resolve(self, token, commit)

    _put(stack, PreparedTransactions, "resolve", agree)


def _note_after_the_decision(stack: contextlib.ExitStack) -> None:
    """What becomes valid with a decision is appended after it, not with it."""
    end = Endings.end

    def apart(
        self: Endings, clog: TransactionLog, *args: Any, also: Any = None, **named: Any
    ) -> Any:
        record = end(self, clog, *args, **named)
        while record is not None and also is not None:
            now = record.last_update_timestamp
            if clog.append_rows(also(now), clog.refresh(), now) is not None:
                break
        return record

    _put(stack, Endings, "end", apart)


def _count_before_the_decision(stack: contextlib.ExitStack) -> None:
    """Carried batches count as durable while the decision that carries them is not."""
    carry = Endings.carry

    def early(self: Endings, written: Any) -> Any:
        parts = carry(self, written)
        for part in parts or ():
            part.log.count_carried(part.end)
        return parts

    _put(stack, Endings, "carry", early)


def _carry_own_batches_only(stack: contextlib.ExitStack) -> None:
    """A slice begins at its transaction, above records that nothing has made durable."""
    spans, carry = Endings.spans, Endings.carry
    firsts: dict[tuple[str, int], int] = {}

    def remembered(self: Endings, *args: Any) -> Any:
        found, written = spans(self, *args)
        firsts.update(((tp.topic, tp.partition), span.first) for tp, span in found.items())
        return found, written

    def from_first(self: Endings, written: Any) -> Any:
        parts = carry(self, written)
        return parts and [
            part._replace(batches=_beginning_at(firsts[part.log.topic, part.log.partition], part))
            for part in parts
        ]

    _put(stack, Endings, "spans", remembered)
    _put(stack, Endings, "carry", from_first)


def _beginning_at(offset: int, part: Any) -> Any:
    first, data = part.batches
    kept = [b for b in _core.iter_batches(data) if b.base_offset >= offset]
    if not kept or first >= offset:
        return part.batches
    return carried_batches.CarriedBatches(kept[0].base_offset, data[kept[0].position :])


def _put(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    stack.callback(setattr, owner, name, inspect.getattr_static(owner, name))
    setattr(owner, name, value)


OF_PREPARED: dict[str, Callable[[contextlib.ExitStack], None]] = {
    "a staged payload that is not flushed": _stage_without_flush,
    "a delivery that is noted after its decision": _note_after_the_decision,
    "two decisions of one prepared transaction": _accept_both_decisions,
    "a delivery whose batches have the numbers of others": _number_from_the_last_batch,
}
"""Those that only prepared transactions show."""
OF_COMMITS: dict[str, Callable[[contextlib.ExitStack], None]] = {
    "carried batches that count before their decision is durable": _count_before_the_decision,
    "a slice that begins at its transaction": _carry_own_batches_only,
    "recovery without the carried batches": lambda s: _put(
        s, log_loader, "_carried_from", lambda log, carried: b""
    ),
    "a marker of records that are not durable": lambda s: _put(
        s, MarkerDriver, "_check_data", staticmethod(_nothing)
    ),
    "decisions that are forgotten by the high watermark": lambda s: _put(
        s, PartitionLog, "flushed_end", property(lambda self: self.high_watermark)
    ),
}
"""Those of processes that commit, clean the coordinator's log, and do little else."""
PLANTS: dict[str, Callable[[contextlib.ExitStack], None]] = {
    "a flush without fdatasync": _flush_without_sync,
    "an acknowledgement before the flush": lambda s: _put(
        s, Acknowledger, "flush", _acknowledge_before_flush
    ),
    "a rename before the file is synced": lambda s: _put(
        s, files, "write_atomically", _rename_first
    ),
    "a publication before the bytes": _publish_first,
    "a commit whose data is neither carried nor flushed": lambda s: _put(
        s, Endings, "carry", lambda self, written: []
    ),
    "a decision that is not flushed": lambda s: _put(s, TransactionLog, "make_durable", _nothing),
    "indexes that are neither synced nor verified": _use_indexes_as_they_are,
    "a roll whose names are not synced": lambda s: _put(
        s, log_flusher.files, "fsync_dir", _nothing
    ),
    "recovery without fdatasync": _recover_without_sync,
    **OF_PREPARED,
    **OF_COMMITS,
}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """The product with one bug."""
    with contextlib.ExitStack() as stack:
        PLANTS[name](stack)
        yield
