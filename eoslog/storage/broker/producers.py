"""Kafka's producer state as a broker's recovery rebuilds it, with the same snapshot files.

eoslog's own fold is in the core (`_core/partition/producer_state.pxi`). This one reproduces a
broker's snapshots: which files exist afterwards, which producers have expired, and how batches that
the cleaner has emptied are treated. It does not reject any batch in the log.

Source: Kafka ProducerStateManager, ProducerAppendInfo (origin REPLICATION).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from eoslog import _core
from eoslog.errors import CorruptRecord
from eoslog.storage.broker.headers import Header
from eoslog.storage.fs import files
from eoslog.storage.segment import segment_files
from eoslog.storage.segment.producer_snapshots import write_snapshot
from eoslog.storage.segment.segment_files import ProducerEntry

__all__ = ["ProducerStates"]

_ENTRY = struct.Struct(">qhiqiqiq")
_CONTROL, _TRANSACTIONAL = 0x20, 0x10
_ABORT, _COMMIT = 0, 1
_NONE = -1


@dataclass
class _Producer:
    epoch: int = _NONE
    last_sequence: int = _NONE
    last_offset: int = _NONE
    offset_delta: int = 0
    last_timestamp: int = _NONE
    coordinator_epoch: int = _NONE
    first_open: int | None = None

    def enter(self, epoch: int) -> None:
        """Set the epoch, and forget the batches of another one."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.last_sequence = self.last_offset = _NONE
            self.offset_delta = 0


class ProducerStates:
    """The producers of one partition up to `map_end` (exclusive), and its snapshot files.

    Args:
        path: the partition directory.
        expire_before_ms: see `recovery.recover`.
    """

    def __init__(self, path: str, expire_before_ms: int | None) -> None:
        """Begin without producers."""
        self.path = path
        self.expire_before_ms = expire_before_ms
        self.map_end = 0
        self._last_snapshot = 0
        self._producers: dict[int, _Producer] = {}

    def _snapshots(self) -> list[int]:
        names = segment_files.list_snapshots(self.path)
        return [int(name[:20]) for name in names]

    def _remove(self, offset: int) -> None:
        files.remove(os.path.join(self.path, f"{offset:020}.snapshot"))

    @property
    def empty(self) -> bool:
        """Whether there is no snapshot file."""
        return not self._snapshots()

    def remove_all(self) -> None:
        """Delete every snapshot."""
        for offset in self._snapshots():
            self._remove(offset)

    def remove_strays(self, bases: Sequence[int]) -> None:
        """Keep only snapshots at segment bases, and the largest other one if it is after them."""
        strays = [offset for offset in self._snapshots() if offset not in set(bases)]
        for offset in strays:
            if offset != strays[-1] or (bases and offset < max(bases)):
                self._remove(offset)

    def load(self, start: int, end: int) -> None:
        """Load the newest valid snapshot up to `end`; remove those outside of (start, end]."""
        for offset in self._snapshots():
            if offset > end or offset <= start:
                self._remove(offset)
        self._producers.clear()
        for offset in reversed(self._snapshots()):
            try:
                entries = segment_files.read_snapshot(
                    os.path.join(self.path, f"{offset:020}.snapshot")
                )
            except CorruptRecord:
                self._remove(offset)
                continue
            for entry in entries:
                if not self._expired(entry):
                    self._producers[entry.producer_id] = _Producer(
                        entry.epoch, entry.last_sequence, entry.last_offset, entry.offset_delta,
                        entry.last_timestamp, entry.coordinator_epoch,
                        entry.current_txn_first_offset,
                    )  # fmt: skip
            self.map_end = self._last_snapshot = offset
            return
        self.map_end = self._last_snapshot = start

    def _expired(self, entry: ProducerEntry) -> bool:
        return (
            self.expire_before_ms is not None
            and entry.current_txn_first_offset is None
            and entry.last_timestamp <= self.expire_before_ms
        )

    def take_snapshot(self) -> None:
        """Write a snapshot at `map_end`, unless there is one."""
        if self.map_end <= self._last_snapshot:
            return
        entries = b"".join(
            _ENTRY.pack(
                producer_id, p.epoch, p.last_sequence, p.last_offset, p.offset_delta,
                p.last_timestamp, p.coordinator_epoch,
                _NONE if p.first_open is None else p.first_open,
            )
            for producer_id, p in self._producers.items()
        )  # fmt: skip
        write_snapshot(self.path, self.map_end, entries)
        self._last_snapshot = self.map_end

    def apply(self, header: Header, batch: memoryview) -> tuple[int, int, int, int] | None:
        """Fold one batch of format 2.

        Returns:
            (producer id, first offset, marker offset, last stable offset) if this is the marker of
            an aborted transaction, else None.

        Raises:
            CorruptRecord: if an end marker does not parse.
        """
        completed = None
        if header.producer_id >= 0:
            known = self._producers.get(header.producer_id)
            if header.attributes & _CONTROL:
                completed = self._end(header, batch, known or _Producer())
            else:
                self._data(header, known or _Producer())
        self.map_end = header.last_offset + 1
        return completed

    def _data(self, header: Header, producer: _Producer) -> None:
        producer.enter(header.producer_epoch)
        producer.last_sequence = header.last_sequence
        producer.last_offset = header.last_offset
        producer.offset_delta = header.last_offset - header.base_offset
        producer.last_timestamp = header.max_timestamp
        if header.attributes & _TRANSACTIONAL and producer.first_open is None:
            producer.first_open = header.base_offset
        self._producers[header.producer_id] = producer

    def _end(
        self, header: Header, batch: memoryview, producer: _Producer
    ) -> tuple[int, int, int, int] | None:
        whole = bytearray(batch)
        whole[16] = 2  # no checksum covers the magic, and a broker accepts any from 2 on
        (view,) = _core.iter_batches(whole, limit=1)
        kind = view.control_type
        self._producers[header.producer_id] = producer
        if kind is None:  # emptied by the cleaner: no data of its transaction is left
            return None
        if kind not in (_ABORT, _COMMIT):
            raise CorruptRecord(
                f"control type of a producer's batch is {kind}, expected 0 or 1",
                position=header.position,
            )
        epoch = view.coordinator_epoch
        first = producer.first_open
        producer.enter(header.producer_epoch)
        producer.first_open = None
        producer.coordinator_epoch = _NONE if epoch is None else epoch
        producer.last_timestamp = header.max_timestamp
        if first is None or kind == _COMMIT:
            return None
        still_open = [p.first_open for p in self._producers.values() if p.first_open is not None]
        stable = min(still_open, default=header.base_offset + 1)
        return header.producer_id, first, header.base_offset, stable
