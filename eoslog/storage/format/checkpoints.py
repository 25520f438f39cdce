"""The small text files next to the logs, in Kafka's formats.

    <name>-checkpoint        0 / count / one line per entry: "topic partition offset"
    leader-epoch-checkpoint  0 / count / one line per entry: "epoch start_offset", rising
    partition.metadata       version: 0 / topic_id: 22 characters of base64url
    meta.properties          Java properties: version, cluster.id, node.id, directory.id, and
                             eoslog.format, eoslog.durability, the counts of the internal topics,
                             eoslog.crc (of all the others)
    .kafka_cleanshutdown     {"version":0,"brokerEpoch":-1}; its existence means clean

Each file is replaced atomically (temporary file, fsync, rename, fsync of the directory), so that a
crash leaves the old or the new one. None overrides a log, because reading the log gives the same
values.

Source: Kafka CheckpointFile, PartitionMetadataFile, MetaProperties, CleanShutdownFileHandler.
"""

from __future__ import annotations

import base64
import binascii
import errno
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from eoslog import _core
from eoslog.errors import CorruptRecord, EoslogError, UnsupportedFormat
from eoslog.shown_paths import get_logger
from eoslog.storage.fs import files

logger = get_logger("eoslog.storage")

RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

FORMAT = 1
_VERSION = "0"
_T = TypeVar("_T")
_ZERO_ID = bytes(16)


def new_id() -> bytes:
    """Return a random 16-byte id whose text does not begin with a dash, like a CLI option."""
    while True:
        value = secrets.token_bytes(16)
        if not id_text(value).startswith("-"):
            return value


def id_text(value: bytes) -> str:
    """Return an id as Kafka prints it: 22 characters of base64url."""
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def id_bytes(text: str) -> bytes:
    """Return the 16 bytes of a printed id, or raise ValueError."""
    try:
        value = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(f"not an id: {text!r}") from error
    if len(value) != 16:
        raise ValueError(f"not an id: {text!r}")
    return value


def _read(path: str) -> str | None:
    """Return the text of a file, None if there is no file."""
    try:
        data = bytes(files.read_file(path))
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptRecord(f"not UTF-8: {error.reason}", path=path, position=error.start) from None


def _write(path: str, text: str) -> None:
    files.write_atomically(path, text.encode())


def _entries(path: str, parse: Callable[[Sequence[str]], _T]) -> list[_T]:
    text = _read(path)
    if not text:
        return []
    lines = text.splitlines()
    if lines[0].strip() != _VERSION:
        raise CorruptRecord("checkpoint version", path=path, expected=_VERSION, found=lines[0])
    try:
        count = int(lines[1])
    except (ValueError, IndexError):
        raise CorruptRecord("checkpoint has no entry count", path=path) from None
    body = [line for line in lines[2:] if line.strip()]
    if len(body) != count:
        raise CorruptRecord("checkpoint entry count", path=path, expected=count, found=len(body))
    entries = []
    for number, line in enumerate(body, start=3):
        try:
            entries.append(parse(line.split()))
        except (ValueError, IndexError):
            raise CorruptRecord(
                f"line {number} is not a valid entry: {line!r}", path=path
            ) from None
    return entries


def _store(path: str, lines: Iterable[str]) -> None:
    body = list(lines)
    _write(path, "\n".join([_VERSION, str(len(body)), *body]) + "\n")


def _offset_entry(words: Sequence[str]) -> tuple[tuple[str, int], int]:
    topic, partition, offset = words
    return (topic, int(partition)), int(offset)


def read_offsets(path: str, *, lenient: bool = False) -> dict[tuple[str, int], int]:
    """Read an offset checkpoint.

    Args:
        path: the file; a missing or empty one has no entries.
        lenient: log a warning for a broken file and treat it as empty; recovery then reads more.

    Raises:
        CorruptRecord: if the file is broken, and not `lenient`.
    """
    try:
        return dict(_entries(path, _offset_entry))
    except CorruptRecord as error:
        if not lenient:
            raise
        logger.warning("%s: checkpoint unreadable, treating it as empty: %s", path, error)
        return {}


