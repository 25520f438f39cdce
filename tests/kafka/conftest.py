"""Brokers, one at a time, and what the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.kafka import jars
from tests.kafka.broker import Broker


@pytest.fixture(scope="module")
def broker_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Broker]]:
    """Makes brokers that are gone when the module is done."""
    made: list[Broker] = []

    def make(version: str = jars.BEHAVIOUR, **options: object) -> Broker:
        for other in made:
            other.stop()
        made.append(Broker(tmp_path_factory.mktemp("broker"), version, **options))
        return made[-1]

    yield make
    for broker in made:
        broker.remove()


@pytest.fixture(scope="module")
def broker(broker_of: Callable[..., Broker]) -> Broker:
    """A running broker of the newest version."""
    return broker_of().start()
