"""The directory as a whole: made or recognised, freed of what deleted topics left.

A crash in the making leaves eoslog's own files and no meta.properties: the next opener takes the
directory as new. A crash in a deletion leaves `*-delete` folders, or partitions of a topic that the
metadata knows as deleted: the first opener of the next session finishes it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from eoslog.config import LogConfig
from eoslog.errors import ConfigError, StorageError
from eoslog.storage import checkpoints, files
from eoslog.storage.metadata_fold import TopicInfo
from eoslog.storage.session import bootstrap_lock

_OWN_PREFIXES = ("eoslog.", "meta.properties.tmp")


def prepare_directory(
    path: str, *, create: bool, durability: str | None, config: LogConfig | None = None
) -> checkpoints.MetaProperties:
    """Read meta.properties, or make a new directory.

    A crash in between leaves a directory with eoslog's own files and no meta.properties: it is
    taken as new.
    """
    if not files.is_dir(path):
        if files.exists(path) and not files.is_dir(path):  # it may just have been made
            raise StorageError("not a directory", 20, path)
        if not create:
            raise StorageError("no log to open", 2, path)
        with files.naming(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        files.make_dir(path)
    foreign = [name for name in files.names(path) if not name.startswith(_OWN_PREFIXES)]
    properties = checkpoints.read_meta_properties(path)  # later: another process may just make it
    if properties is not None:
        _check_counts(path, properties, config)
        return properties
    if foreign:
        raise StorageError(
            f"not an eoslog directory (no meta.properties), and not empty: it has {foreign[0]!r}",
            path=path,
        )
    if not create:
        raise StorageError("not an eoslog directory: no meta.properties", 2, path)
    with bootstrap_lock(path):
        properties = checkpoints.read_meta_properties(path)
        if properties is None:
            counts = config or LogConfig.of()
            properties = checkpoints.MetaProperties.new(
                durability or "strict",
                counts.transaction_state_log_num_partitions,
                counts.offsets_topic_num_partitions,
            )
            checkpoints.write_meta_properties(path, properties)
        return properties


@contextlib.contextmanager
def built_aside(target: str, suffix: str) -> Iterator[str]:
    """A new directory, built under another name, that gets its own when the block ends.

    An error leaves nothing. A crash leaves `target + suffix`, which the next one to build there
    removes.

    Raises:
        ConfigError: `target` is there and is not an empty directory, or the other name is taken.
        StorageError: from the disk.

    Durability: what is in it, when the block ends, is durable under the name.
    """
    work = target + suffix
    mark = "eoslog.unfinished"
    if files.exists(target) and (not files.is_dir(target) or files.names(target)):
        raise ConfigError(f"{target} is not new: it is there, and not an empty directory")
    if files.exists(work):
        if files.names(work) and not files.exists(os.path.join(work, mark)):
            raise ConfigError(f"{work} is in the way")
        files.remove_tree(work)
    files.make_dir(work)
    files.write_file(os.path.join(work, mark), b"", durable=True)
    try:
        yield work
        files.fsync_dir(work)
        files.failpoint("aside.renaming")
        with files.naming(target):
            os.rename(work, target)
        files.remove(os.path.join(target, mark))
        files.fsync_dir(os.path.dirname(target))
    except BaseException:
        files.remove_tree(work)
        raise


def _check_counts(
    path: str, properties: checkpoints.MetaProperties, config: LogConfig | None
) -> None:
    stored = {
        "transaction.state.log.num.partitions": properties.transaction_partitions,
        "offsets.topic.num.partitions": properties.offsets_partitions,
    }
    for key in sorted(stored.keys() & (config.given if config is not None else set())):
        wanted = getattr(config, key.replace(".", "_"))
        if wanted != stored[key]:
            raise ConfigError(
                f"{path}: {key} {wanted} asked for, the directory was made with {stored[key]}"
            )


def remove_partition(root: str, topic: str, partition: int, topic_id: bytes) -> None:
    """Remove a partition's directory if it is still of that topic id, renamed first."""
    path = os.path.join(root, f"{topic}-{partition}")
    if not files.is_dir(path) or checkpoints.read_partition_metadata(path) != topic_id:
        return
    gone = os.path.join(root, f"{topic[:200]}-{partition}.{topic_id.hex()}-delete")
    with contextlib.suppress(FileNotFoundError):  # somebody else is at it
        files.rename(path, gone)
        files.remove_tree(gone)


def stands(root: str, info: TopicInfo) -> bool:
    """Whether a directory of a deleted topic is still there."""
    paths = (os.path.join(root, f"{info.name}-{number}") for number in info.partitions)
    return any(
        files.is_dir(path) and checkpoints.read_partition_metadata(path) == info.topic_id
        for path in paths
    )


def remove_renamed(root: str) -> None:
    """Remove what a crash left renamed for its removal."""
    for name in files.names(root):
        if name.endswith("-delete"):
            files.remove_tree(os.path.join(root, name))
