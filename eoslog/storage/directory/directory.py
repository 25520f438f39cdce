"""Creating, recognising and preparing a log directory.

A crash during creation leaves eoslog's own files without meta.properties; the next process that
opens the directory treats it as new. A crash during a deletion leaves `*-delete` directories, or
partitions of a deleted topic; the process that begins the next session finishes the deletion.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator

from eoslog import _core
from eoslog.config.keys import LogConfig
from eoslog.errors import ConfigError, DiskFull, LockTimeout, StorageError
from eoslog.shown_paths import get_logger
from eoslog.storage.directory import offset_checkpoints
from eoslog.storage.directory.session import Session, bootstrap_lock, explain_unwritable
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from eoslog.storage.metadata.image import TopicInfo

logger = get_logger("eoslog.directory")

_UNFINISHED = "eoslog.unfinished"
"""Marks a directory that `built_aside` has not completed."""
_OWN_PREFIXES = ("eoslog.", "meta.properties.tmp")
_RENAMED = re.compile(r".+-\d+\.[0-9a-f]{32}-delete")


def make_directory(path: str, *, create: bool, mode: int | None = None) -> None:
    """Create the directory with these permissions, unless it exists.

    Raises:
        StorageError: if the path is not a directory, cannot be created, or does not exist and
            `create` is False.
    """
    if not files.is_dir(path):
        if files.exists(path) and not files.is_dir(path):  # it may have been created just now
            raise StorageError("not a directory", 20, path)
        if not create:
            raise StorageError("no log to open; give create=True to create one", 2, path)
        parent = os.path.dirname(path)
        try:
            with files.naming(parent):
                os.makedirs(parent, exist_ok=True)
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise
            raise StorageError("not a directory", errno.ENOTDIR, parent) from error
        files.make_dir(path, mode=files.DIRECTORY_MODE if mode is None else mode)


def is_of_a_directory(name: str) -> bool:
    """Whether eoslog or Kafka gives this name to a file or directory next to the partitions."""
    if name.startswith(("eoslog.", "eoslog-staging-")) or _RENAMED.fullmatch(name):
        return True
    known = (*offset_checkpoints.NAMES, checkpoints.META_PROPERTIES, checkpoints.CLEAN_SHUTDOWN)
    return name.removesuffix(".tmp") in known


def prepare_directory(
    path: str,
    *,
    create: bool,
    durability: str | None,
    config: LogConfig | None = None,
    mode: int | None = None,
) -> checkpoints.MetaProperties:
    """Read meta.properties, or write it into a new directory.

    A crash in between leaves eoslog's own files without meta.properties; the next call treats the
    directory as new. An existing directory keeps its permissions unless `mode` is given.
    """
    foreign = [name for name in files.names(path) if not name.startswith(_OWN_PREFIXES)]
    properties = checkpoints.read_meta_properties(path)  # after the names: it may just be created
    if properties is not None:
        _check_counts(path, properties, config)
        _check_mode(path, properties, mode)
        return properties
    if foreign:
        raise StorageError(
            "not an eoslog directory (meta.properties is missing), and not empty (it has "
            f"{foreign[0]!r}); give an empty or a new directory",
            path=path,
        )
    if not create:
        raise StorageError("not an eoslog directory: meta.properties is missing", 2, path)
    if mode is not None:  # before the first file, which inherits the permissions
        _share(path, mode)
    with explain_unwritable(""), bootstrap_lock(path):
        properties = checkpoints.read_meta_properties(path)
        if properties is None:
            counts = config or LogConfig.of()
            properties = checkpoints.MetaProperties.new(
                durability or "strict",
                counts.transaction_state_log_num_partitions,
                counts.offsets_topic_num_partitions,
                files.shared_mode(path) if mode is None else mode,
            )
            offset_checkpoints.create(path)
            checkpoints.write_meta_properties(path, properties)
            logger.info(
                "%s: created a log, durability %s, mode %s",
                path, properties.durability, properties.mode,
            )  # fmt: skip
        _check_mode(path, properties, mode)
        return properties


def _share(path: str, mode: int) -> None:
    """Set a new log's permissions, and those of files that an interrupted creation has left."""
    files.share(path, mode)
    for name in files.names(path):
        with contextlib.suppress(FileNotFoundError), files.naming(path):
            os.chmod(os.path.join(path, name), mode & 0o666)


def _check_mode(path: str, properties: checkpoints.MetaProperties, mode: int | None) -> None:
    stored = int(properties.mode, 8)
    if mode is not None and mode != stored:
        raise ConfigError(
            f"{path}: mode {mode:o} was requested, but the log was created with {stored:o}; leave "
            "the mode out, or create a new log"
        )
    if stored & 0o077 and files.shared_mode(path) == files.DIRECTORY_MODE:
        logger.warning(
            "%s: created with mode %o, but the setgid bit of the directory is missing, so new "
            "files are private; set it with chmod %s",
            path, stored, f"2{stored:o}",
        )  # fmt: skip


