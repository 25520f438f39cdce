"""The two sides: a broker over the wire, and eoslog's coordinators.

Answers are tuples of plain values. Producer ids are given as the number in which a side first
allocated them, offsets relative to the partition's end when the sequence began.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import eoslog
from eoslog import _core
from eoslog.errors import KafkaError
from eoslog.model import OffsetAndMetadata, TopicPartition
from tests.kafka.differential.wire import NOBODY, Member, Wire
from tests.kafka.directories.world import START_MS

Answer = tuple[Any, ...]
PARTITIONS = 2
TIMEOUT_MS = 60_000
NO_ONE = (-1, -1)
PATIENCE = 60.0
"""How many seconds a broker may answer with a retriable error."""
_AGAIN = (14, 15, 16, 51)  # the coordinator loads, moves, or is still writing markers
_NOT_YET = (3, 6)  # the topic is not known yet, or not led yet


class Ids:
    """Producer ids as numbers in the order of their first appearance."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {-1: -1}

    def number(self, producer_id: int) -> int:
        return self._known.setdefault(producer_id, len(self._known) - 1)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._known


class Side(Protocol):
    """Who answers. An identity is this side's (producer id, epoch)."""

    def begin(self) -> None: ...
    def init(
        self, name: str | None, who: tuple[int, int], timeout_ms: int = TIMEOUT_MS
    ) -> tuple[Answer, tuple[int, int]]: ...
    def produce(
        self,
        name: str | None,
        who: tuple[int, int],
        partition: int,
        sequence: int,
        values: list[bytes],
    ) -> Answer: ...
    def end(
        self, name: str, who: tuple[int, int], commit: bool
    ) -> tuple[Answer, tuple[int, int]]: ...
    def add_partition(self, name: str, who: tuple[int, int], partition: int) -> Answer: ...
    def add_offsets(self, name: str, who: tuple[int, int], group: str) -> Answer: ...
    def commit_offset(
        self,
        name: str,
        who: tuple[int, int],
        group: str,
        offset: int,
        member: Member = NOBODY,
        partition: int = 0,
    ) -> Answer: ...
    def offset(self, group: str, partition: int = 0) -> Answer: ...
    def transaction(self, name: str) -> Answer: ...
    def producers(self, partition: int) -> Answer: ...
    def ends(self, partition: int) -> Answer: ...
    def committed(self, partition: int) -> Answer: ...


def batch_of(name: str | None, who: tuple[int, int], sequence: int, values: list[bytes]) -> bytes:
    """A batch as a producer sends it."""
    return bytes(
        _core.build_batch(
            [(START_MS + i, None, value, ()) for i, value in enumerate(values)],
            producer_id=who[0], producer_epoch=who[1], base_sequence=sequence, transactional=name is not None,
        )
    )  # fmt: skip


class _Members:
    """Members are named as they are; `group_sides.py` tells their epochs otherwise."""

    @staticmethod
    def _real(member: Member) -> Member:
        return member


