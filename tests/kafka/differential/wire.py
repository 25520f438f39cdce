"""A small client of Kafka's protocol with one version of each compared request.

Every answer is returned unchanged, errors as numbers: nothing is retried, nothing is hidden.

Source: Kafka protocol guide; KIP-98, KIP-447, KIP-482 (flexible versions), KIP-664, KIP-890.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Producing(NamedTuple):
    """Produce's answer for a partition."""

    error: int
    base_offset: int


class Fetched(NamedTuple):
    """Fetch's answer for a partition; `aborted` are (producer id, first offset)."""

    error: int
    high_watermark: int
    last_stable: int
    log_start: int
    aborted: list[tuple[int, int]]
    records: bytes


class ProducerEntry(NamedTuple):
    """DescribeProducers' answer for a producer of a partition."""

    producer_id: int
    epoch: int
    last_sequence: int
    coordinator_epoch: int
    transaction_start: int


class TransactionEntry(NamedTuple):
    """DescribeTransactions' answer."""

    error: int
    state: str
    timeout_ms: int
    producer_id: int
    producer_epoch: int
    partitions: list[tuple[str, int]]


Member = tuple[str, int, str | None]
"""Who commits: member id, epoch, static name."""
NOBODY: Member = ("", -1, None)


class Writer:
    """Flexible encoding: compact strings and arrays, no tagged fields."""

    def __init__(self) -> None:
        self.data = bytearray()

    def pack(self, layout: str, *values: Any) -> Writer:
        self.data += struct.pack(">" + layout, *values)
        return self

    def uvarint(self, value: int) -> Writer:
        while value > 127:
            self.data.append(value & 127 | 128)
            value >>= 7
        self.data.append(value)
        return self

    def blob(self, value: bytes | None) -> Writer:
        if value is None:
            return self.uvarint(0)
        self.uvarint(len(value) + 1)
        self.data += value
        return self

    def text(self, value: str | None) -> Writer:
        return self.blob(None if value is None else value.encode())

    def array(self, items: Iterable[Any], write: Callable[[Any], object]) -> Writer:
        items = list(items)
        self.uvarint(len(items) + 1)
        for item in items:
            write(item)
        return self

    def end(self) -> Writer:
        return self.uvarint(0)


class Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, layout: str) -> Any:
        values = struct.unpack_from(">" + layout, self.data, self.at)
        self.at += struct.calcsize(">" + layout)
        return values if len(values) > 1 else values[0]

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def blob(self) -> bytes | None:
        size = self.uvarint() - 1
        if size < 0:
            return None
        self.at += size
        return self.data[self.at - size : self.at]

    def text(self) -> str:
        return (self.blob() or b"").decode()

    def array(self, read: Callable[[], Any]) -> list[Any]:
        return [read() for _ in range(self.uvarint() - 1)]

    def tags(self) -> None:
        for _ in range(self.uvarint()):
            self.uvarint()
            size = self.uvarint()
            self.at += size


