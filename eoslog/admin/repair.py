"""Changes to a closed directory: `eoslog.repair`, and `check` with `fix_indexes`.

Each partition is walked as `log_checker` does. "cut" truncates it at its first damaged batch.
"skip" takes out the damaged batches alone. Both keep what they take (`kept_copies.py`). A second
run after a crash does what the first one left.

A skip refuses internal topics. A lost record of `__transaction_state` may be the decision about a
transaction that has markers in some partitions only. One of `__consumer_offsets` may be a position
that was committed together with results. One of the metadata log may be a block of producer ids.
Exactly-once does not hold without it, and nothing says so later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from eoslog.errors import ConfigError, CorruptRecord, EoslogError
from eoslog.model import INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from eoslog.reports import CheckReport, Damage, Problem, RepairReport, TornTransaction
from eoslog.storage.broker.directory import read_kafka_directory
from eoslog.storage.broker.repair import alone, index_interval_of
from eoslog.storage.check import index_rebuild, skipping
from eoslog.storage.check.checker import (
    Walk,
    check,
    directory_problems,
    identity_problems,
    missing_offline,
    partition_directories,
    recovery_points,
)
from eoslog.storage.check.damage import Stretch, find
from eoslog.storage.check.truncation import (
    LogPosition,
    bytes_after,
    cut_at,
    keep_offsets,
    keep_producer_ids,
    keep_what_goes,
)
from eoslog.storage.directory import offset_checkpoints
from eoslog.storage.directory.closed_metadata import METADATA, durable_ends, topic_ids
from eoslog.storage.directory.offset_jumps import gap_before, gaps_to
from eoslog.storage.directory.session import CLEAN_SHUTDOWN_FILE
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from eoslog.storage.segment.carried_batches import (
    CarriedBatches,
    end_of,
    missing_bytes,
    write_missing,
)
from eoslog.storage.segment.kept_copies import gap_at
from eoslog.storage.segment.replacement import finish_renames, unfinished_swap
from eoslog.storage.segment.segment import LOG, SEAL, file_name, file_path, offsets_in

__all__ = ["fix_indexes", "nothing_carried", "repair"]

_END = (1 << 63) - 1
_ROUNDS = 8
"""Kinds of faults that hide one another in a partition: damage, a missing segment, a lost end."""


Carried = Callable[[str], Sequence[CarriedBatches]]
"""Returns the batches that decisions carry of a partition, by the name of its folder."""


def nothing_carried(_: str) -> Sequence[CarriedBatches]:
    """The `Carried` of a directory whose decisions carry nothing."""
    return ()


def repair(
    path: str, mode: str, decisions: skipping.Decisions, carried: Carried = nothing_carried
) -> RepairReport:
    """See `eoslog.repair`; for every mode but "as-kafka"."""
    if mode not in ("report", "cut", "skip"):
        raise ConfigError(f"mode {mode!r}: expected 'report', 'cut', 'skip' or 'as-kafka'")
    with alone(path, read_only=mode == "report"):
        return _Repair(path, mode, decisions, carried).run()


def restore_carried(path: str, carried: Carried) -> RepairReport:
    """Write into each partition of a closed directory what only decisions have of it."""
    with alone(path):
        run, points = _Repair(path, "cut", dict, carried), recovery_points(path)
        names = partition_directories(path)
        for name in names:
            run.restore(name, points)
        return RepairReport("cut", len(names), run.problems, kept=run.kept)


def fix_indexes(path: str, *, full: bool = False) -> CheckReport:
    """Rewrite differing derived files of a closed directory, then check it."""
    with alone(path):
        lasting = identity_problems(path)  # first: a newer format is not ours to touch
        intervals = _intervals(path)
        rebuilt: list[str] = []
        found: list[Problem] = []
        for name in partition_directories(path):
            place = os.path.join(path, name)
            if unfinished_swap(files.names(place)) is not None:
                continue  # the check below says what to do
            changed, problems = index_rebuild.rebuild(
                place, intervals.get(name, index_interval_of({}))
            )
            rebuilt += changed
            found += problems
        ids = {f"{topic}-{number}": of for (topic, number), of in topic_ids(path).items()}
        report = check(path, full=full, ids=ids)
        told = {(problem.path, problem.position) for problem in report.problems}
        more = [problem for problem in found if (problem.path, problem.position) not in told]
        problems = [*lasting, *missing_offline(path), *report.problems, *more]
        return replace(report, problems=problems, rebuilt=rebuilt)


@dataclass
class _Repair:
    """One run over a directory."""

    path: str
    mode: str
    decisions: skipping.Decisions
    carried: Carried
    problems: list[Problem] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    torn: list[TornTransaction] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    refused: list[Problem] = field(default_factory=list)
    cut: int = 0
    durable: Callable[[], Mapping[tuple[str, int], int]] = field(init=False)
    now_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    def __post_init__(self) -> None:
        self.durable = cache(lambda: durable_ends(self.path))

    def run(self) -> RepairReport:
        path, changes = self.path, self.mode != "report"
        lasting = identity_problems(path)  # first: a newer format is not ours to touch
        lasting += missing_offline(path)  # nothing makes it again either
        self.problems += directory_problems(path)
        if changes:
            for problem in self.problems:
                files.remove(problem.path)  # rebuilt by the next opening
        names = partition_directories(path)
        points = recovery_points(path)
        intervals = _intervals(path) if changes else {}
        for name in names:
            interval = intervals.get(name, index_interval_of({}))
            if self.restore(name, points):
                continue
            if self.mode == "skip":
                self._skip(name, points, interval)
            else:
                self._cut(name, points, interval)
        if self.mode == "cut":
            self.problems += keep_producer_ids(path)[1]
        if changes and self.problems:
            # The next opening scans everything and rebuilds every index. It still reports a
            # partition whose directory is missing, instead of reusing its offsets, and the lost
            # records of a partition that was refused.
            stay = {os.path.dirname(problem.path) for problem in self.refused}
            files.remove(os.path.join(path, CLEAN_SHUTDOWN_FILE))
            offset_checkpoints.write(
                path,
                checkpoints.RECOVERY_POINT_CHECKPOINT,
                {
                    key: point
                    for key, point in points.items()
                    if (place := _directory(path, *key)) in stay or not files.is_dir(place)
                },
            )
        return RepairReport(
            self.mode, len(names), lasting + self.problems, self.cut, self.damage, self.torn,
            self.kept, self.refused,
        )  # fmt: skip

    def _walk(self, name: str, points: Mapping[tuple[str, int], int]) -> Walk:
        carried = end_of(self.carried(name))
        place = os.path.join(self.path, name)
        walk = Walk(place, _END, True, points, self.durable, carried=carried)
        walk.run()
        return walk

    def restore(self, name: str, points: Mapping[tuple[str, int], int]) -> bool:
        """Write what only decisions have of a partition, as the next opening would.

        Returns:
            Whether that is all that there is to say about the partition; in mode "report" only.
        """
        if not self.carried(name):
            return False
        self._finish_swap(name)
        return self._restore(self._walk(name, points)) and self.mode == "report"

    def _restore(self, walk: Walk) -> bool:
        """Write what only decisions have; return whether there was any."""
        carried = self.carried(os.path.basename(walk.path))
        place = walk.bad or walk.short
        if place is None:
            return False
        base, position, end = place
        try:
            missing = missing_bytes(walk.path, end, carried)
        except CorruptRecord:
            return False  # the damage begins below them
        if not missing:
            return False
        lacks = f"offsets {end} to {end_of(carried) - 1} are only in {TRANSACTION_STATE_TOPIC}"
        log = file_path(walk.path, base, LOG)
        if self.mode == "report":
            text = "since a power loss; the next opening for writing adds them"
            self.problems.append(Problem(log, position, f"{lacks} {text}"))
            return True
        self.problems.append(
            Problem(log, position, f"{lacks}; they are written into the partition")
        )
        self.kept += keep_what_goes(walk.path, place, self.now_ms)
        self.kept += cut_at(walk.path, base, position, end, self.now_ms)
        write_missing(walk.path, base, position, missing)
        return True

    def _flushed(self, walk: Walk, points: Mapping[tuple[str, int], int]) -> int:
        """The offset up to which a partition is known to have reached."""
        carried = self.carried(os.path.basename(walk.path))
        return max(points.get(walk.key, 0), self.durable().get(walk.key, 0), end_of(carried))

    def _finish_swap(self, name: str) -> None:
        place = os.path.join(self.path, name)
        half = unfinished_swap(files.names(place))
        if half is not None and self.mode != "report":
            text = "a swap, half done, is finished"
            self.problems.append(Problem(os.path.join(place, half), 0, text))
            finish_renames(place)

    def _stretches(
        self, walk: Walk, points: Mapping[tuple[str, int], int]
    ) -> tuple[list[Stretch], list[Stretch]]:
        """The missing segments and the damage of a partition, as far as the walk went.

        What tells no more than the walk did is left out.
        """
        if walk.bad is None and not walk.gap:
            return [], []
        try:
            found = find(
                walk.path, self._flushed(walk, points), gaps_to(self.path, walk.key), walk.cleaned,
                walk.preallocated,
            )  # fmt: skip
        except CorruptRecord as error:
            if self.mode == "skip":
                self._refuse(walk, str(error))
            return [], []
        skipping.settle_markers(found, self.decisions)
        gaps = [one for one in found if one.is_gap and one.base <= walk.gap]
        damaged = [one for one in found if not one.is_gap] if walk.bad else []
        return [] if os.path.basename(walk.path) == METADATA else gaps, damaged

    def _report(self, walk: Walk, found: list[Stretch], copies: list[str] | None) -> None:
        """Add stretches to the report."""
        for number, stretch in enumerate(found):
            copy = (copies[number] or None) if copies else None
            self.damage.append(skipping.describe(walk.path, stretch, copy))
            self.torn += skipping.torn_by(walk.path, stretch, self.decisions)

    def _fill(self, walk: Walk, gaps: list[Stretch], interval: int) -> None:
        """Accept missing segments, and end transactions whose markers were there."""
        for gap in gaps:
            self.torn += skipping.torn_by(walk.path, gap, self.decisions)
        if self.mode == "report":
            return
        if gaps:
            skipping.fill(walk.path, gaps, interval)
        if walk.gap:
            _accept_gap(self.path, os.path.basename(walk.path), walk.gap)

    def _cut(self, name: str, points: Mapping[tuple[str, int], int], interval: int) -> None:
        """Report on a partition, and in mode "cut" truncate it at its first bad batch."""
        self._finish_swap(name)
        walk = self._walk(name, points)
        self.problems += walk.problems
        bad = walk.bad or (walk.short if name != METADATA else None)
        gaps, found = self._stretches(walk, points)
        if self.mode == "report":
            self._report(walk, found, None)
            self._fill(walk, gaps, interval)
            return
        if walk.bad is not None and found:
            # A base offset that is too high shows only at the batch after it, in a sealed segment.
            # So does the empty batch of an earlier cut that a crash interrupted: it is kept.
            first = found[0]
            bad = walk.bad
            if not gap_at(walk.path, first.base, first.position):
                bad = min(bad, (first.base, first.position, first.first))
            _know_gaps(self.path, walk, bad)
        if bad is not None:
            self.cut += bytes_after(walk.path, *bad[:2]) if walk.bad else 0
            copies = keep_what_goes(walk.path, bad, self.now_ms) if walk.bad else []
            self._report(walk, found, [copies[0] if copies else ""] * len(found))
            self.kept += copies
            if name == METADATA:
                kept, told = keep_producer_ids(self.path, bad)
            else:
                kept, told = keep_offsets(walk.path, bad, self._flushed(walk, points))
            self.problems += told
            self.kept += cut_at(walk.path, kept[0], kept[1], bad[2], self.now_ms)
        self._fill(walk, gaps, interval)

    def _skip(self, name: str, points: Mapping[tuple[str, int], int], interval: int) -> None:
        """Remove damaged batches from a partition until its log has no problem."""
        self._finish_swap(name)
        seen: set[tuple[str, int, str]] = set()
        for _ in range(_ROUNDS):
            walk = self._walk(name, points)
            fresh = [p for p in walk.problems if (p.path, p.position, p.message) not in seen]
            seen |= {(p.path, p.position, p.message) for p in fresh}
            self.problems += fresh
            if (walk.bad or walk.short) and walk.key[0] in INTERNAL_TOPICS:
                text = "is internal: a record lost there can tear a transaction or repeat an offset"
                self._refuse(walk, f"{walk.key[0]} {text}")
                return
            if walk.bad is not None:
                gaps, found = self._stretches(walk, points)
                if not found:
                    if not self.refused or self.refused[-1].path != _place(walk):
                        self._refuse(walk, "its batches are whole and do not fit their neighbours")
                    return
                try:
                    self._fill(walk, gaps, interval)
                    copies = skipping.skip(walk.path, found, interval, self.now_ms)
                except CorruptRecord as error:
                    self._refuse(walk, str(error))
                    return
                self.kept += [copy for copy in copies if copy]
                self.cut += sum(stretch.size for stretch in found)
                self._report(walk, found, copies)
                self._say(walk, found)
            elif walk.short is not None:
                if self._restore(walk):
                    continue
                kept, told = keep_offsets(walk.path, walk.short, self._flushed(walk, points))
                self.problems += told
                cut_at(walk.path, kept[0], kept[1], walk.short[2], self.now_ms)
                self._fill(walk, self._stretches(walk, points)[0], interval)
            elif walk.gap:
                try:
                    self._fill(walk, self._stretches(walk, points)[0], interval)
                except CorruptRecord as error:
                    self._refuse(walk, str(error))
                return  # the walk went to the end
            else:
                return

    def _say(self, walk: Walk, found: list[Stretch]) -> None:
        """Add what became of the offsets to the problems, as a cut does."""
        for stretch in found:
            log = skipping.describe(walk.path, stretch).path
            if stretch.last >= stretch.first:
                text = (
                    f"offsets {stretch.first} to {stretch.last} are taken out: readers go on at "
                    f"{stretch.last + 1}"
                )
                self.problems.append(Problem(log, stretch.position, text))

    def _refuse(self, walk: Walk, why: str) -> None:
        position = walk.bad[1] if walk.bad is not None else 0
        text = f"not skipped: {why}; `eoslog repair --cut` cuts the partition here and keeps a copy"
        self.refused.append(Problem(_place(walk), position, text))


def _place(walk: Walk) -> str:
    """The log that a walk found damaged."""
    if walk.bad is None:
        return os.path.join(walk.path, "")
    return skipping.describe(walk.path, Stretch(walk.bad[0], 0, 0, 0, 0)).path


def _directory(path: str, topic: str, number: int) -> str:
    return os.path.join(path, f"{topic}-{number}")


def _intervals(path: str) -> dict[str, int]:
    """Return `index.interval.bytes` by partition directory, from readable metadata."""
    try:
        found = read_kafka_directory([path], ours=True)
    except EoslogError:
        return {}
    return {
        f"{topic}-{number}": index_interval_of(found.topics[topic].config)
        for topic, number in found.partitions
        if topic in found.topics
    }


def _know_gaps(path: str, walk: Walk, bad: LogPosition) -> None:
    """Record a segment's gaps from cleaning, before a cut makes it the last segment.

    Recovery takes every other gap in a last segment for a damaged base offset.
    """
    base, position, _ = bad
    if base == offsets_in(walk.path, LOG)[-1]:
        return
    _raise_cleaned(path, walk.key, gap_before(walk.path, base, position))


def _raise_cleaned(path: str, key: tuple[str, int], end: int) -> None:
    known = offset_checkpoints.read(path, checkpoints.CLEANER_CHECKPOINT)
    if end > known.get(key, 0):
        offset_checkpoints.write(path, checkpoints.CLEANER_CHECKPOINT, {**known, key: end})


def _accept_gap(path: str, name: str, base: int) -> None:
    """Declare records below `base` lost, so that readers may continue after them."""
    # The seal says what the segment before it held: a cut one would be refused for good.
    files.remove(os.path.join(path, name, file_name(base, SEAL)))
    topic, _, number = name.rpartition("-")
    _raise_cleaned(path, (topic, int(number)), base)
