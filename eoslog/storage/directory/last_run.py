"""How the last session ended, according to its checkpoint files."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field

from eoslog.storage.directory import offset_checkpoints
from eoslog.storage.directory.session import POISON_FILE, Session
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files


@dataclass(frozen=True, slots=True)
class LastSession:
    """How the last session ended for one partition, with the offsets from the checkpoint files."""

    clean: bool
    recovery_point: int = 0
    log_start: int = 0
    poisoned: bool = False
    start_recorded: bool = False


@dataclass(frozen=True, slots=True)
class LastRun:
    """How the last session ended. `starts_recorded`: a checksum has verified the log starts."""

    clean: bool
    recovery_points: dict[tuple[str, int], int] = field(default_factory=dict)
    log_starts: dict[tuple[str, int], int] = field(default_factory=dict)
    poisoned: frozenset[tuple[str, int]] = frozenset()
    starts_recorded: bool = False

    @classmethod
    def read(cls, root: str, session: Session) -> LastRun:
        """Read the directory's files. Damaged checkpoints count as missing."""
        poisoned = set()
        with contextlib.suppress(FileNotFoundError):
            text = files.read_file(os.path.join(root, POISON_FILE)).decode(errors="replace")
            for line in text.splitlines():
                topic, _, partition = line.rpartition(" ")
                if partition.isdecimal():  # a failing disk may have torn the line
                    poisoned.add((topic, int(partition)))
        marked = checkpoints.was_clean_shutdown(root) if session.private else session.control.clean
        return cls(
            bool(marked),
            offset_checkpoints.read(root, checkpoints.RECOVERY_POINT_CHECKPOINT),
            offset_checkpoints.read(root, checkpoints.LOG_START_CHECKPOINT),
            frozenset(poisoned),
            offset_checkpoints.is_recorded(root),
        )

    def partition(self, topic: str, partition: int) -> LastSession:
        """Return how the last session ended for one partition."""
        key = (topic, partition)
        return LastSession(
            self.clean,
            self.recovery_points.get(key, 0),
            self.log_starts.get(key, 0),
            key in self.poisoned,
            self.starts_recorded,
        )
