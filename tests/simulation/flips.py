"""Single flipped bits in each file of a directory are detected or harmless.

This is checked for each reader and deletion. The directory of
`tests.torture.oracles.operations.fill` is created twice in the simulator: closed clean, and
killed after everything was flushed. Its bytes are the same at the same places each time. Each
flip gets a fresh copy, on which readers and a deletion run. A flip is detected if eoslog raises
one of its errors. It is harmless if the results are those of the undamaged directory. Of the
control file only the header and two slots in use are flipped.

Most bits are under the checksum of a batch. Each of those is flipped in the batch in the core's
memory, and the core must call the batch damaged. One in 64 of them is flipped in a file like
the others. This shows that a process that opens or reads asks the core.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import shutil
import sys
import tempfile
import time
from bisect import bisect
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

from eoslog import _core
from eoslog.storage.directory.session import CONTROL_FILE
from eoslog.storage.format import checkpoints
from tests.simulation.machine import seam
from tests.simulation.machine.disk import Disk, Image, write_sparse
from tests.simulation.machine.world import Faults, World
from tests.simulation.simulation import ROOT, Report
from tests.torture.oracles.operations import (
    SETTINGS,
    Known,
    attempts,
    choose,
    fill,
    learn,
    require_variety,
)

_SLOTS_AT, _SLOT_SIZE = 131072, 256
_OF_SPACE = 128  # bytes
_CRC_AT = 17
"""In a batch; what lies before it is under no checksum."""
_ALL_THE_WAY = 64
"""One in so many bits under a checksum is looked for by opening and reading."""
_READERS = 3
"""Of all readers, for each flip that is looked for by opening: which ones, the flip decides."""


def directory(*, clean: bool) -> Image:
    """The directory, closed clean or killed."""
    base = tempfile.mkdtemp(prefix="eoslog-flips-", dir=ROOT)
    try:
        disk = Disk(os.path.join(base, "d"), {})
        properties = checkpoints.MetaProperties(
            cluster_id="A" * 22,
            directory_id="B" * 22,
            transaction_partitions=SETTINGS["transaction.state.log.num.partitions"],
            offsets_partitions=SETTINGS["offsets.topic.num.partitions"],
        )
        checkpoints.write_meta_properties(disk.root, properties)
        disk = Disk(
            os.path.join(base, "e"),
            {"meta.properties": open(f"{disk.root}/meta.properties", "rb").read()},
        )

        def body() -> None:
            log = fill(disk.root)
            if clean:
                log.close()

        world = World(Random(1), disk, Faults(writeback=0))
        world.wall_ns = time.time_ns()  # or the flips would look at what has expired
        process = world.spawn("p", body)
        with seam.installed(world):
            world.run()
        seam.bury(process)
        world.raise_kept()
        return disk.as_is()
    finally:
        shutil.rmtree(base, ignore_errors=True)


def bits(image: Image) -> list[tuple[str, int]]:
    """(file, bit) of everything that is flipped."""
    out = []
    for name in sorted(image):
        data = image[name] or b""
        places: Iterator[int] | range = range(8 * len(data))
        if name.endswith(".log"):  # the begin of preallocated space is enough
            places = range(8 * min(len(data), len(data.rstrip(b"\0")) + _OF_SPACE))
        if os.path.basename(name) == CONTROL_FILE:
            slots = _used_slots(data)
            starts = [(0, 64), *((_SLOTS_AT + s * _SLOT_SIZE, _SLOT_SIZE) for s in slots)]
            places = itertools.chain.from_iterable(range(8 * at, 8 * (at + n)) for at, n in starts)
        out += [(name, bit) for bit in places]
    return out


def _used_slots(control: bytes) -> list[int]:
    used = [s for s in range(200) if any(control[_SLOTS_AT + s * _SLOT_SIZE :][:_SLOT_SIZE])]
    return [used[0], used[-1]]


class Core:
    """What the core says of batches in which a bit is flipped."""

    def __init__(self, image: Image) -> None:
        """Find the batches; all are whole."""
        self._files: dict[str, tuple[bytearray, list[_core.Batch], list[int]]] = {}
        for name, data in image.items():
            if name.endswith(".log") and data:
                there = bytearray(data)
                batches = list(_core.iter_batches(there, strict=False))
                assert all(batch.valid for batch in batches)
                end = sum(batch.size for batch in batches)
                assert not there[end:].strip(b"\0"), "neither batches nor preallocated space"
                self._files[name] = there, batches, [batch.position for batch in batches]

    def judges(self, name: str, bit: int) -> bool:
        """Whether the bit lies under a checksum, or in it."""
        if name not in self._files:
            return False
        _, batches, starts = self._files[name]
        at = bit // 8 - starts[bisect(starts, bit // 8) - 1]
        return _CRC_AT <= at < batches[bisect(starts, bit // 8) - 1].size

    def look(self, name: str, bit: int) -> list[str]:
        """What is wrong: nothing if the batch is called damaged."""
        data, batches, starts = self._files[name]
        batch = batches[bisect(starts, bit // 8) - 1]
        data[bit // 8] ^= 1 << bit % 8
        whole = batch.valid
        data[bit // 8] ^= 1 << bit % 8
        return ["the batch counts as whole"] if whole else []


def newest(image: Image, name: str) -> bool:
    """Whether it is the log file of a partition's active segment."""
    place = os.path.dirname(name)
    logs = [other for other in image if os.path.dirname(other) == place and other.endswith(".log")]
    return name.endswith(".log") and name == max(logs)


