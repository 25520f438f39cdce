"""Single bits flipped in every file of a directory: detected or harmless, never silently fewer records.

Two directories of 64 KiB each: one closed clean, one whose processes were killed after everything was flushed.
Each flip gets a fresh copy, which is opened for writing and read to the end by a real consumer. Detected is an
error of eoslog's; harmless is the same records, offsets and committed offsets as before. Of the control file only
the header and two slots that are in use are flipped.

Most bits lie under the checksum of a batch. Each of those is flipped where the core has the batch, which must then call
it damaged; one in 64 goes the long way like the others, which shows that whoever opens or reads asks the core.
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
from random import Random

import eoslog
from eoslog import Producer, TopicPartition, _core
from eoslog.errors import EoslogError
from eoslog.model import OffsetAndMetadata
from eoslog.storage import checkpoints
from eoslog.storage.session import CONTROL_FILE
from tests.simulation import seam
from tests.simulation.disk import Disk, Image, write_sparse
from tests.simulation.simulation import ROOT, Report
from tests.simulation.world import Faults, World

SIZE = 64 << 10
_SLOTS_AT, _SLOT_SIZE = 131072, 256
_CRC_AT = 17
"""In a batch; what lies before it is under no checksum."""
_ALL_THE_WAY = 64
"""One in so many bits under a checksum is looked for by opening and reading."""
Found = tuple[dict[int, list[tuple[int, bytes]]], dict[TopicPartition, int]]


def directory(*, clean: bool) -> tuple[Image, Found]:
    """A directory with several segments, transactions, aborts and a group's offsets; what it holds."""
    base = tempfile.mkdtemp(prefix="eoslog-flips-", dir=ROOT)
    try:
        disk = Disk(os.path.join(base, "d"), {})
        properties = checkpoints.MetaProperties(
            cluster_id="A" * 22,
            directory_id="B" * 22,
            transaction_partitions=2,
            offsets_partitions=1,
        )
        checkpoints.write_meta_properties(disk.root, properties)
        disk = Disk(
            os.path.join(base, "e"),
            {"meta.properties": open(f"{disk.root}/meta.properties", "rb").read()},
        )
        found: list[Found] = []

        def body() -> None:
            log = eoslog.open(disk.root)
            log.create_topic("a", 2, {"segment.bytes": 8000, "index.interval.bytes": 500})
            producer = Producer({"log.dir": disk.root, "transactional.id": "t", "batch.size": 600})
            producer.init_transactions()
            for i in itertools.count():
                producer.begin_transaction()
                for j in range(20):
                    producer.produce("a", f"{i}.{j}" + "v" * 60, partition=j % 2)
                if i % 5 == 4:
                    producer.flush()
                    producer.abort_transaction()
                else:
                    producer.send_offsets_to_transaction({TopicPartition("a", 0): i}, "g")
                    producer.commit_transaction()
                if (
                    sum(len(c or b"") for n, c in disk.as_is().items() if n != CONTROL_FILE)
                    > SIZE - 2500
                ):
                    break
            log.engine.groups.commit_offsets(
                "h", "", -1, {TopicPartition("a", 1): OffsetAndMetadata(7)}
            )
            for partition in range(2):
                log.engine.partition("a", partition).flush()
            found.append(content(log))
            if clean:
                producer.close()
                log.close()

        world = World(Random(1), disk, Faults(writeback=0))
        process = world.spawn("p", body)
        with seam.installed(world):
            world.run()
        seam.bury(process)
        return disk.as_is(), found[0]
    finally:
        shutil.rmtree(base, ignore_errors=True)


def content(log: eoslog.Log) -> Found:
    """What a reader gets, to the end, and the groups' offsets."""
    records: dict[int, list[tuple[int, bytes]]] = {0: [], 1: []}
    with log.consumer(**{"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition("a", 0), TopicPartition("a", 1)])
        for _ in range(100):
            for record in consumer.consume(100_000, timeout=0):
                records[record.partition].append((record.offset, record.value))
            places = consumer.position(consumer.assignment())
            if all(p.offset == log.offsets("a", p.partition).last_stable for p in places):
                break
        else:
            raise AssertionError(f"the reader stands still at {places}")
    groups = {}
    for group in ("g", "h"):
        for tp, stored in log.engine.groups.fetch_offsets(group).items():
            groups[TopicPartition(f"{group} {tp.topic}", tp.partition)] = stored.offset
    return records, groups


def bits(image: Image) -> list[tuple[str, int]]:
    """(file, bit) of everything that is flipped."""
    out = []
    for name in sorted(image):
        size = len(image[name] or b"") * 8
        places: Iterator[int] | range = range(size)
        if os.path.basename(name) == CONTROL_FILE:
            slots = _used_slots(image[name] or b"")
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
                batches = list(_core.iter_batches(there))
                assert all(batch.valid for batch in batches)
                assert sum(batch.size for batch in batches) == len(there)
                self._files[name] = there, batches, [batch.position for batch in batches]

    def judges(self, name: str, bit: int) -> bool:
        """Whether the bit lies under a checksum, or in it."""
        if name not in self._files:
            return False
        _, _, starts = self._files[name]
        return bit // 8 - starts[bisect(starts, bit // 8) - 1] >= _CRC_AT

    def look(self, name: str, bit: int) -> str | None:
        """None if the batch is called damaged."""
        data, batches, starts = self._files[name]
        batch = batches[bisect(starts, bit // 8) - 1]
        data[bit // 8] ^= 1 << bit % 8
        whole = batch.valid
        data[bit // 8] ^= 1 << bit % 8
        return "the batch counts as whole" if whole else None


def look(path: str, expected: Found) -> str | None:
    """None if it is harmless, or detected; else what went wrong."""
    try:
        with eoslog.open(path) as log:
            found = content(log)
    except EoslogError as error:
        return None if str(error) else f"{type(error).__name__} without a word"
    except Exception as error:
        return f"not typed: {type(error).__name__}: {error}"
    for part, want in zip(found, expected, strict=True):
        if part != want:
            return f"silently {_size(part)} instead of {_size(want)}"
    return None


def _size(part: object) -> object:
    return (
        {k: len(v) if isinstance(v, list) else v for k, v in part.items()}
        if isinstance(part, dict)
        else part
    )


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
            image, expected = directory(clean=clean)
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
                    path = os.path.join(base, f"{clean}{number}")
                    lay(path, image, name, bit)
                    wrong = look(path, expected)
                    shutil.rmtree(path)
                    report.counts["openings"] += 1
                report.counts["flips"] += 1
                if wrong is not None:
                    report.violations.append(
                        f"{'clean' if clean else 'killed'} {name} bit {bit}: {wrong}"
                    )
                if say is not None and number % 500 == 499:
                    say(
                        f"{report.counts['flips']} of {report.counts['bits there']} bits, {len(report.violations)} violations"
                    )
            else:
                report.counts["whole directories"] += 1
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return report


def lay(path: str, image: Image, name: str, bit: int) -> None:
    """The image, with one bit of one file flipped."""
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
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--every", type=int, default=1, help="one in so many bits (1: every bit)")
    parser.add_argument("--part", type=int, default=0, help="which of them: 0 to EVERY - 1")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    report = flips(
        args.seconds, args.part, every=args.every, say=lambda line: print(line, flush=True)
    )
    for what in report.violations[:40]:
        print(what)
    c = report.counts
    print(
        f"{c['flips']} flips, {c['openings']} openings, {c['bits there']} bits there, {len(report.violations)} violations"
    )
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
