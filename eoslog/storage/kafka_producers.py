"""Kafka's producer state as its recovery rebuilds it, with the snapshots that it leaves.

The live fold of eoslog is the core's (`_core/producer_state.pxi`). This one exists to give the
snapshots that a broker gives: which files are there afterwards, whom it forgot, and what it makes
of batches that the cleaner emptied. It accepts everything: what is in the log has happened.

Source: Kafka ProducerStateManager, ProducerAppendInfo (origin REPLICATION).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eoslog import _core
from eoslog.errors import CorruptRecord
from eoslog.storage import files, segment_files
from eoslog.storage.segment_files import ProducerEntry
from eoslog.storage.segments import write_snapshot

if TYPE_CHECKING:
    from eoslog.storage.kafka_recovery import Header

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
        """Another epoch's batches are not this one's."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.last_sequence = self.last_offset = _NONE
            self.offset_delta = 0


class ProducerStates:
    """Producers of one partition up to `map_end` (exclusive), beside the snapshots on disk.

    Args:
        path: the partition directory.
        expire_before_ms: see `kafka_recovery.recover`.
    """

    def __init__(self, path: str, expire_before_ms: int | None) -> None:
        """Nothing is loaded yet."""
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
        """Whether there is no snapshot at all."""
        return not self._snapshots()

    def remove_all(self) -> None:
        """Delete every snapshot."""
        for offset in self._snapshots():
            self._remove(offset)

    def remove_strays(self, bases: Sequence[int]) -> None:
        """Keep snapshots at segments' bases, and the largest other one if it lies behind them."""
        strays = [offset for offset in self._snapshots() if offset not in set(bases)]
        for offset in strays:
            if offset != strays[-1] or (bases and offset < max(bases)):
                self._remove(offset)

    def load(self, start: int, end: int) -> None:
        """Take the newest valid snapshot up to `end`; those outside of (start, end] go."""
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
        """Write what is known up to `map_end`, unless that was done."""
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
            (producer id, first offset, marker offset, last stable offset) where it is the marker of
            an aborted transaction.

        Raises:
            CorruptRecord: an end marker that does not parse.
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
        whole[16] = 2  # the magic lies outside the checksum: a broker takes any from 2 on
        (view,) = _core.iter_batches(whole, limit=1)
        kind = view.control_type
        self._producers[header.producer_id] = producer
        if kind is None:  # emptied by the cleaner: its transaction is gone from the log
            return None
        if kind not in (_ABORT, _COMMIT):
            raise CorruptRecord(f"control type {kind} with a producer id", position=header.position)
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