class KafkaSide(_Members):
    """A broker, asked with the newest transaction version.

    A retriable answer makes this side ask again.
    """

    def __init__(self, wire: Wire, topic: str) -> None:
        self._wire, self.topic = wire, topic
        self._ids, self._bases = Ids(), [0] * PARTITIONS

    def begin(self) -> None:
        self._ids = Ids()
        self._bases = [self._end(p) for p in range(PARTITIONS)]

    def _end(self, partition: int) -> int:
        """The end offset; a broker answers with an error until it leads a new partition."""
        error, offset = self._patiently(
            lambda: self._wire.list_offsets(self.topic, partition, -1, False),
            lambda answer: answer[0],
            (*_AGAIN, *_NOT_YET),
        )
        assert error == 0
        return int(offset)

    def _patiently(
        self,
        call: Callable[[], Any],
        error_of: Callable[[Any], int],
        again: tuple[int, ...] = _AGAIN,
    ) -> Any:
        deadline = time.monotonic() + PATIENCE
        while error_of(answer := call()) in again:
            assert time.monotonic() < deadline, f"the broker keeps answering {answer}"
            time.sleep(0.002)
        return answer

    def _settle(self, name: str) -> None:
        """Wait until the markers are written: eoslog's answer comes after them."""
        deadline = time.monotonic() + PATIENCE
        while self._wire.describe_transaction(name).state.startswith("Prepare"):
            assert time.monotonic() < deadline, f"{name} is not completed"
            time.sleep(0.001)

    def init(
        self, name: str | None, who: tuple[int, int], timeout_ms: int = TIMEOUT_MS
    ) -> tuple[Answer, tuple[int, int]]:
        error, producer_id, epoch = self._patiently(
            lambda: self._wire.init_producer_id(name, timeout_ms, *who), lambda answer: answer[0]
        )
        if error:
            return (error,), NO_ONE
        return (0, self._ids.number(producer_id), epoch), (producer_id, epoch)

    def produce(
        self,
        name: str | None,
        who: tuple[int, int],
        partition: int,
        sequence: int,
        values: list[bytes],
    ) -> Answer:
        data = batch_of(name, who, sequence, values)
        answer = self._patiently(
            lambda: self._wire.produce(name, self.topic, partition, data),
            lambda answer: answer.error,
        )
        return (
            (0, answer.base_offset - self._bases[partition])
            if not answer.error
            else (answer.error,)
        )

    def end(self, name: str, who: tuple[int, int], commit: bool) -> tuple[Answer, tuple[int, int]]:
        error, producer_id, epoch = self._patiently(
            lambda: self._wire.end_txn(name, *who, commit), lambda answer: answer[0]
        )
        if error:
            return (error,), NO_ONE
        self._settle(name)
        return (0, self._ids.number(producer_id), epoch), (producer_id, epoch)

    def add_partition(self, name: str, who: tuple[int, int], partition: int) -> Answer:
        key = (self.topic, partition)
        return (
            self._patiently(
                lambda: self._wire.add_partitions(name, *who, {self.topic: [partition]})[key], int
            ),
        )

    def add_offsets(self, name: str, who: tuple[int, int], group: str) -> Answer:
        return (self._patiently(lambda: self._wire.add_offsets(name, *who, group), int),)

    def commit_offset(
        self,
        name: str,
        who: tuple[int, int],
        group: str,
        offset: int,
        member: Member = NOBODY,
        partition: int = 0,
    ) -> Answer:
        return (
            self._patiently(
                lambda: self._wire.txn_offset_commit(
                    name, group, *who, self.topic, partition, offset, self._real(member)
                ),
                int,
            ),
        )

    def offset(self, group: str, partition: int = 0) -> Answer:
        error, offset = self._patiently(
            lambda: self._wire.offset_fetch(group, self.topic, partition), lambda a: a[0]
        )
        return (error, offset) if not error else (error,)

    def transaction(self, name: str) -> Answer:
        found = self._wire.describe_transaction(name)
        if found.error:
            return (found.error,)
        parts = tuple(sorted(p if topic == self.topic else -1 for topic, p in found.partitions))
        return (0, found.state, self._ids.number(found.producer_id), found.producer_epoch, parts)

    def producers(self, partition: int) -> Answer:
        base = self._bases[partition]
        return tuple(
            sorted(
                (self._ids.number(p.producer_id), p.epoch, p.last_sequence,
                 p.transaction_start - base if p.transaction_start >= 0 else -1)
                for p in self._wire.describe_producers(self.topic, partition)
                if p.producer_id in self._ids
            )
        )  # fmt: skip

    def ends(self, partition: int) -> Answer:
        found = (
            self._wire.list_offsets(self.topic, partition, -1, committed)[1]
            for committed in (True, False)
        )
        return tuple(offset - self._bases[partition] for offset in found)

    def committed(self, partition: int) -> Answer:
        base = at = self._bases[partition]
        records, aborted = b"", set()
        while True:
            answer = self._wire.fetch(self.topic, partition, at, True)
            batches = _core.iter_batches(answer.records)
            records += answer.records
            aborted.update(answer.aborted)
            if not batches or (at := batches[-1].last_offset + 1) >= answer.last_stable:
                return _visible(records, aborted, answer.last_stable, base)


def _visible(records: bytes, aborted: set[tuple[int, int]], end: int, base: int) -> Answer:
    """What a client makes of fetch answers: an aborted range ends with its marker."""
    found: list[tuple[int, bytes | None]] = []
    starts = sorted(aborted, key=lambda pair: pair[1])
    hidden: set[int] = set()
    for batch in _core.iter_batches(records):
        if batch.base_offset >= end:
            break
        while starts and starts[0][1] <= batch.last_offset:
            hidden.add(starts.pop(0)[0])
        if batch.control:
            (record,) = batch.records()
            if record[2] == b"\0\0\0\0":
                hidden.discard(batch.producer_id)
        elif not (batch.transactional and batch.producer_id in hidden):
            found += [
                (record[0] - base, record[3]) for record in batch.records() if record[0] >= base
            ]
    return tuple(found)


