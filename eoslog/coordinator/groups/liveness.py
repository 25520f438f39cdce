"""Removal of dead members, and new generations after changes of topics.

A dynamic member is dead when its process has exited, or after session.timeout.ms without a
heartbeat of its process. A static member, or a member of another Kafka implementation, is removed
session.timeout.ms after this process first noticed its absence. Clocks only decide when to act; the
removal itself is a record.

Source: Kafka GroupMetadataManager, KIP-345, KIP-848.
"""

from __future__ import annotations

import time

from eoslog.coordinator.groups import rebalance
from eoslog.coordinator.groups.rebalance import Catalogue, Change
from eoslog.coordinator.groups.records import STATIC_LEAVE_EPOCH, MemberMetadata
from eoslog.coordinator.groups.shard import GroupShards
from eoslog.coordinator.groups.state import Group, GroupTable

_WATCH_INTERVAL_S = 0.1


class GroupLiveness:
    """Removes dead members and follows topics. Thread-safe."""

    def __init__(self, shards: GroupShards) -> None:
        """Watch the groups of a directory."""
        self._shards = shards
        self._host = shards.host
        # When this process first noticed the absence of a member that has time to return.
        self._absent_since: dict[tuple[str, str], float] = {}
        self._next_watch: dict[str, float] = {}

    def due(self, group_id: str) -> bool:
        """Whether a heartbeat must check its group: at most one per interval does."""
        now = time.monotonic()
        if now < self._next_watch.get(group_id, 0.0):
            return False
        self._next_watch[group_id] = now + _WATCH_INTERVAL_S
        return True

    def look_after(self, group_id: str) -> None:
        """Remove dead members of a group and follow its topics; write only if needed."""
        catalogue = self._shards.catalogue()

        def decide(table: GroupTable) -> Change:
            group = table.groups.get(group_id)
            if group is None or not group.members:
                return []
            return self.change(group, None, catalogue)

        self._shards.of(group_id).change(decide)

    def refresh(self, group_id: str) -> None:
        """Remove dead members before a group is described.

        A read-only process cannot write, and only refreshes the names of topics.
        """
        if self._host.read_only:
            self._shards.catalogue()
        else:
            self.look_after(group_id)

    def change(self, group: Group, member_id: str | None, catalogue: Catalogue) -> Change:
        """Return the records that remove dead members, or follow topics.

        `member_id` is not removed.

        Topics may have been created, deleted, or got more partitions.
        """
        gone = self._exited(group) - {member_id}
        if gone:
            return rebalance.remove(group, {m for m in gone if m is not None}, catalogue)
        members = {m: member.metadata for m, member in group.members.items()}
        if rebalance.subscribed_topics(list(members.values()), catalogue) != group.topics:
            return rebalance.new_generation(group, members, catalogue)
        return []

    def _exited(self, group: Group) -> set[str | None]:
        gone: set[str | None] = set()
        now = time.monotonic()
        for member_id, member in group.members.items():
            key = (group.group_id, member_id)
            metadata = member.metadata
            session = metadata.session_timeout_ms / 1000
            if member.current.epoch != STATIC_LEAVE_EPOCH and self._beats(metadata, session):
                self._absent_since.pop(key, None)
                continue
            # A static member, or a member of another implementation without a process.
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
        return host.process_heartbeat_age(number) <= session
