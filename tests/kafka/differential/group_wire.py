"""The requests of consumer groups, in addition to those of `wire.py`.

Source: Kafka protocol guide; KIP-848 (ConsumerGroupHeartbeat), KIP-345 (static members).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tests.kafka.differential.wire import NOBODY, Member, Reader, Wire, Writer


class GroupEntry(NamedTuple):
    """An entry of ConsumerGroupDescribe's answer.

    `members` are (id, static name, epoch, assigned, target).
    """

    error: int
    state: str
    epoch: int
    members: list[tuple[str, str | None, int, list[int], list[int]]]


class Beat(NamedTuple):
    """ConsumerGroupHeartbeat's answer; `assigned` is None where it is as it was."""

    error: int
    epoch: int
    assigned: list[int] | None


class GroupWire(Wire):
    """A connection that knows groups as well."""

    def offset_commit(
        self, group: str, topic: str, partition: int, offset: int, member: Member = NOBODY
    ) -> int:
        """OffsetCommit: its error."""
        body = Writer().text(group).pack("i", member[1]).text(member[0]).text(member[2])
        self._topics(
            body, {topic: [partition]}, lambda p: body.pack("iqi", p, offset, -1).text("").end()
        )
        answer = self._call(8, 9, body)
        answer.take("i")
        return self._errors(answer)[topic, partition]

    def topic_id(self, topic: str) -> bytes:
        """A topic's id, by Metadata."""
        body = Writer().uvarint(2)
        body.data += bytes(16)
        answer = self._call(3, 12, body.text(topic).end().pack("??", False, False))
        answer.take("i")

        def node() -> None:
            answer.take("i")
            answer.text()
            answer.take("i")
            answer.text()
            answer.tags()

        answer.array(node)
        answer.text()
        answer.take("i")
        assert answer.uvarint() == 2
        assert answer.take("h") == 0
        answer.text()
        return bytes(answer.take("16s"))

    def group_heartbeat(
        self, group: str, member: Member, topic: str, topic_id: bytes, owned: list[int] | None,
        rebalance_ms: int = 300_000,
    ) -> Beat:  # fmt: skip
        """ConsumerGroupHeartbeat; epoch 0 joins, -1 and -2 leave."""
        member_id, epoch, instance = member
        body = Writer().text(group).text(member_id).pack("i", epoch).text(instance).text(None)
        body.pack("i", rebalance_ms).array([topic], body.text).text(None).text("range")
        if owned is None:
            body.uvarint(0)
        else:
            body.uvarint(2 if owned else 1)
            if owned:
                body.data += topic_id
                body.array(owned, lambda p: body.pack("i", p)).end()
        answer = self._call(68, 1, body)
        _, error = answer.take("ih")
        answer.text()
        answer.text()
        epoch, _ = answer.take("ii")
        assigned = None
        if answer.take("b") >= 0:
            assigned = self._partitions(answer, named=False)
        return Beat(error, epoch, assigned)

    @staticmethod
    def _partitions(answer: Reader, *, named: bool) -> list[int]:
        """The partitions of an assignment of at most one topic."""
        found: list[int] = []

        def topic() -> None:
            answer.take("16s")
            if named:
                answer.text()
            found.extend(answer.array(lambda: answer.take("i")))
            answer.tags()

        answer.array(topic)
        answer.tags()
        return sorted(found)

    def describe_group(self, group: str) -> GroupEntry:
        """ConsumerGroupDescribe of one group."""
        answer = self._call(69, 1, Writer().uvarint(2).text(group).pack("?", False))
        answer.take("i")
        assert answer.uvarint() == 2
        error = answer.take("h")
        answer.text()
        answer.text()
        state = answer.text()
        epoch, _ = answer.take("ii")
        answer.text()

        def member() -> tuple[str, str | None, int, list[int], list[int]]:
            member_id, instance = answer.text(), answer.blob()
            answer.blob()
            epoch = answer.take("i")
            answer.text()
            answer.text()
            answer.array(answer.text)
            answer.blob()
            assigned, target = (self._partitions(answer, named=True) for _ in range(2))
            answer.take("b")
            answer.tags()
            return member_id, instance.decode() if instance else None, epoch, assigned, target

        return GroupEntry(error, state, epoch, sorted(answer.array(member)))

    def delete_group(self, group: str) -> int:
        """DeleteGroups of one group: its error."""
        answer = self._call(42, 2, Writer().uvarint(2).text(group))
        answer.take("i")
        assert answer.uvarint() == 2
        answer.text()
        return int(answer.take("h"))

    def delete_offset(self, group: str, topic: str, partition: int) -> int:
        """OffsetDelete of one partition, which has no flexible version: its error."""
        self._correlation += 1
        message = struct.pack(">hhih", 47, 0, self._correlation, 5) + b"wire!"
        for text in (group, topic):
            message += struct.pack(">h", len(text)) + text.encode() + struct.pack(">i", 1)
        message += struct.pack(">i", partition)
        self._socket.sendall(struct.pack(">i", len(message)) + message)
        answer = Reader(self._receive(struct.unpack(">i", self._receive(4))[0]))
        assert answer.take("i") == self._correlation
        error, _, topics = answer.take("hii")
        if error or not topics:
            return int(error)
        answer.take(f"{answer.take('h')}s")
        answer.take("ii")
        return int(answer.take("h"))
