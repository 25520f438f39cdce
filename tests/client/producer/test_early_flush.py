"""A single append is flushed directly; those of several partitions together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog.storage.log.partition_log import PartitionLog


@pytest.mark.parametrize(
    ("partitions", "config", "tried"),
    [
        ([0], {}, [("t-0", 1)]),
        ([0, 1], {}, []),
        ([0], {"acks": 1, "enable_idempotence": False}, []),
        # Sent again after an interrupt, it would be there twice.
        ([0], {"enable_idempotence": False}, []),
    ],
    ids=["one", "two", "acks=1", "not idempotent"],
)
def test_a_producer_flushes_early_only_what_is_flushed_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    partitions: list[int],
    config: dict[str, Any],
    tried: list[tuple[str, int]],
) -> None:
    found: list[tuple[str, int]] = []
    real = PartitionLog.try_flush

    def noted(log: PartitionLog, up_to: int) -> None:
        found.append((log.name, up_to))
        real(log, up_to)

    monkeypatch.setattr(PartitionLog, "try_flush", noted)
    with eoslog.open(tmp_path, durability="strict") as log:
        log.create_topic("t", 2)
        with log.producer(linger_ms=60_000, **config) as producer:
            for number in partitions:
                producer.produce("t", b"v", partition=number)
            producer.flush()
            assert found == tried
        for number in partitions:
            assert log._engine.partition("t", number).log_end == 1
