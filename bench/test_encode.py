"""Encoding: how fast records become batches, beside copying their bytes and beside aiokafka's Cython builder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from eoslog import _core

COUNT = 20_000
PER_BATCH = 150


def test_memcpy_of_the_values(measure: Callable[..., Any], values: list[bytes]) -> None:
    source = np.frombuffer(b"".join(values[:COUNT]), dtype=np.uint8)
    target = np.empty_like(source)
    measure(lambda: np.copyto(target, source), units=COUNT, rounds=50)


def test_build_batch(measure: Callable[..., Any], values: list[bytes]) -> None:
    groups = [
        [(1_700_000_000_000, None, value, ()) for value in values[at : at + PER_BATCH]]
        for at in range(0, COUNT, PER_BATCH)
    ]

    def run() -> None:
        for group in groups:
            _core.build_batch(group)

    measure(run, units=COUNT)


def test_aiokafka_builder(measure: Callable[..., Any], values: list[bytes]) -> None:
    from aiokafka.record._crecords import DefaultRecordBatchBuilder

    def run() -> None:
        at = 0
        for base in range(0, COUNT, PER_BATCH):
            builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
            for at, value in enumerate(values[base : base + PER_BATCH]):
                builder.append(at, 1_700_000_000_000, None, value, [])
            builder.build()

    measure(run, units=COUNT)


def test_produce(
    measure: Callable[..., Any], open_log: Callable[..., Any], values: list[bytes]
) -> None:
    with open_log("os").producer(acks=1) as producer:

        def run() -> None:
            for value in values[:COUNT]:
                producer.produce("t", value)
            producer.flush()

        measure(run, units=COUNT)


def test_produce_many(
    measure: Callable[..., Any], open_log: Callable[..., Any], values: list[bytes]
) -> None:
    with open_log("os").producer(acks=1) as producer:

        def run() -> None:
            producer.produce_many("t", values[:COUNT], partition=0)
            producer.flush()

        measure(run, units=COUNT)
