"""Who is still there: takes dead members out of groups, and follows changes of topics.

A dynamic member is gone with its process, at once; a hung process after session.timeout.ms
without a beat. A static member, or one of another implementation that no process here answers
for, has session.timeout.ms from when this process first missed it. Clocks only decide when to
act; what happened is a record.

Source: Kafka GroupMetadataManager, KIP-345, KIP-848.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from eoslog.config import LogConfig
from eoslog.coordinator import group_rebalance as rebalance
from eoslog.coordinator.group_offsets import GroupOffsets
from eoslog.coordinator.group_rebalance import Catalogue, Change
from eoslog.coordinator.group_records import (
    STATIC_LEAVE_EPOCH,
    MemberMetadata,
    OwnedPartition,
    TopicMetadata,
)
from eoslog.coordinator.group_state import Group, GroupTable
from eoslog.model import TopicPartition


class GroupWatch(GroupOffsets):
    """Looks after groups on behalf of whoever happens to come by.

    Thread-safety: any thread.
    """

    def __init__(self, host: Any, config: LogConfig | None = None) -> None:
        """Watch the groups of a directory open in this process."""
        super().__init__(host, config)
        # When this process first missed a member that is given time.
        self._absent_since: dict[tuple[str, str], float] = {}

    def _look_after_group(self, group_id: str) -> None:
        catalogue = self._catalogue()

        def decide(table: GroupTable) -> Change:
            group = table.groups.get(group_id)
            if group is None or not group.members:
                return []
            return self._look_after(group, None, catalogue)

        self._shard(group_id).change(decide)

    def _look_after(self, group: Group, member_id: str | None, catalogue: Catalogue) -> Change:
        """Take out who is gone, and follow topics that were made, deleted or extended."""
        gone = self._gone(group) - {member_id}
        if gone:
            return rebalance.remove(group, {m for m in gone if m is not None}, catalogue)
        members = {m: member.metadata for m, member in group.members.items()}
        if rebalance.subscribed_topics(list(members.values()), catalogue) != group.topics:
            return rebalance.new_generation(group, members, catalogue)
        return []

    def _gone(self, group: Group) -> set[str | None]:
        gone: set[str | None] = set()
        now = time.monotonic()
        for member_id, member in group.members.items():
            key = (group.group_id, member_id)
            metadata = member.metadata
            session = metadata.session_timeout_ms / 1000
            if member.current.epoch != STATIC_LEAVE_EPOCH and self._beats(metadata, session):
                self._absent_since.pop(key, None)
                continue
            # A static name, or a member from elsewhere that no process here answers for.
            patient = metadata.instance_id is not None or metadata.process_number < 0
            if patient and now - self._absent_since.setdefault(key, now) < session:
                continue
            self._absent_since.pop(key, None)
            gone.add(member_id)
        return gone

    def _beats(self, metadata: MemberMetadata, session: float) -> bool:
        number, nonce = metadata.process_number, metadata.process_nonce
        host = self._host
        if (number, nonce) == (host.process_number, host.process_nonce & 0xFFFFFFFFFFFFFFFF):
            return True
        if number < 0 or not host.process_alive(number, nonce):
            return False
        return bool(host.process_heartbeat_age(number) <= session)

    def _catalogue(self) -> Catalogue:
        metadata = self._host.metadata
        metadata.refresh()
        catalogue = {
            name: TopicMetadata(info.topic_id, name, len(info.partitions))
            for name, info in metadata.topics.items()
            if not info.deleted
        }
        self._topic_names.update((topic.topic_id, name) for name, topic in catalogue.items())
        return catalogue

    def _named(self, group: Group, owned: Collection[OwnedPartition]) -> frozenset[TopicPartition]:
        names = self._names(group)
        return frozenset(TopicPartition(names[t], p) for t, p in owned if t in names)
