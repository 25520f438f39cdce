"""The leader epoch of records. The checkpoint decides, because no CRC covers the epoch in a batch.

| checkpoint | epoch of a record |
|---|---|
| has an entry at or before the batch | that of the entry |
| has one, but several of its batches have the same other epoch | None: one of both is damaged |
| is missing, damaged, or has no entry that early | None |

The first batch that differs is logged, once per partition (WARNING). `check` reports all of them.
"""

from __future__ import annotations

import os

from eoslog import _core
from eoslog.errors import CorruptRecord
from eoslog.reports import Problem
from eoslog.shown_paths import get_logger
from eoslog.storage.format import checkpoints
from eoslog.storage.format.checkpoints import LEADER_EPOCH_CHECKPOINT

__all__ = ["EpochCheck", "of_directory", "of_log"]

logger = get_logger("eoslog")


def of_directory(path: str, name: str) -> _core.LeaderEpochs:
    """Return the leader epochs of a partition directory; `name` is for warnings."""
    try:
        return _made(
            name, checkpoints.read_leader_epochs(os.path.join(path, LEADER_EPOCH_CHECKPOINT))
        )
    except CorruptRecord as error:
        return _unknown(name, str(error))


def of_log(path: str, name: str, newest: int) -> _core.LeaderEpochs:
    """Return those of a partition of an open log, whose metadata has the `newest` epoch."""
    place = os.path.join(path, LEADER_EPOCH_CHECKPOINT)
    try:
        entries = checkpoints.read_leader_epochs(place)
    except CorruptRecord as error:
        return _unknown(name, str(error))
    if entries and entries[-1][0] != newest:
        said = f"{place} ends with leader epoch {entries[-1][0]}, but the metadata says {newest}"
        return _unknown(name, said)
    return _made(name, entries)


def _made(name: str, entries: list[tuple[int, int]]) -> _core.LeaderEpochs:
    def warn(offset: int, said: int, known: int) -> None:
        logger.warning(
            "%s: batch at offset %d has leader epoch %d, but %s says %d; the records are intact "
            "(`eoslog check` lists such batches)",
            name, offset, said, LEADER_EPOCH_CHECKPOINT, known,
        )  # fmt: skip

    return _core.LeaderEpochs(entries, warn)


def _unknown(name: str, why: str) -> _core.LeaderEpochs:
    logger.warning("%s: leader epochs unknown, returning records without them: %s", name, why)
    return _core.LeaderEpochs([])


class EpochCheck:
    """Compares the batches of a partition, in order, with its checkpoint.

    Attributes:
        fault: why the checkpoint is unreadable, so that nothing is compared; None if it is fine.
    """

    def __init__(self, path: str) -> None:
        """Read the checkpoint of a partition directory."""
        self._name = os.path.basename(os.path.abspath(path))
        self.fault: Problem | None = None
        place = os.path.join(path, LEADER_EPOCH_CHECKPOINT)
        entries: list[tuple[int, int]] = []
        try:
            entries = checkpoints.read_leader_epochs(place)
        except CorruptRecord as error:
            self.fault = Problem(place, error.position or 0, str(error))
        self._known = _core.LeaderEpochs(entries)
        self._run: list[int] | None = None  # position, first and last offset, said and known epoch
        self._runs: list[list[int]] = []

    def look(self, position: int, base_offset: int, last_offset: int, said: int) -> None:
        """Compare the next batch of a segment."""
        known = self._known.at(last_offset)
        if known is None or said in (known, -1):  # -1: a message of an older format
            self._run = None
        elif self._run is not None and self._run[3:] == [said, known]:
            self._run[2] = last_offset
        else:
            self._run = [position, base_offset, last_offset, said, known]
            self._runs.append(self._run)

    def taken(self, log: str) -> list[Problem]:
        """Return the findings in a segment, whose file is `log`, one per run of batches."""
        runs, self._run, self._runs = self._runs, None, []
        return [
            Problem(
                log, position,
                f"{self._name}: batches of offsets {first} to {last} have leader epoch {said}, but "
                f"{LEADER_EPOCH_CHECKPOINT} says {known}; the records are intact",
            )
            for position, first, last, said, known in runs
        ]  # fmt: skip