def write_offsets(path: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Replace an offset checkpoint. Durability: durable on return."""
    _store(path, (f"{topic} {p} {offset}" for (topic, p), offset in sorted(offsets.items())))


def read_leader_epochs(path: str) -> list[tuple[int, int]]:
    """Read a leader-epoch checkpoint as (epoch, start offset), rising in both."""
    entries = _entries(path, lambda words: (int(words[0]), int(words[1])))
    for epoch, start in entries:
        if not (0 <= epoch < 1 << 31 and 0 <= start < 1 << 63):
            raise CorruptRecord(
                f"leader epoch {epoch} at offset {start} is out of range", path=path
            )
    for before, after in pairwise(entries):
        if after[0] <= before[0] or after[1] < before[1]:
            raise CorruptRecord(
                f"leader epoch {after} follows {before}; epochs and offsets must rise", path=path
            )
    return entries


def write_leader_epochs(path: str, entries: Iterable[tuple[int, int]]) -> None:
    """Replace a leader-epoch checkpoint. Durability: durable on return."""
    _store(path, (f"{epoch} {start}" for epoch, start in entries))


def read_partition_metadata(directory: str) -> bytes | None:
    """Return the topic id in a partition directory, None if there is no such file.

    Raises:
        CorruptRecord: if the file is broken, or has the invalid all-zero id.
    """
    path = os.path.join(directory, PARTITION_METADATA)
    text = _read(path)
    if text is None:
        return None
    values = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    if values.get("version", "").strip() != _VERSION:
        raise CorruptRecord(
            "partition.metadata version", path=path, expected=_VERSION, found=values.get("version")
        )
    try:
        topic_id = id_bytes(values["topic_id"].strip())
    except (KeyError, ValueError):
        raise CorruptRecord(
            "partition.metadata topic_id", path=path, expected="22 characters of base64url",
            found=values.get("topic_id"),
        ) from None  # fmt: skip
    if topic_id == _ZERO_ID:
        raise CorruptRecord("partition.metadata has the invalid all-zero topic id", path=path)
    return topic_id


def partition_metadata_fault(directory: str, topic_id: bytes | None = None) -> CorruptRecord | None:
    """Return what is wrong with a directory's partition.metadata; None if nothing is.

    With a `topic_id`, a missing or another id is wrong too, unless the directory is just being
    created and has no leader epochs yet.
    """
    made = files.exists(os.path.join(directory, LEADER_EPOCH_CHECKPOINT))
    try:
        found = read_partition_metadata(directory)
    except CorruptRecord as error:
        return error
    if topic_id is None or found == topic_id or not made:
        return None
    return CorruptRecord(
        "partition.metadata topic_id", path=os.path.join(directory, PARTITION_METADATA),
        expected=id_text(topic_id), found="no file" if found is None else id_text(found),
    )  # fmt: skip


def write_partition_metadata(directory: str, topic_id: bytes) -> None:
    """Replace partition.metadata. Durability: durable on return."""
    path = os.path.join(directory, PARTITION_METADATA)
    _write(path, f"version: {_VERSION}\ntopic_id: {id_text(topic_id)}\n")


@dataclass(frozen=True, kw_only=True)
class MetaProperties:
    """The properties of a directory in meta.properties, fixed at its creation."""

    cluster_id: str
    directory_id: str
    node_id: int = 0
    durability: str = "strict"
    transaction_partitions: int = 50
    offsets_partitions: int = 50
    format: int = FORMAT
    mode: str = "700"
    """Permissions of the directory, octal. The default is also that of older versions."""
    extra: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def new(
        cls, durability: str = "strict", txn: int = 50, offsets: int = 50, mode: int = 0o700
    ) -> MetaProperties:
        """Return the properties of a new directory."""
        return cls(
            cluster_id=id_text(new_id()),
            directory_id=id_text(new_id()),
            durability=durability,
            transaction_partitions=txn,
            offsets_partitions=offsets,
            mode=f"{mode:o}",
        )


_KEYS = {
    "cluster.id": "cluster_id",
    "directory.id": "directory_id",
    "node.id": "node_id",
    "eoslog.durability": "durability",
    "eoslog.transaction.partitions": "transaction_partitions",
    "eoslog.offsets.partitions": "offsets_partitions",
    "eoslog.format": "format",
    "eoslog.mode": "mode",
}
_CRC_KEY = "eoslog.crc"
_LATER = ("eoslog.mode",)
"""Keys that directories of older versions do not have."""
_NUMBERS = ("node_id", "transaction_partitions", "offsets_partitions", "format")


def read_meta_properties(directory: str) -> MetaProperties | None:
    """Read the meta.properties of an eoslog directory; None if there is no such file.

    Raises:
        CorruptRecord: if the file is broken, or another program wrote it.
        UnsupportedFormat: if a newer eoslog wrote the directory.
    """
    path = os.path.join(directory, META_PROPERTIES)
    text = _read(path)
    if text is None:
        return None
    values = _parse_properties(text)
    if values.pop("version", None) != "1":
        raise CorruptRecord("meta.properties has no version=1", path=path)
    if "eoslog.format" not in values:
        raise CorruptRecord(
            "meta.properties has no eoslog.format; another program wrote it", path=path
        )
    _check_format(values["eoslog.format"], path)  # first: a newer one may have other keys
    stated = values.pop(_CRC_KEY, None)
    if stated not in (None, _properties_crc(values)):
        raise CorruptRecord(
            "meta.properties", path=path, expected=f"{_CRC_KEY} {_properties_crc(values)}",
            found=stated,
        )  # fmt: skip
    known = {_KEYS[key]: value for key, value in values.items() if key in _KEYS}
    try:
        numbers = {name: int(known[name]) for name in _NUMBERS if name in known}
        properties = MetaProperties(
            **{**known, **numbers, "extra": {k: v for k, v in values.items() if k not in _KEYS}}  # type: ignore[arg-type]
        )
    except (TypeError, ValueError) as error:
        raise CorruptRecord(f"meta.properties: {error}", path=path) from None
    if properties.durability not in ("strict", "os"):
        raise CorruptRecord(
            "eoslog.durability", path=path, expected="strict or os", found=properties.durability
        )
    for key in _KEYS:
        if key.startswith("eoslog.") and key not in values and key not in _LATER:
            raise CorruptRecord(f"meta.properties has no {key}", path=path)
    if not re.fullmatch("7[0-7]{2}", properties.mode):
        raise CorruptRecord("eoslog.mode", path=path, expected="700 to 777", found=properties.mode)
    for key in ("eoslog.transaction.partitions", "eoslog.offsets.partitions"):
        if numbers[_KEYS[key]] < 1:
            raise CorruptRecord(key, path=path, expected="1 or more", found=numbers[_KEYS[key]])
    return properties


def _check_format(text: str, path: str) -> None:
    try:
        found = int(text)
    except ValueError as error:
        raise CorruptRecord(f"meta.properties: {error}", path=path) from None
    if found > FORMAT:
        raise UnsupportedFormat(
            "eoslog.format: a newer eoslog wrote this log; use that version",
            path=path, expected=FORMAT, found=found,
        )  # fmt: skip
    if found != FORMAT:
        raise CorruptRecord("eoslog.format", path=path, expected=FORMAT, found=found)


def read_foreign_properties(directory: str) -> dict[str, str] | None:
    """Read the meta.properties of a broker's log directory; None if missing, or eoslog's."""
    text = _read(os.path.join(directory, META_PROPERTIES))
    values = None if text is None else _parse_properties(text)
    if values is None or "eoslog.format" in values or "version" not in values:
        return None
    return values


def write_meta_properties(directory: str, properties: MetaProperties) -> None:
    """Write meta.properties. Durability: durable on return."""
    lines = ["version=1", *(f"{key}={getattr(properties, name)}" for key, name in _KEYS.items())]
    lines += [f"{key}={value}" for key, value in properties.extra.items()]
    lines.append(f"{_CRC_KEY}={_properties_crc(_parse_properties(chr(10).join(lines)))}")
    _write(os.path.join(directory, META_PROPERTIES), "\n".join(lines) + "\n")


def _properties_crc(values: Mapping[str, str]) -> str:
    """Return the CRC-32C of the properties in sorted order, without `version`."""
    lines = sorted(f"{key}={value}" for key, value in values.items() if key != "version")
    return f"{_core.crc32c(chr(10).join(lines).encode()):08x}"


def _parse_properties(text: str) -> dict[str, str]:
    values = {}
    for line in text.splitlines():
        line = line.strip()
        if line and line[0] not in "#!" and "=" in line:
            key, value = line.split("=", 1)
            values[key.strip()] = value.strip().replace("\\:", ":").replace("\\=", "=")
    return values


def write_clean_shutdown(directory: str) -> None:
    """Record that every log of the directory was closed and checkpointed."""
    _write(
        os.path.join(directory, CLEAN_SHUTDOWN),
        json.dumps({"version": 0, "brokerEpoch": -1}, separators=(",", ":")),
    )


def was_clean_shutdown(directory: str) -> bool:
    """Whether the last process recorded a clean close: the file exists, as in Kafka."""
    try:
        return _read(os.path.join(directory, CLEAN_SHUTDOWN)) is not None
    except EoslogError:
        return True