class Wire:
    """One connection to a broker that is leader and coordinator of everything."""

    def __init__(self, bootstrap: str) -> None:
        """Connect."""
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation = 0

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _receive(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            got = self._socket.recv(size - len(parts))
            if not got:
                raise ConnectionError("the broker has closed the connection")
            parts += got
        return bytes(parts)

    def _call(self, key: int, version: int, body: Writer) -> Reader:
        self._correlation += 1
        header = struct.pack(">hhih", key, version, self._correlation, 5) + b"wire!" + b"\0"
        message = header + bytes(body.data) + b"\0"
        self._socket.sendall(struct.pack(">i", len(message)) + message)
        reader = Reader(self._receive(struct.unpack(">i", self._receive(4))[0]))
        assert reader.take("i") == self._correlation
        reader.tags()
        return reader

    def _topics(
        self, body: Writer, topics: dict[str, list[Any]], write: Callable[[Any], object]
    ) -> Writer:
        """An array of (topic, array of partitions)."""

        def topic(item: tuple[str, list[Any]]) -> None:
            body.text(item[0]).array(item[1], write).end()

        return body.array(topics.items(), topic)

    def find_coordinator(self, key: str, kind: int) -> int:
        """FindCoordinator; kind 0 is a group, 1 a transactional id."""
        answer = self._call(10, 4, Writer().pack("b", kind).uvarint(2).text(key))
        answer.take("i")
        assert answer.uvarint() == 2
        answer.text()
        answer.take("i")
        answer.text()
        answer.take("i")
        return int(answer.take("h"))

    def init_producer_id(
        self, name: str | None, timeout_ms: int, producer_id: int = -1, epoch: int = -1
    ) -> tuple[int, int, int]:
        """InitProducerId: (error, producer id, epoch)."""
        body = Writer().text(name).pack("iqh", timeout_ms, producer_id, epoch)
        answer = self._call(22, 5, body)
        return answer.take("ihqh")[1:]  # type: ignore[no-any-return]

    def add_partitions(
        self, name: str, producer_id: int, epoch: int, topics: dict[str, list[int]]
    ) -> dict[tuple[str, int], int]:
        """AddPartitionsToTxn: errors by partition."""
        body = Writer().text(name).pack("qh", producer_id, epoch)
        self._topics(body, topics, lambda p: body.pack("i", p))
        answer = self._call(24, 3, body)
        answer.take("i")
        return self._errors(answer)

    def _errors(self, answer: Reader) -> dict[tuple[str, int], int]:
        found = {}

        def partition() -> tuple[int, int]:
            number, error = answer.take("ih")
            answer.tags()
            return number, error

        def topic() -> None:
            name = answer.text()
            for number, error in answer.array(partition):
                found[name, number] = error
            answer.tags()

        answer.array(topic)
        return found

    def add_offsets(self, name: str, producer_id: int, epoch: int, group: str) -> int:
        """AddOffsetsToTxn: its error."""
        body = Writer().text(name).pack("qh", producer_id, epoch).text(group)
        return int(self._call(25, 3, body).take("ih")[1])

    def end_txn(
        self, name: str, producer_id: int, epoch: int, commit: bool
    ) -> tuple[int, int, int]:
        """EndTxn as transaction version 2: (error, next producer id, next epoch)."""
        body = Writer().text(name).pack("qh?", producer_id, epoch, commit)
        return self._call(26, 5, body).take("ihqh")[1:]  # type: ignore[no-any-return]

    def produce(self, name: str | None, topic: str, partition: int, records: bytes) -> Producing:
        """Produce with acks=all; a transaction adds the partition implicitly (KIP-890)."""
        body = Writer().text(name).pack("hi", -1, 30_000)
        self._topics(body, {topic: [partition]}, lambda p: body.pack("i", p).blob(records).end())
        answer = self._call(0, 12, body)
        assert answer.uvarint() == 2
        answer.text()
        assert answer.uvarint() == 2
        _, error, base = answer.take("ihq")
        return Producing(error, base)

    def txn_offset_commit(
        self, name: str, group: str, producer_id: int, epoch: int, topic: str, partition: int, offset: int,
        member: Member = NOBODY,
    ) -> int:  # fmt: skip
        """TxnOffsetCommit as transaction version 2: its error."""
        body = Writer().text(name).text(group).pack("qhi", producer_id, epoch, member[1])
        body.text(member[0]).text(member[2])
        self._topics(
            body, {topic: [partition]}, lambda p: body.pack("iqi", p, offset, -1).text("").end()
        )
        answer = self._call(28, 5, body)
        answer.take("i")
        return self._errors(answer)[topic, partition]

    def offset_fetch(self, group: str, topic: str, partition: int) -> tuple[int, int]:
        """OffsetFetch, stable offsets only: (error, offset), -1 for none."""
        body = Writer().uvarint(2).text(group)
        self._topics(body, {topic: [partition]}, lambda p: body.pack("i", p))
        answer = self._call(9, 8, body.end().pack("?", True))
        answer.take("i")
        assert answer.uvarint() == 2
        answer.text()
        assert answer.uvarint() == 2
        answer.text()
        assert answer.uvarint() == 2
        _, offset, _ = answer.take("iqi")
        answer.text()
        return int(answer.take("h")), int(offset)

    def list_offsets(self, topic: str, partition: int, at: int, committed: bool) -> tuple[int, int]:
        """ListOffsets: (error, offset).

        `at` is a timestamp in ms, -1 the end, -2 the start.
        """
        body = Writer().pack("ib", -1, committed)
        self._topics(body, {topic: [partition]}, lambda p: body.pack("iiq", p, -1, at).end())
        answer = self._call(2, 7, body)
        answer.take("i")
        assert answer.uvarint() == 2
        answer.text()
        assert answer.uvarint() == 2
        _, error, _, offset = answer.take("ihqq")
        return error, offset

    def fetch(
        self, topic: str, partition: int, offset: int, committed: bool, most: int = 50 << 20
    ) -> Fetched:
        """Fetch what is there now from an offset on."""
        body = Writer().pack("iiiibii", -1, 0, 0, most, committed, 0, -1)
        self._topics(
            body,
            {topic: [partition]},
            lambda p: body.pack("iiqiqi", p, -1, offset, -1, -1, most).end(),
        )
        body.uvarint(1).text("")
        answer = self._call(1, 12, body)
        _, error, _ = answer.take("ihi")
        assert error == 0
        assert answer.uvarint() == 2
        answer.text()
        assert answer.uvarint() == 2
        _, error, high, stable, start = answer.take("ihqqq")

        def aborted() -> tuple[int, int]:
            pair = answer.take("qq")
            answer.tags()
            return pair  # type: ignore[no-any-return]

        list_ = answer.array(aborted)
        answer.take("i")
        return Fetched(error, high, stable, start, list_, answer.blob() or b"")

    def describe_producers(self, topic: str, partition: int) -> list[ProducerEntry]:
        """DescribeProducers of a partition, by producer id."""
        body = Writer()
        self._topics(body, {topic: [partition]}, lambda p: body.pack("i", p))
        answer = self._call(61, 0, body)
        answer.take("i")
        assert answer.uvarint() == 2
        answer.text()
        assert answer.uvarint() == 2
        assert answer.take("ih")[1] == 0
        answer.blob()

        def producer() -> ProducerEntry:
            producer_id, epoch, sequence, _, coordinator, start = answer.take("qiiqiq")
            answer.tags()
            return ProducerEntry(producer_id, epoch, sequence, coordinator, start)

        return sorted(answer.array(producer))

    def describe_transaction(self, name: str) -> TransactionEntry:
        """DescribeTransactions of one id."""
        answer = self._call(65, 0, Writer().uvarint(2).text(name))
        answer.take("i")
        assert answer.uvarint() == 2
        error = answer.take("h")
        answer.text()
        state = answer.text()
        timeout, _, producer_id, epoch = answer.take("iqqh")
        partitions: list[tuple[str, int]] = []

        def topic() -> None:
            name = answer.text()
            partitions.extend((name, p) for p in answer.array(lambda: answer.take("i")))
            answer.tags()

        answer.array(topic)
        return TransactionEntry(error, state, timeout, producer_id, epoch, sorted(partitions))
