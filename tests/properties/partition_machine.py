"""A real partition log in a directory, with calls to compare it with the model."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eoslog import _core
from eoslog.model import AppendOrigin
from eoslog.storage.directory.last_run import LastSession
from eoslog.storage.directory.session import Session
from eoslog.storage.log import loader as log_loader
from eoslog.storage.log.partition_log import LogSettings, PartitionLog
from tests.reference.model_log import ModelBatch

SLOT = 101


class RealLog:
    """One partition without an engine, in a new directory."""

    def __init__(self, **settings: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="partition-"))
        self.topic_id = secrets.token_bytes(16)
        self.settings = LogSettings(**settings)
        self.open(LastSession(clean=True))

    def open(self, last: LastSession) -> None:
        self.session = Session(str(self.directory))
        self.log = PartitionLog(
            self.session, "t", 0, slot=SLOT, topic_id=self.topic_id, strict=True, settings=self.settings
        )  # fmt: skip
        if not Path(self.log.path).exists():
            log_loader.make_directory(self.log)
        log_loader.open_partition(self.log, last)

    def close(self) -> tuple[int, int]:
        """Close and return the checkpoints of a clean close: recovery point, log start."""
        log_end, log_start = self.log.log_end, self.log.log_start
        self.log.sync()
        self.log.close()
        self.session.close()
        return log_end, log_start

    def reopen(self, clean: bool) -> None:
        """Reopen as after a good shutdown, or as after a kill."""
        log_end, log_start = self.close()
        point = log_end if clean else 0
        self.open(LastSession(clean, point, log_start, start_recorded=True))

    # -- the calls that the model has too

    def append(self, batch: ModelBatch) -> Any:
        data = _core.build_batch(
            batch.records, producer_id=batch.producer_id, producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence, transactional=batch.transactional,
        )  # fmt: skip
        expect = [(self.log, self.log.log_end)] if batch.transactional else []
        return self.log.append(bytes(data), expect=expect)

    def end(self, producer_id: int, epoch: int, commit: bool, timestamp: int) -> Any:
        marker = _core.build_marker(producer_id, epoch, commit, timestamp=timestamp)
        return self.log.append(bytes(marker), origin=AppendOrigin.COORDINATOR)

    def visible(self, isolation: str) -> list[tuple[int, bytes | None]]:
        log, rows = self.log, []
        committed = isolation == "read_committed"
        end = log.stable_end if committed else log.log_end
        aborted = log.aborted(log.log_start, end) if committed else []
        mask = _core.AbortedTransactions(aborted) if committed else None
        start = log.log_start
        while start < end:
            parts = log.read(start, end, 1)
            assert parts, f"nothing at {start} of {end}"
            for part in parts:
                records, after = _core.decode_records("t", 0, part.data, start, end, mask, 1 << 20)
                rows += [(r.offset, bytes(r.value)) for r in records]
                start = max(after, part.next_offset)
        return rows

    def digest(self) -> dict[str, object]:
        log = self.log
        producers = {
            p.producer_id: (
                p.producer_epoch,
                p.last_sequence,
                p.coordinator_epoch,
                -1 if p.current_txn_first_offset is None else p.current_txn_first_offset,
            )
            for p in sorted(log.producers(), key=lambda p: p.producer_id)
        }
        return {
            "log_start": log.log_start, "log_end": log.log_end, "stable_end": log.stable_end,
            "producers": producers, "open": [row[:3] for row in log.open_transactions()],
            "aborted": log.aborted(log.log_start, log.log_end),
            "committed": self.visible("read_committed"), "uncommitted": self.visible("read_uncommitted"),
        }  # fmt: skip


def outcome(call: Callable[[], Any]) -> tuple[Any, ...] | str:
    """What a call answered: (base, last, duplicate), or the name of the error."""
    from eoslog.errors import EoslogError
    from tests.reference.model_log import Refused

    try:
        result = call()
    except Refused as refused:
        return str(refused)
    except EoslogError as error:
        return type(error).__name__
    return (result.base_offset, result.last_offset, result.duplicate)
