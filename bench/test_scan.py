"""Columnar scans, CRC checked, beside copying the values; read_committed with 1 % aborted beside read_uncommitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

COUNT = 400_000
ABORTED = 20


@pytest.fixture
def scanned(open_log: Callable[..., Any], values: list[bytes]) -> Any:
    """A log of 400,000 values of 100 bytes."""
    log = open_log("os")
    with log.producer() as producer:
        for _ in range(COUNT // len(values)):
            producer.produce_many("t", values, partition=0)
    return log


@pytest.fixture
def mixed(open_log: Callable[..., Any], values: list[bytes]) -> tuple[Any, int, int]:
    """A log in which one batch in a hundred is aborted, with the counts of committed and of all records."""
    log = open_log("os")
    with log.producer() as plain, log.producer(transactional_id="aborter") as aborter:
        aborter.init_transactions()
        for _ in range(ABORTED):
            for _ in range(99):
                plain.produce_many("t", values[:140], partition=0)
                plain.flush()
            aborter.begin_transaction()
            aborter.produce_many("t", values[:140], partition=0)
            aborter.flush()  # else the abort drops what is not sent yet
            aborter.abort_transaction()
    return log, ABORTED * 99 * 140, ABORTED * 100 * 140


def rows(log: Any, isolation: str = "read_committed") -> int:
    return sum(batch.num_rows for batch in log.scan("t", columns=["value"], isolation=isolation))


def test_memcpy_of_the_values(measure: Callable[..., Any], values: list[bytes]) -> None:
    source = np.frombuffer(b"".join(values * (COUNT // len(values))), dtype=np.uint8)
    target = np.empty_like(source)
    measure(lambda: np.copyto(target, source), units=COUNT, rounds=20)


def test_scan_values(measure: Callable[..., Any], scanned: Any) -> None:
    assert measure(lambda: rows(scanned), units=COUNT, rounds=15) == COUNT


def test_scan_read_committed(measure: Callable[..., Any], mixed: tuple[Any, int, int]) -> None:
    log, committed, everything = mixed
    assert measure(lambda: rows(log), units=everything, rounds=15) == committed


def test_scan_read_uncommitted(measure: Callable[..., Any], mixed: tuple[Any, int, int]) -> None:
    log, _, everything = mixed
    assert measure(lambda: rows(log, "read_uncommitted"), units=everything, rounds=15) == everything