class EoslogSide(_Members):
    """eoslog's coordinators and partitions, called as its own producer calls them."""

    def __init__(self, log: eoslog.Log, topic: str) -> None:
        self._log, self.topic = log, topic
        self._engine = log._engine
        self._ids, self._bases = Ids(), [0] * PARTITIONS

    def begin(self) -> None:
        self._ids = Ids()
        self._bases = [self._partition(p).log_end for p in range(PARTITIONS)]

    def _partition(self, number: int) -> Any:
        return self._engine.partition(self.topic, number)

    def init(
        self, name: str | None, who: tuple[int, int], timeout_ms: int = TIMEOUT_MS
    ) -> tuple[Answer, tuple[int, int]]:
        try:
            found = self._engine.transactions.init_producer_id(name, timeout_ms, *who)
        except KafkaError as error:
            return (int(error.code),), NO_ONE
        who = (found.producer_id, found.producer_epoch)
        return (0, self._ids.number(who[0]), who[1]), who

    def produce(
        self,
        name: str | None,
        who: tuple[int, int],
        partition: int,
        sequence: int,
        values: list[bytes],
    ) -> Answer:
        log, data = self._partition(partition), bytearray(batch_of(name, who, sequence, values))
        try:
            if name is None or any(open_[:2] == who for open_ in log.open_transactions()):
                result = log.append(data)
            else:
                place = TopicPartition(self.topic, partition)
                expected = self._engine.transactions.add_partitions_to_txn(name, *who, [place])
                result = log.append(data, expect=[expected])
        except KafkaError as error:
            return (int(error.code),)
        return (0, result.base_offset - self._bases[partition] if result.base_offset >= 0 else -1)

    def end(self, name: str, who: tuple[int, int], commit: bool) -> tuple[Answer, tuple[int, int]]:
        try:
            who = self._engine.transactions.end_txn(name, *who, commit)
        except KafkaError as error:
            return (int(error.code),), NO_ONE
        return (0, self._ids.number(who[0]), who[1]), who

    @staticmethod
    def _code(call: Callable[[], object]) -> Answer:
        try:
            call()
        except KafkaError as error:
            return (int(error.code),)
        return (0,)

    def add_partition(self, name: str, who: tuple[int, int], partition: int) -> Answer:
        place = TopicPartition(self.topic, partition)
        return self._code(
            lambda: self._engine.transactions.add_partitions_to_txn(name, *who, [place])
        )

    def add_offsets(self, name: str, who: tuple[int, int], group: str) -> Answer:
        return self._code(lambda: self._engine.transactions.add_offsets_to_txn(name, *who, group))

    def commit_offset(
        self,
        name: str,
        who: tuple[int, int],
        group: str,
        offset: int,
        member: Member = NOBODY,
        partition: int = 0,
    ) -> Answer:
        place = {TopicPartition(self.topic, partition): OffsetAndMetadata(offset)}
        return self._code(
            lambda: self._engine.groups.txn_offset_commit(
                group, name, *who, *self._real(member), place
            )
        )

    def offset(self, group: str, partition: int = 0) -> Answer:
        place = TopicPartition(self.topic, partition)
        try:
            found = self._engine.groups.fetch_offsets(group, [place], timeout=0.0)
        except KafkaError as error:
            return (int(error.code),)
        return (0, found[place].offset if place in found else -1)

    def transaction(self, name: str) -> Answer:
        try:
            (found,) = self._engine.transactions.describe_transactions([name])
        except KafkaError as error:
            return (int(error.code),)
        parts = tuple(
            sorted(tp.partition if tp.topic == self.topic else -1 for tp in found.partitions)
        )
        return (0, found.state, self._ids.number(found.producer_id), found.producer_epoch, parts)

    def producers(self, partition: int) -> Answer:
        base = self._bases[partition]
        log = self._partition(partition)
        return tuple(
            sorted(
                (self._ids.number(p.producer_id), p.producer_epoch, p.last_sequence,
                 -1 if p.current_txn_first_offset is None else p.current_txn_first_offset - base)
                for p in (log.producer_state(known) for known in list(self._ids._known))
                if p is not None
            )
        )  # fmt: skip

    def ends(self, partition: int) -> Answer:
        log, base = self._partition(partition), self._bases[partition]
        return (log.last_stable_offset - base, log.high_watermark - base)

    def committed(self, partition: int) -> Answer:
        base = self._bases[partition]
        scan = self._log.scan(
            self.topic,
            partitions=[partition],
            start=base,
            columns=["offset", "value"],
            binary="copy",
        )
        return tuple((row["offset"] - base, row["value"]) for row in scan.to_table().to_pylist())