class NeverUsed(StorageError):
    """A partition has no directory, and no recorded offsets, so it was never used."""


class NotMade(DiskFull):
    """The disk is full, and the partition's directory does not exist, because it was never used."""


@contextlib.contextmanager
def built_aside(target: str, suffix: str, mode: int = files.DIRECTORY_MODE) -> Iterator[str]:
    """Build a new directory under a temporary name, and rename it when the block ends.

    An error removes it. A crash leaves `target + suffix`, which the next call removes.

    Raises:
        ConfigError: if `target` exists and is not an empty directory, or the temporary name is
        used. LockTimeout: if another process, or thread, builds this directory. StorageError: if a
        file operation fails.

    Durability: when the block ends, its content is durable under the name.
    """
    work = target + suffix
    if files.exists(target) and (not files.is_dir(target) or files.names(target)):
        raise ConfigError(f"{target} exists and is not an empty directory; choose a new path")
    if files.exists(work):
        if files.names(work) and not files.exists(os.path.join(work, _UNFINISHED)):
            raise ConfigError(f"{work} exists, and eoslog did not create it; move it away")
        with _building(work):
            files.remove_tree(work)
    if not files.is_dir(parent := os.path.dirname(target) or "."):
        raise StorageError("the parent directory does not exist; create it first", 2, parent)
    files.make_dir(work, mode=mode)
    with files.naming(work):  # another process may remove it, as what a killed one has left
        files.write_file(os.path.join(work, _UNFINISHED), b"", durable=True)
    with _building(work):
        try:
            yield work
            files.fsync_dir(work)
            files.failpoint("aside.renaming")
            with files.naming(target):
                os.rename(work, target)
            files.remove(os.path.join(target, _UNFINISHED))
            files.fsync_dir(os.path.dirname(target))
        except BaseException:
            files.remove_tree(work)
            raise


@contextlib.contextmanager
def _building(work: str) -> Iterator[None]:
    """Hold the lock of a directory that is built aside, on the file that marks it.

    Raises:
        LockTimeout: if it is held, or if the mark was replaced or renamed with its directory.
    """
    mark = os.path.join(work, _UNFINISHED)
    with files.naming(work):
        fd = files.open_file(mark, create=True)
    _core.guard_across_fork(fd)  # a forked child would keep the lock after this process ends
    try:
        locked = _core.try_lock(fd, 0)
        now = files.status(mark)
        if not locked or now is None or now.st_ino != os.fstat(fd).st_ino:
            raise LockTimeout(
                f"{work}: another process is creating this directory; retry when it has ended, or "
                "choose another path"
            )
        yield
    finally:
        _core.release_guard(fd)
        files.close(fd)


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
                f"{path}: {key} is {stored[key]} since the log was created, got {wanted}; leave "
                "the key out, or create a new log"
            )


def remove_partition(session: Session, topic: TopicInfo, number: int) -> None:
    """Rename and remove a deleted partition's directory, unless a new topic has it.

    Directories are created under the bootstrap lock too. Otherwise a process that is suspended
    before the rename would remove the directory of a new topic of that name.

    Raises:
        LockTimeout: if a process is suspended while it recovers the partition, or creates one.
    """
    topic_id = topic.topic_id
    path = os.path.join(session.path, f"{topic.name}-{number}")
    gone = os.path.join(session.path, f"{topic.name[:200]}-{number}.{topic_id.hex()}-delete")
    session.await_recovery(topic.partition(number).slot)
    with session.bootstrap():
        if not files.is_dir(path) or checkpoints.read_partition_metadata(path) != topic_id:
            return
        files.rename(path, gone)
    with contextlib.suppress(FileNotFoundError):  # an opening removes it at the same time
        files.remove_tree(gone)


def still_existing(root: str, deleted: Iterable[TopicInfo]) -> list[TopicInfo]:
    """Return those of some deleted topics that still have a directory.

    The id in each directory is read one time, also if many topics have had its name.
    """
    topics = list(deleted)
    found: set[bytes | None] = set()
    for name in {f"{info.name}-{number}" for info in topics for number in info.partitions}:
        path = os.path.join(root, name)
        if files.is_dir(path):
            found.add(checkpoints.read_partition_metadata(path))
    return [info for info in topics if info.topic_id in found]


def remove_renamed(root: str) -> None:
    """Remove directories that were renamed for their removal before a crash."""
    for name in files.names(root):
        if _RENAMED.fullmatch(name):
            files.remove_tree(os.path.join(root, name))
