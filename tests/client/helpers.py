"""Helpers: the content of a directory after client calls, and a log that fails."""

from __future__ import annotations

from typing import Any

import pytest

from eoslog._core import OneThread
from eoslog.client.transaction_link import ConsumerLink
from eoslog.config.keys import ConsumerConfig
from eoslog.descriptions import GroupMetadata
from eoslog.log import Log
from eoslog.model import OffsetAndMetadata, TopicPartition


def stored(log: Log, topic: str = "one", partition: int = 0) -> list[tuple[Any, ...]]:
    """(offset, key, value) of a partition's data, whatever its fate."""
    part = log._engine.partition(topic, partition)
    return [
        (offset, key, value)
        for batch in part.batches(part.log_start, part.log_end)
        if not batch.control
        for offset, _, key, value, _ in batch.records()
    ]


def batches(log: Log, topic: str = "one", partition: int = 0) -> list[Any]:
    part = log._engine.partition(topic, partition)
    return list(part.batches(part.log_start, part.log_end))


class Refusing:
    """A PartitionLog.append that fails as told, then works."""

    def __init__(self, log: Log, monkeypatch: pytest.MonkeyPatch, topic: str = "one") -> None:
        self.part = log._engine.partition(topic, 0)
        self.real = self.part.append
        self.errors: list[Any] = []
        self.calls = 0
        monkeypatch.setattr(self.part, "append", self.append)

    def append(self, data: Any, **keywords: Any) -> Any:
        self.calls += 1
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return self.real(data, **keywords)


def visible(log: Log, topic: str = "b", partition: int = 0) -> list[bytes]:
    """Values that read_committed shows."""
    part = log._engine.partition(topic, partition)
    end = part.last_stable_offset  # once: what the bound covers, the abort index covers
    aborted = part.aborted(0, end)
    values = []
    for batch in part.batches(0, end):
        if batch.control or any(
            batch.producer_id == p and first <= batch.base_offset <= last
            for p, first, last in aborted
        ):
            continue
        values += [value for _, _, _, value, _ in batch.records()]
    return values


def log_sizes(log: Log) -> list[int]:
    return [part.log_end for part in log._engine.transaction_partitions()]


class FakeConsumer:
    """What a transaction needs of a consumer."""

    unsettled: str | None = None
    unfinished = False

    def __init__(self, log: Log) -> None:
        self.rewound = 0
        self.states: dict[TopicPartition, Any] = {}
        self._link = ConsumerLink(
            log._engine,
            ConsumerConfig.of(group_id="g"),
            OneThread("fake"),
            self,
            self.progress,
            auto_commits=False,
        )

    def progress(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {TopicPartition("a", 0): OffsetAndMetadata(7)}

    def rewind(self) -> None:
        self.rewound += 1
        self.unsettled = None

    def group_metadata(self) -> GroupMetadata:
        return GroupMetadata("g")
