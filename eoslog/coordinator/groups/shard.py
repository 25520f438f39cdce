"""The folds of `__consumer_offsets` partitions, and the loop that changes one.

A change has three steps:

1. Fold the partition up to its published end.
2. Decide.
3. Append on the condition that the partition still ends there. If another process has appended,
   start again.

The mutex guards only the fold. It is not held during an append, so a slow disk or a held append
lock does not block threads that read.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from eoslog._core import build_batch
from eoslog.coordinator.groups.rebalance import Catalogue, Change
from eoslog.coordinator.groups.records import OwnedPartition, TopicMetadata
from eoslog.coordinator.groups.state import Group, GroupTable
from eoslog.coordinator.groups.validation import check_group_id
from eoslog.coordinator.host import GroupHost, HostLog
from eoslog.errors import CorruptRecord
from eoslog.model import AppendOrigin, AppendResult, TopicPartition
from eoslog.storage.fs.files import failpoint

_CALM_ATTEMPTS = 8
_LONGEST_BACKOFF_S = 0.05

Conditions = Sequence[tuple[Any, int]]


class GroupShard:
    """The fold of one partition, shared by the threads of this process.

    Thread-safe: the table is used only inside `folded`.
    """

    def __init__(self, log: HostLog, clock_ms: Callable[[], int]) -> None:
        """Fold `log` from its start at the first use."""
        self.log = log
        self._clock_ms = clock_ms
        self._mutex = threading.Lock()
        self._table = GroupTable()
        self._cleaned = 0

    @contextmanager
    def folded(self) -> Iterator[tuple[GroupTable, int]]:
        """Yield the table, folded up to the partition's published end, and that end."""
        with self._mutex:
            # First, because the fold may replace the table.
            end = self._fold()
            yield self._table, end

    def _fold(self) -> int:
        log, table = self.log, self._table
        cleaned = log.cleaned_to
        behind = table.next_offset < cleaned and self._cleaned < cleaned
        if behind or table.next_offset < log.log_start:
            # Tombstones that were not folded may be deleted or cleaned away: fold all again.
            table = self._table = GroupTable()
            table.next_offset = log.log_start
        self._cleaned = cleaned
        start, end = table.next_offset, log.log_end
        try:
            if table.next_offset < end:
                for batch in log.batches(table.next_offset, end):
                    try:
                        table.apply(batch)
                    except CorruptRecord as error:
                        where = f"{log.topic}-{log.partition}, offset {batch.base_offset}"
                        raise CorruptRecord(f"{where}: {error}") from error
                table.next_offset = end
                if start < log.cleaned_to != cleaned:
                    # Cleaned during the read: old and new records are mixed.
                    self._table = GroupTable()
                    return self._fold()
        except BaseException:
            # The table may have a part of a batch: rebuild it.
            self._table = GroupTable()
            raise
        return end

    def change(
        self,
        decide: Callable[[GroupTable], Change],
        *,
        conditions: Callable[[], Conditions] | None = None,
        **header: Any,
    ) -> AppendResult | None:
        """Append the records of `decide`; repeat if another process was faster.

        Args:
            decide: returns the records for the current table; an empty list appends nothing. It may
                be called several times. An exception from it ends the loop.
            conditions: returns conditions on more logs; called before each decision.
            header: fields of the batch, for example `producer_id` and `transactional`.

        Returns:
            The position of the batch, or None if there was nothing to append.

        Durability:
            The batch is published on return, and durable after `log.flush`.
        """
        attempt = 0
        while True:
            expect = conditions() if conditions is not None else ()
            with self._mutex:
                end = self._fold()
                change = decide(self._table)
            if not change:
                return None
            failpoint("group.decided")
            now = self._clock_ms()
            batch = build_batch([(now, key, value, ()) for key, value in change], **header)
            result = self.log.append(
                batch, expect=[(self.log, end), *expect], origin=AppendOrigin.COORDINATOR
            )
            if result is not None:
                return result
            attempt += 1
            if attempt > _CALM_ATTEMPTS:
                time.sleep(random.uniform(0, min(0.001 * attempt, _LONGEST_BACKOFF_S)))


class GroupShards:
    """The shards of a directory, and the names of its topics. Thread-safe."""

    def __init__(self, host: GroupHost) -> None:
        """Start without shards."""
        self.host = host
        self._shards: dict[tuple[str, int], GroupShard] = {}
        self._mutex = threading.Lock()
        # Names of topic ids, kept after a deletion so that members can release the partitions.
        self._topic_names: dict[bytes, str] = {}

    def of(self, group_id: str) -> GroupShard:
        """Return the shard of a group, which is created at first use.

        Raises:
            KafkaError: INVALID_GROUP_ID, if the id is invalid.
        """
        check_group_id(group_id)
        return self.at(self.host.group_partition(group_id))

    def at(self, log: HostLog) -> GroupShard:
        """The shard of an open partition."""
        key = (log.topic, log.partition)
        with self._mutex:
            shard = self._shards.get(key)
            if shard is None or shard.log is not log:
                shard = self._shards[key] = GroupShard(log, self.host.clock_ms)
            return shard

    def existing(self) -> Iterator[GroupShard]:
        """The shards of all existing partitions."""
        for log in self.host.group_partitions():
            yield self.at(log)

    # Topics.

    def catalogue(self) -> Catalogue:
        """The directory's current topics."""
        metadata = self.host.metadata
        metadata.refresh()
        catalogue = {
            name: TopicMetadata(info.topic_id, name, len(info.partitions))
            for name, info in metadata.topics.items()
            if not info.deleted
        }
        self._topic_names.update((topic.topic_id, name) for name, topic in catalogue.items())
        return catalogue

    def names(self, group: Group) -> dict[bytes, str]:
        """The names of topic ids, including those of deleted topics."""
        names = dict(self._topic_names)
        names.update((topic.topic_id, topic.name) for topic in group.topics.values())
        return names

    def named(self, group: Group, owned: Collection[OwnedPartition]) -> frozenset[TopicPartition]:
        """Partitions by their topics' names, without those whose topic has no known name."""
        names = self.names(group)
        return frozenset(TopicPartition(names[t], p) for t, p in owned if t in names)
