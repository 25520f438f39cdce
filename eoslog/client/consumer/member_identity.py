"""A consumer's identity in its group: member id and epoch, for fencing.

Source: Kafka ConsumerGroupMetadata, KIP-447, KIP-848.
"""

from __future__ import annotations

from eoslog.client.consumer.abandoned import MemberPlace
from eoslog.config.keys import ConsumerConfig
from eoslog.descriptions import GroupMetadata

__all__ = ["MemberIdentity"]

_NO_MEMBER = ""
_NO_GENERATION = -1


class MemberIdentity:
    """The membership that a consumer has or had; used by one thread at a time."""

    def __init__(self, config: ConsumerConfig) -> None:
        """Start without a membership."""
        # Its member may be in the group although the consumer has not joined, after an interrupt.
        self.place = MemberPlace(config.group_id or "")
        self.joined = False  # whether the consumer is a member, as far as it knows
        self.instance_id = config.group_instance_id
        self.epoch = 0
        self.lost_why = ""
        # Why this static member does not rejoin: it would fence the member that replaced it.
        self.fenced: str | None = None
        # The metadata of a lost membership, until the consumer joins again.
        self._lost: GroupMetadata | None = None

    @property
    def group_id(self) -> str:
        """The group, or "" without one."""
        return self.place.group_id

    @property
    def member_id(self) -> str:
        """The member id, or "" without one."""
        return self.place.member_id if self.joined else _NO_MEMBER

    @property
    def lost(self) -> bool:
        """Whether the consumer was a member and has not joined again."""
        return self._lost is not None

    def metadata(self) -> GroupMetadata:
        """The metadata that fences commits; after a loss, that of the lost membership.

        A commit without a member id would not be fenced: it could overwrite the progress of the
        member that owns the partition now.
        """
        if self._lost is not None:
            return self._lost
        epoch = self.epoch if self.joined else _NO_GENERATION
        return GroupMetadata(self.group_id, self.member_id, epoch, self.instance_id)

    def join(self) -> None:
        """Be the member of `place` from now on; a new membership begins with epoch 0."""
        if not self.joined:
            self.epoch = 0
        self.joined = True
        self._lost = None

    def lose(self) -> None:
        """End the membership because the group removed the member."""
        self._lost = self.metadata()
        self._end()

    def leave(self) -> None:
        """End the membership because the consumer leaves."""
        self._lost = None
        self._end()

    def _end(self) -> None:
        self.joined = False
        self.epoch = 0

    def removed(self) -> None:
        """Note that the group has no member of this consumer."""
        self.place.member_id = _NO_MEMBER
