"""How the last session ended: what its checkpoint files say of each partition."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field

from eoslog.storage import checkpoints, files
from eoslog.storage.log_loader import LastSession
from eoslog.storage.session import POISON_FILE, Session


@dataclass(frozen=True, slots=True)
class LastRun:
    """Read once at opening; offsets are hints, recovery trusts the log."""

    clean: bool
    recovery_points: dict[tuple[str, int], int] = field(default_factory=dict)
    log_starts: dict[tuple[str, int], int] = field(default_factory=dict)
    poisoned: frozenset[tuple[str, int]] = frozenset()

    @classmethod
    def read(cls, root: str, session: Session) -> LastRun:
        """What the directory's files say; damaged checkpoints count as missing."""

        def offsets(name: str) -> dict[tuple[str, int], int]:
            return checkpoints.read_offsets(os.path.join(root, name), lenient=True)

        poisoned = set()
        with contextlib.suppress(FileNotFoundError):
            text = files.read_file(os.path.join(root, POISON_FILE)).decode(errors="replace")
            for line in text.splitlines():
                topic, _, partition = line.rpartition(" ")
                if partition.isdecimal():  # it was written on a failing disk
                    poisoned.add((topic, int(partition)))
        marked = checkpoints.was_clean_shutdown(root) if session.private else session.control.clean
        return cls(
            bool(marked),
            offsets(checkpoints.RECOVERY_POINT_CHECKPOINT),
            offsets(checkpoints.LOG_START_CHECKPOINT),
            frozenset(poisoned),
        )

    def partition(self, topic: str, partition: int) -> LastSession:
        """What is known of one partition."""
        key = (topic, partition)
        return LastSession(
            self.clean,
            self.recovery_points.get(key, 0),
            self.log_starts.get(key, 0),
            key in self.poisoned,
        )
