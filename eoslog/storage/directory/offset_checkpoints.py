"""Recovery points, log starts and cleaned offsets of a directory, under a checksum.

Kafka keeps them in three text files without a checksum. A log start that is too high would hide
and delete records. A recovery point that is too low would make damage look like a torn tail. So
eoslog uses `eoslog.offsets`, which has the same numbers and a CRC. Kafka's files are written after
it, for Kafka's tools and as a second copy, which is used if `eoslog.offsets` is missing or damaged.

    1 <CRC-32C of all lines that follow, 8 hex digits>
    <file name> <topic> <partition> <offset>          one line per entry, sorted

Both are replaced atomically. The caller holds the bootstrap lock from reading to writing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from eoslog import _core
from eoslog.errors import CorruptRecord
from eoslog.shown_paths import get_logger
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files

logger = get_logger("eoslog.storage")

FILE = "eoslog.offsets"
NAMES = (
    checkpoints.RECOVERY_POINT_CHECKPOINT,
    checkpoints.LOG_START_CHECKPOINT,
    checkpoints.CLEANER_CHECKPOINT,
)
_VERSION = "1"
PartitionOffsets = dict[tuple[str, int], int]


def read(root: str, name: str) -> PartitionOffsets:
    """Return one of the three maps, (topic, partition) -> offset, from an undamaged copy."""
    recorded = _recorded(root)
    if recorded is not None:
        return recorded[name]
    return checkpoints.read_offsets(os.path.join(root, name), lenient=True)


def is_recorded(root: str) -> bool:
    """Whether `eoslog.offsets` exists and is undamaged, so that `read` returns verified offsets."""
    return _recorded(root) is not None


def bounds_of(root: str, key: tuple[str, int]) -> tuple[int | None, int | None]:
    """Return the bounds of legitimate gaps in a partition, for readers of plain files.

    Returns:
        (offset at which the log starts, None if not recorded; offset below which a cleaner may have
        left gaps between segments). Both are None if the directory is not a log directory, for
        example a copy of single partitions.
    """
    start = read(root, checkpoints.LOG_START_CHECKPOINT).get(key, 0) if is_recorded(root) else None
    if start is None and not files.exists(os.path.join(root, checkpoints.CLEANER_CHECKPOINT)):
        return None, None
    return start, read(root, checkpoints.CLEANER_CHECKPOINT).get(key, 0)


def create(root: str) -> None:
    """Write the record of a new directory, in which every log starts at 0.

    Without it, a crash of the first session would leave no record of log starts, and a missing
    first segment would count as deleted by retention. The caller holds the bootstrap lock, and
    syncs the directory.
    """
    files.write_file(os.path.join(root, FILE), _encoded(_empty()), durable=True)


def write(root: str, name: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Replace one of the three maps, in both copies.

    Durability: durable on return. A crash may leave Kafka's file older than eoslog's.
    """
    recorded = _recorded(root) or {other: read(root, other) for other in NAMES}
    recorded[name] = dict(offsets)
    files.write_atomically(os.path.join(root, FILE), _encoded(recorded))
    checkpoints.write_offsets(os.path.join(root, name), offsets)


def forget(root: str, key: tuple[str, int]) -> None:
    """Remove a partition from all three maps. The caller holds the bootstrap lock."""
    for name in NAMES:
        offsets = read(root, name)
        if offsets.pop(key, None) is not None:
            write(root, name, offsets)


def fault(root: str) -> CorruptRecord | None:
    """Return what is wrong with `eoslog.offsets`; None if it is right, or missing.

    After a crash, Kafka's file may be older and have lower numbers. A higher number in it is an
    error, because eoslog never writes one.
    """
    try:
        recorded = _parsed(root)
    except CorruptRecord as error:
        return error
    if recorded is None:
        return None
    for name in NAMES:
        path = os.path.join(root, name)
        for key, offset in checkpoints.read_offsets(path, lenient=True).items():
            if offset > recorded[name].get(key, 0):
                return CorruptRecord(
                    f"offset of {key[0]}-{key[1]} is {offset}, but {FILE} says "
                    f"{recorded[name].get(key, 0)}, which is used",
                    path=path,
                )
    return None


def _empty() -> dict[str, PartitionOffsets]:
    return {name: {} for name in NAMES}


def _encoded(recorded: Mapping[str, PartitionOffsets]) -> bytes:
    lines = [
        f"{kind} {topic} {partition} {offset}\n"
        for kind in NAMES
        for (topic, partition), offset in sorted(recorded[kind].items())
    ]
    body = "".join(lines).encode()
    return f"{_VERSION} {_core.crc32c(body):08x}\n".encode() + body


def _recorded(root: str) -> dict[str, PartitionOffsets] | None:
    try:
        return _parsed(root)
    except CorruptRecord as error:
        logger.warning("%s; using Kafka's checkpoint files instead", error)
        return None


def _parsed(root: str) -> dict[str, PartitionOffsets] | None:
    path = os.path.join(root, FILE)
    try:
        data = files.read_file(path)
    except FileNotFoundError:
        return None
    head, newline, body = data.partition(b"\n")
    if not newline or head != f"{_VERSION} {_core.crc32c(body):08x}".encode():
        raise CorruptRecord(
            f"{FILE}: first line is {head[:20]!r}, expected version {_VERSION} and "
            f"CRC {_core.crc32c(body):08x}",
            path=path,
        )
    found = _empty()
    for line in body.decode().splitlines():
        kind, topic, partition, offset = line.split(" ")
        found[kind][topic, int(partition)] = int(offset)
    return found