def look(path: str, image: Image, flip: tuple[str, int], known: Known, report: Report) -> list[str]:
    """Run readers and a deletion on the image with one flipped bit.

    Returns what went wrong.
    """
    name, bit = flip
    rng = Random(f"{name} {bit}")
    read_only = rng.random() < 0.3
    killed = "killed" in os.path.basename(path)
    alone = not (killed and newest(image, name))
    chosen = choose(rng, files_alone=alone, read_only=read_only, readers=_READERS)
    lay(path, image, name, bit)
    try:
        return attempts(Path(path), chosen, known, report.counts, read_only=read_only)
    finally:
        shutil.rmtree(path)


def flips(
    seconds: float, part: int, *, every: int = 1, say: Callable[[str], None] | None = None
) -> Report:
    """Flip one bit in `every`, spread over both directories, until the time is over.

    The parts 0 to every - 1 are disjoint, and together all bits that there are.
    """
    report = Report()
    end = time.monotonic() + seconds
    base = tempfile.mkdtemp(prefix="eoslog-flip-", dir=ROOT)
    try:
        for clean in (True, False):
            kind = "clean" if clean else "killed"
            image = directory(clean=clean)
            known = learn(partial(copy, os.path.join(base, "learn"), image))
            require_variety(known)
            todo = bits(image)
            report.counts["bits there"] += len(todo)
            Random(0).shuffle(todo)
            todo = todo[part % every :: every]
            core = Core(image)
            for number, (name, bit) in enumerate(todo):
                if time.monotonic() >= end - (seconds / 2 if clean else 0):
                    break
                if core.judges(name, bit) and number % _ALL_THE_WAY:
                    wrong = core.look(name, bit)
                else:
                    path = os.path.join(base, f"{kind}{number}")
                    wrong = look(path, image, (name, bit), known, report)
                    report.counts["openings"] += 1
                report.counts["flips"] += 1
                report.violations += [f"{kind} {name} bit {bit}: {what}" for what in wrong]
                if say is not None and number % 500 == 499:
                    say(
                        f"{report.counts['flips']} of {report.counts['bits there']} bits, {len(report.violations)} violations"
                    )
            else:
                report.counts["whole directories"] += 1
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return report


def copy(path: str, image: Image) -> Path:
    """The image as it is."""
    lay(path, image, "", 0)
    return Path(path)


def lay(path: str, image: Image, name: str, bit: int) -> None:
    """The image, with one bit of one file flipped; of none if no file has the name."""
    for file, data in image.items():
        full = os.path.join(path, file)
        if data is None:
            os.makedirs(full, exist_ok=True)
            continue
        os.makedirs(os.path.dirname(full), exist_ok=True)
        if file == name:
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            data = bytes(flipped)
        write_sparse(full, data)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.flips")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="Duration in seconds. [default: %(default)s]"
    )
    parser.add_argument(
        "--every",
        type=int,
        default=1,
        help="Flip one in N bits; 1 flips every bit. [default: %(default)s]",
    )
    parser.add_argument(
        "--part",
        type=int,
        default=0,
        help="Which of those bits to flip: 0 to EVERY - 1. [default: %(default)s]",
    )
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    report = flips(
        args.seconds, args.part, every=args.every, say=lambda line: print(line, flush=True)
    )
    for what in report.violations[:40]:
        print(what)
    c = report.counts
    print(
        f"{c['flips']} flips, {c['openings']} openings, {c['pairs']} pairs, {c['bits there']} bits there, "
        f"{len(report.violations)} violations"
    )
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
