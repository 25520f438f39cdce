"""Opening partitions by hand, below the engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eoslog._core import build_batch
from eoslog.storage.directory.last_run import LastSession
from eoslog.storage.directory.session import Session
from eoslog.storage.log.ingest import StagedSegment
from eoslog.storage.log.loader import make_directory, open_partition
from eoslog.storage.log.partition_log import LogSettings, PartitionLog

TOPIC_ID = b"0123456789abcdef"
SLOT = 5
STAGER = 7
"""Whose batches `staged` files bear."""


def batch(count: int = 1, *, sequence: int = -1, producer_id: int = -1, epoch: int = 0, size: int = 20,
          timestamp: int = 1000, transactional: bool = False) -> bytes:  # fmt: skip
    """A batch of `count` records with values of `size` bytes."""
    records = [(timestamp + i, b"key%d" % i, b"v" * size, ()) for i in range(count)]
    return build_batch(
        records, producer_id=producer_id, producer_epoch=epoch if producer_id >= 0 else -1,
        base_sequence=sequence, transactional=transactional,
    )  # fmt: skip


def staged(log: PartitionLog, *counts: int, size: int = 40, sequence: int = 0, epoch: int = 0,
           transactional: bool = False) -> StagedSegment:  # fmt: skip
    """A file of batches of so many records, borne by `STAGER`."""
    folder = Path(log.session.path) / "staged"
    folder.mkdir(exist_ok=True)
    path = folder / f"{os.getpid()}-{len(list(folder.iterdir()))}.batches"
    path.write_bytes(b"".join(batch(count, size=size) for count in counts))
    segment = StagedSegment(str(path), path.stat().st_size)
    segment.bear(STAGER, epoch, sequence, transactional)
    return segment


@contextmanager
def opened(path: str, *, clean: bool = False, recovery_point: int = 0, strict: bool = True, read_only: bool = False,
           poisoned: bool = False, **settings: int | str) -> Iterator[PartitionLog]:  # fmt: skip
    """A partition in a session of its own."""
    session = Session(path, read_only=read_only)
    session.ensure_slot(SLOT)
    log = PartitionLog(
        session,
        "t",
        0,
        slot=SLOT,
        topic_id=TOPIC_ID,
        strict=strict,
        settings=LogSettings(**settings),
    )
    try:
        if not os.path.isdir(log.path):
            make_directory(log)
        open_partition(log, LastSession(clean, recovery_point, 0, poisoned))
        yield log
    finally:
        log.close()
        session.close()


def payloads(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every data record."""
    return [
        (record[0], record[3])
        for b in log.batches(log.log_start, log.log_end)
        if not b.control
        for record in b.records()
    ]


def state(log: PartitionLog) -> object:
    """A digest of everything that replay must give again."""
    return (log.log_start, log.log_end, log.stable_end, sorted(log.producers(), key=lambda p: p.producer_id),
            log.open_transactions(), log.aborted(0, log.log_end), payloads(log))  # fmt: skip
