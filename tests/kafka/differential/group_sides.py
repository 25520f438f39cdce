"""The same two sides, asked about a consumer group as well.

A member is named by the id that the sequence gave it, so both sides know it by the same name. Epochs
are given as numbers in the order in which a side first showed them: how far one raises them at a time
is its own affair. eoslog has no heartbeat that joins: its `join` is followed by the first heartbeat,
as its consumer does.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import eoslog
from eoslog.errors import KafkaError
from eoslog.model import OffsetAndMetadata, TopicPartition
from tests.kafka.differential.group_wire import Beat, GroupWire
from tests.kafka.differential.sides import Answer, EoslogSide, KafkaSide
from tests.kafka.differential.wire import Member

LEAVE, LEAVE_FOR_A_WHILE = -1, -2
NEVER_GIVEN = 1000
"""An epoch that no member had."""
REBALANCE_MS, SESSION_MS = 300_000, 45_000


class Epochs:
    """Epochs as numbers from 1 on; what is not positive means the same everywhere."""

    def __init__(self) -> None:
        self._known: list[int] = []

    def number(self, epoch: int) -> int:
        if epoch <= 0:
            return epoch
        if epoch not in self._known:
            self._known.append(epoch)
        return self._known.index(epoch) + 1

    def real(self, member: Member) -> Member:
        member_id, number, instance = member
        if 0 < number <= len(self._known):
            number = self._known[number - 1]
        return member_id, number, instance


class _Group:
    """The common part of both sides: epochs that are reported as numbers."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._epochs = Epochs()

    def _real(self, member: Member) -> Member:
        return self._epochs.real(member)


class KafkaGroupSide(_Group, KafkaSide):
    """A broker and one of its groups."""

    _wire: GroupWire

    def __init__(self, wire: GroupWire, topic: str) -> None:
        super().__init__(wire, topic)
        self._topic_id = wire.topic_id(topic)
        self._assigned: dict[str, list[int]] = {}
        self._rebalance_ms: dict[str, int] = {}

    def _beat(self, group: str, member: Member, owned: Collection[int] | None) -> Answer:
        answer: Beat = self._patiently(
            lambda: self._wire.group_heartbeat(
                group, self._real(member), self.topic, self._topic_id,
                None if owned is None else sorted(owned), self._rebalance_ms.get(member[0], REBALANCE_MS),
            ),
            lambda answer: answer.error,
        )  # fmt: skip
        if answer.error:
            return (answer.error,)
        if answer.assigned is not None:
            self._assigned[member[0]] = answer.assigned
        return (0, self._epochs.number(answer.epoch), tuple(self._assigned.get(member[0], ())))

    def join(
        self,
        group: str,
        member_id: str,
        instance: str | None,
        rebalance_ms: int = REBALANCE_MS,
        session_ms: int = SESSION_MS,  # the broker's own: it has one for all
    ) -> Answer:
        self._rebalance_ms[member_id] = rebalance_ms
        return self._beat(group, (member_id, 0, instance), [])

    def beat(self, group: str, member: Member, owned: Collection[int]) -> Answer:
        return self._beat(group, member, owned)

    def leave(self, group: str, member: Member) -> Answer:
        epoch = LEAVE if member[2] is None else LEAVE_FOR_A_WHILE
        return self._beat(group, (member[0], epoch, member[2]), None)[:1]

    def commit(self, group: str, member: Member, partition: int, offset: int) -> Answer:
        return (
            self._patiently(
                lambda: self._wire.offset_commit(
                    group, self.topic, partition, offset, self._real(member)
                ),
                int,
            ),
        )

    def delete_offset(self, group: str, partition: int) -> Answer:
        return (
            self._patiently(lambda: self._wire.delete_offset(group, self.topic, partition), int),
        )

    def delete_group(self, group: str) -> Answer:
        return (self._patiently(lambda: self._wire.delete_group(group), int),)

    def describe(self, group: str) -> Answer:
        found = self._patiently(lambda: self._wire.describe_group(group), lambda a: a.error)
        if found.error:
            return (found.error,)
        number = self._epochs.number
        members = tuple((m, i, number(e), tuple(a), tuple(t)) for m, i, e, a, t in found.members)
        return (0, found.state, number(found.epoch), members)


class EoslogGroupSide(_Group, EoslogSide):
    """eoslog's group coordinator."""

    def __init__(self, log: eoslog.Log, topic: str) -> None:
        super().__init__(log, topic)
        self._groups: Any = log._engine.groups

    def _mine(self, partitions: Collection[TopicPartition]) -> tuple[int, ...]:
        return tuple(sorted(tp.partition for tp in partitions))

    def join(
        self,
        group: str,
        member_id: str,
        instance: str | None,
        rebalance_ms: int = REBALANCE_MS,
        session_ms: int = SESSION_MS,
    ) -> Answer:
        try:
            self._groups.join(
                group,
                member_id,
                subscription=[self.topic],
                instance_id=instance,
                rebalance_timeout_ms=rebalance_ms,
                session_timeout_ms=session_ms,
            )
        except KafkaError as error:
            return (int(error.code),)
        return self.beat(group, (member_id, 0, instance), ())

    def beat(self, group: str, member: Member, owned: Collection[int]) -> Answer:
        member_id, epoch, instance = self._real(member)
        held = [TopicPartition(self.topic, p) for p in owned]
        try:
            answer = self._groups.heartbeat(group, member_id, epoch, held, instance_id=instance)
        except KafkaError as error:
            return (int(error.code),)
        return (0, self._epochs.number(answer.member_epoch), self._mine(answer.assigned))

    def leave(self, group: str, member: Member) -> Answer:
        return self._code(lambda: self._groups.leave(group, member[0]))

    def commit(self, group: str, member: Member, partition: int, offset: int) -> Answer:
        place = {TopicPartition(self.topic, partition): OffsetAndMetadata(offset)}
        member_id, epoch, instance = self._real(member)
        return self._code(
            lambda: self._groups.commit_offsets(
                group, member_id, epoch, place, instance_id=instance
            )
        )

    def delete_offset(self, group: str, partition: int) -> Answer:
        place = TopicPartition(self.topic, partition)
        return self._code(lambda: self._groups.delete_offsets(group, [place]))

    def delete_group(self, group: str) -> Answer:
        return self._code(lambda: self._groups.delete_group(group))

    def describe(self, group: str) -> Answer:
        try:
            found = self._groups.describe_group(group)
        except KafkaError as error:
            return (int(error.code),)
        number = self._epochs.number
        members = tuple(
            (m.member_id, m.instance_id, number(m.member_epoch), self._mine(m.assigned), self._mine(m.target))
            for m in found.members
        )  # fmt: skip
        return (0, found.state, number(found.generation), members)
