"""Checks of group requests, before a decision.

Pure functions of the request and the folded group.

Source: Kafka `GroupCoordinatorService`, `OffsetMetadataManager.validateOffsetCommit`; KIP-345.
"""

from __future__ import annotations

from eoslog._util.arguments import shown
from eoslog.coordinator.groups.records import Owned
from eoslog.coordinator.groups.state import Group, GroupTable
from eoslog.error_codes import ErrorCode
from eoslog.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupNotFound,
    IllegalGeneration,
    KafkaError,
    NonEmptyGroup,
    StaleMemberEpoch,
    UnknownMember,
    error_for,
)

MAX_ID_BYTES = 32_767
"""The longest string of a record."""
MAX_NAME_BYTES = 32_700
"""The longest name of a member: it leaves room for the UUID in a member id."""


def check_group_id(group_id: str) -> None:
    """Check that a group id is valid.

    Raises:
        KafkaError: INVALID_GROUP_ID, if it is not a string, empty, too long, or not UTF-8.
    """
    if not isinstance(group_id, str) or not group_id:
        raise error_for(
            ErrorCode.INVALID_GROUP_ID,
            f"group id: expected a string that is not empty, got {shown(group_id)}",
        )
    if len(group_id) * 4 <= MAX_ID_BYTES and group_id.isascii():
        return
    try:
        size = len(group_id.encode())
    except UnicodeEncodeError:
        raise error_for(
            ErrorCode.INVALID_GROUP_ID,
            f"group id {shown(group_id)}: UTF-8 cannot encode it; choose another id",
        ) from None
    if size > MAX_ID_BYTES:
        raise error_for(
            ErrorCode.INVALID_GROUP_ID,
            f"group id: it has {size} bytes, at most {MAX_ID_BYTES} are allowed; choose a shorter "
            "id",
        )


def check_name(what: str, text: str | None, most: int) -> None:
    """Check that a member's id or name fits into a record.

    Raises:
        KafkaError: INVALID_REQUEST, if it is not a string, too long, or not UTF-8.
    """
    try:
        if text is None or len(text.encode()) <= most:
            return
        wrong = f"it has {len(text.encode())} bytes, at most {most} are allowed"
    except (AttributeError, UnicodeEncodeError):
        wrong = f"expected text that UTF-8 can encode, got {shown(text)}"
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"{what}: {wrong}")


def group_not_found(group_id: str) -> GroupNotFound:
    """The error for a group that does not exist."""
    return GroupNotFound(f"group {shown(group_id)} does not exist; log.groups() lists all groups")


def unknown_member(group: Group, member_id: str) -> UnknownMember:
    """The error for a member id that is not in the group."""
    return UnknownMember(
        f"group {group.group_id!r} has no member {member_id!r}: it never joined, has left, or was "
        "removed"
    )


def non_empty_group(group: Group) -> NonEmptyGroup:
    """The error for a change that needs a group without members."""
    return NonEmptyGroup(
        f"group {group.group_id!r} has {len(group.members)} members; stop its consumers first"
    )


def known_group(table: GroupTable, group_id: str) -> Group:
    """Return the group.

    Raises:
        GroupNotFound: if it does not exist.
    """
    group = table.groups.get(group_id)
    if group is None:
        raise group_not_found(group_id)
    return group


def check_commit(
    group: Group | None,
    group_id: str,
    member_id: str,
    member_epoch: int,
    instance_id: str | None,
    *,
    transactional: bool,
) -> None:
    """Check that a commit can be written, in Kafka's order of checks.

    Raises:
        UnknownMember, FencedInstanceId, IllegalGeneration, StaleMemberEpoch: if it cannot.
    """
    if group is None or not group.members:
        if member_epoch < 0:
            return
        if group is None:
            raise IllegalGeneration(
                f"group {group_id!r} does not exist, but this commit has generation "
                f"{member_epoch}; join again"
            )
        raise UnknownMember(
            f"group {group_id!r} has no members, but this commit is from {member_id!r}; join again"
        )
    if member_epoch < 0 and not member_id and instance_id is None:
        if transactional:
            return
        raise UnknownMember(
            f"group {group_id!r} has {len(group.members)} active members, and this commit is from "
            "none of them; commit from a member, or stop the members first"
        )
    check_member(group, member_id, instance_id)
    current = group.members[member_id].current.epoch
    if member_epoch != current:
        error = IllegalGeneration if transactional else StaleMemberEpoch
        raise error(
            f"group {group_id!r}: member {member_id} has epoch {current}, but its commit has "
            f"epoch {member_epoch}; poll again"
        )


def check_member(group: Group, member_id: str, instance_id: str | None) -> None:
    """Check a member's id and static name.

    Raises:
        UnknownMember: if the member is not in the group.
        FencedInstanceId: if another member has the static name now.
    """
    if instance_id is not None:
        holder = group.by_instance(instance_id)
        if holder is not None and holder != member_id:
            raise FencedInstanceId(
                f"group {group.group_id!r}: another consumer took over group.instance.id "
                f"{instance_id!r}: its member is {holder}, not {member_id}; use each "
                "group.instance.id for one consumer"
            )
    if member_id not in group.members:
        raise unknown_member(group, member_id)


def check_epoch(group: Group, member_id: str, epoch: int, held: Owned) -> None:
    """Check that a heartbeat has the member's epoch.

    Raises:
        FencedMemberEpoch: if it has another one.
    """
    current = group.members[member_id].current
    if current.epoch == epoch:
        return
    # An exception may have prevented the member from getting the previous answer.
    if current.previous_epoch == epoch and held <= current.assigned:
        return
    raise FencedMemberEpoch(
        f"group {group.group_id!r}: member {member_id} has epoch {current.epoch}, but its "
        f"heartbeat has epoch {epoch}; join again"
    )
