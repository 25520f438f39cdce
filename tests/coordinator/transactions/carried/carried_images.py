"""Killed directories with carried commits, and their images after power loss."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from eoslog import _core
from eoslog.config.log_keys import LogConfig
from eoslog.coordinator.transactions.records import decode_carried
from eoslog.storage.directory.session import CHUNK_SIZE, CONTROL_FILE
from eoslog.storage.log.partition_log import PartitionLog
from tests.coordinator.transactions.test_engine import RealWorld, in_child
from tests.reference import codec

LATE = {"flush.ms": "3600000", "segment.ms": str(1 << 60)}
"""No background flush; no roll between batches of 1970 and markers of now."""
STATE = LogConfig(transaction_state_log_segment_bytes=1 << 18)
"""Some decisions of 30 KiB fill a segment."""


def late_world(path: Path, durability: str = "strict", *, preallocate: bool = False) -> RealWorld:
    """Topics a (2 partitions) and b (1), which nothing but a call flushes."""
    world = RealWorld(path, durability, STATE)
    config = {**LATE, "preallocate": str(preallocate).lower()}
    world.engine.metadata.create_topic("a", 2, config)
    world.engine.metadata.create_topic("b", 1, config)
    return world


def carried_rows(world: RealWorld, name: str) -> list[int]:
    """How many partitions each record of a transactional id's log carries."""
    log = world.engine.transaction_partition(name)
    return [
        len(decode_carried(value))
        for batch in log.batches(0, log.log_end)
        for _, _, _, value, _ in batch.records()
        if value is not None
    ]


@dataclass
class Part:
    """The only segment of a partition in a killed directory."""

    file: str
    slot: int
    data: bytes
    flushed: int
    """Bytes that a flush has made durable."""
    covered: int
    """Bytes that are durable in the file or by a decision."""

    def borders(self) -> list[int]:
        """Each end of a batch from the flushed bytes on."""
        ends = [0, *(b.position + b.size for b in codec.iter_batches(self.data))]
        return [end for end in ends if end >= self.flushed]


class Killed:
    """A directory whose process was killed, and what was durable of its partitions."""

    def __init__(self, path: Path, run: Callable[[Path], list[PartitionLog]]) -> None:
        """Run in a process that is killed; `run` returns partitions that it has open."""
        self.path = path

        def child() -> None:
            ends = {g.name: (g.slot, g.flushed_end, g.high_watermark) for g in run(path)}
            path.with_suffix(".json").write_text(json.dumps(ends))

        in_child(child)
        found = json.loads(path.with_suffix(".json").read_text())
        self.parts = {name: self._part(name, *ends) for name, ends in found.items()}

    def _part(self, name: str, slot: int, flushed: int, covered: int) -> Part:
        file = f"{name}/{0:020}.log"
        data = without_zeros((self.path / file).read_bytes())
        return Part(file, slot, data, position(data, flushed), position(data, covered))

    @contextlib.contextmanager
    def image(self, tails: Mapping[str, bytes]) -> Iterator[Path]:
        """Yield a copy in which some partitions' segments have other bytes."""
        image = self.path.with_suffix(".image")
        shutil.rmtree(image, ignore_errors=True)
        shutil.copytree(self.path, image)
        for name, data in tails.items():
            (image / self.parts[name].file).write_bytes(data)
        yield image
        shutil.rmtree(image)

    def cut(self) -> dict[str, bytes]:
        """What is left if a power loss takes all that no flush has made durable."""
        return {name: part.data[: part.flushed] for name, part in self.parts.items()}


def without_zeros(data: bytes) -> bytes:
    """The batches of a segment that may be preallocated."""
    end = 0
    with contextlib.suppress(codec.Malformed):
        for found in codec.iter_batches(data, records=False):
            end = found.position + found.size
    assert not data[end:].strip(b"\0")
    return data[:end]


def lose_from(file: Path, size: int) -> None:
    """A segment's batches end at a byte; a preallocated file keeps its size."""
    data = file.read_bytes()
    os.truncate(file, size)
    if len(without_zeros(data)) < len(data):
        os.truncate(file, len(data))


def position(data: bytes, offset: int) -> int:
    """The byte at which an offset begins, or would begin."""
    found = (b.position for b in codec.iter_batches(data) if b.base_offset >= offset)
    return next(found, len(data))


def durable_end(path: Path, slot: int) -> int:
    """What the control file of a killed directory says of a partition."""
    fd = os.open(path / CONTROL_FILE, os.O_RDONLY)
    control = _core.ControlFile(fd, writable=False)
    control.map_chunks(os.fstat(fd).st_size // CHUNK_SIZE)
    found = int(control.slot_view(slot)["durable_end"])
    control.close()
    os.close(fd)
    return found


def content(path: Path) -> dict[str, bytes]:
    """The bytes of each segment in a directory."""
    return {str(f.relative_to(path)): f.read_bytes() for f in sorted(path.glob("*/*.log"))}
