"""A producer under random faults writes every record once and in order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from eoslog.client.producer.batch_dispatch import BatchDispatch
from eoslog.errors import EoslogError, LockTimeout
from eoslog.log import Log
from eoslog.opening import open as open_log

PARTITIONS = 3


@pytest.fixture
def log(tmp_path: Any) -> Iterator[Log]:
    with open_log(str(tmp_path / "log"), durability="os") as opened:
        opened.create_topic("t", PARTITIONS)
        yield opened


class Storm:
    """A log that answers appends with faults, sometimes many in a row.

    It rejects an append before the write, or loses the answer after the write.
    """

    def __init__(self, log: Log, monkeypatch: pytest.MonkeyPatch, chance: random.Random) -> None:
        self.chance = chance
        self.calm = False
        self.faults = 0
        for number in range(PARTITIONS):
            part = log._engine.partition("t", number)
            monkeypatch.setattr(part, "append", self.around(part.append))
        monkeypatch.setattr(BatchDispatch, "_ack_is_lost", lambda sender: self.strikes(0.3))

    def strikes(self, likelihood: float) -> bool:
        hit = not self.calm and self.chance.random() < likelihood
        self.faults += hit
        return hit

    def around(self, append: Any) -> Any:
        def faulty(data: Any, **keywords: Any) -> Any:
            if self.strikes(0.3):
                raise LockTimeout("held by process 1")
            return append(data, **keywords)

        return faulty


def values(log: Log, partition: int) -> list[int]:
    part = log._engine.partition("t", partition)
    return [
        int(value)
        for batch in part.batches(0, part.log_end)
        if not batch.control
        for _, _, _, value, _ in batch.records()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_faults_leave_each_record_stored_once_and_in_order(
    log: Log, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    storm = Storm(log, monkeypatch, chance)
    told: dict[int, tuple[Any, Any]] = {}

    def hear(number: int) -> Any:
        return lambda error, metadata: told.__setitem__(number, (error, metadata))

    with log.producer(
        batch_size=chance.choice([0, 100, 600]), linger_ms=chance.choice([0, 2]), retry_backoff_ms=1
    ) as producer:
        for i in range(600):
            producer.produce("t", b"%d" % i, partition=i % PARTITIONS, on_delivery=hear(i))
            if chance.random() < 0.02:
                producer.flush(0.02)
        storm.calm = True
        producer.flush()
        assert (producer.buffered, producer._used) == (0, 0)
        assert producer.producer_epoch == 0  # nothing was given up, so nothing was left unresolved
    assert storm.faults > 0
    for partition in range(PARTITIONS):
        assert values(log, partition) == list(range(partition, 600, PARTITIONS))
    assert len(told) == 600
    for number, (error, metadata) in told.items():
        assert error is None
        if metadata.offset >= 0:  # -1: a duplicate older than the log remembers places of
            assert values(log, metadata.partition)[metadata.offset] == number


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_faults_leave_transactions_complete_or_absent(
    log: Log, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    storm = Storm(log, monkeypatch, chance)
    committed: list[int] = []
    with log.producer(
        transactional_id="x", batch_size=100, retry_backoff_ms=1, delivery_timeout_ms=400,
        linger_ms=1, request_timeout_ms=100,
    ) as producer:  # fmt: skip
        producer.init_transactions()
        for number in range(12):
            storm.calm = chance.random() < 0.3
            wanted = [number * 100 + i for i in range(chance.randint(1, 40))]
            try:
                with producer.transaction() as tx:
                    for value in wanted:
                        tx.produce("t", b"%d" % value, partition=value % PARTITIONS)
                        if chance.random() < 0.05:
                            producer.flush(0.01)
                    if chance.random() < 0.25:
                        raise ZeroDivisionError
            except (ZeroDivisionError, EoslogError):
                assert producer.transaction_state == "READY"
            else:
                committed += wanted
    storm.calm = True
    end = log.snapshot()  # drives what is decided: a fault may have met the last markers
    for partition in range(PARTITIONS):
        seen = log.scan("t", partitions=[partition], end=end).to_table().column("value").to_pylist()
        assert [int(v) for v in seen] == [v for v in committed if v % PARTITIONS == partition]
