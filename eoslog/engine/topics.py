"""The topics of an open directory: created, altered, deleted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from eoslog.engine.log_manager import OpenPartitions
from eoslog.engine.topic_deletion import Deletion
from eoslog.errors import DiskFull, TooManyOpenFiles
from eoslog.storage.fs.opened_directory import OpenedDirectory
from eoslog.storage.log.partition_log import LogSettings
from eoslog.storage.metadata.metadata_log import MetadataLog

Config = Mapping[str, Any]


@contextlib.contextmanager
def explain_unfinished(state: Callable[[], tuple[str, str]]) -> Iterator[None]:
    """Add what exists now to an error that may have ended a change half-way.

    Args:
        state: returns what exists, and what the caller can do after the cause is removed.

    Raises:
        DiskFull, TooManyOpenFiles: if the block raises one, with its errno and path.
    """
    try:
        yield
    except (DiskFull, TooManyOpenFiles) as error:
        full = isinstance(error, DiskFull)
        kind = DiskFull if full else TooManyOpenFiles
        remedy = "free space" if full else "close files, or raise the limit (`ulimit -n`)"
        exists, step = state()
        raise kind(f"{exists}; {remedy}, then {step}", error.errno or 0, error.path) from error


class TopicManager:
    """Changes the topics of an open directory. Safe with other threads and processes.

    Args:
        directory: checked before each change, because another directory may be at its path.
        metadata: the log of topics.
        partitions: the open partitions of this process.
        deletion: deletes topics.
        for_topic: returns the configuration of a topic from the caller's keys.
    """

    def __init__(
        self,
        directory: OpenedDirectory,
        metadata: MetadataLog,
        partitions: OpenPartitions,
        deletion: Deletion,
        for_topic: Callable[[Config | None], Config | None],
    ) -> None:
        """Keep the directory's parts."""
        self._directory = directory
        self._metadata = metadata
        self._partitions = partitions
        self._deletion = deletion
        self._for_topic = for_topic

    def create(self, name: str, partitions: int, config: Config | None) -> None:
        """Create a topic, after completing the deletion of an earlier one of its name."""
        self._directory.require()
        self._metadata.refresh()
        settled = dict(self._metadata.deleted)
        self._deletion.finish_namesakes(name)
        wanted = self._for_topic(config)
        self._metadata.create_topic(name, partitions, wanted, settled=settled)

    def alter(self, name: str, config: dict[str, object]) -> None:
        """Change a topic's configuration.

        Other processes use it at their next open.

        Retention and compaction use it immediately. `index.interval.bytes` applies after all
        processes have closed the directory.
        """
        info = self._metadata.alter_topic(name, config)
        for log in self._partitions:
            if log.topic == name:
                log.configure(LogSettings.of(dict(info.config)))

    def delete(self, name: str) -> None:
        """Delete a topic; see `Deletion.delete`."""
        self._directory.require()
        self._deletion.delete(name)
