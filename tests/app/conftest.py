"""A log with a topic of numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import eoslog


@pytest.fixture
def log(path: str) -> Iterator[eoslog.Log]:
    """A log with the input topic `numbers`, two partitions of ten records."""
    with eoslog.open(path, durability="os") as log:
        log.create_topic("numbers", partitions=2)
        with log.producer() as producer:
            for number in range(20):
                producer.produce("numbers", str(number), str(number), partition=number % 2)
        yield log
