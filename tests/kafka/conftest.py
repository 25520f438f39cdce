"""Brokers, one at a time, and what the tests of this folder share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

import eoslog
from tests.kafka import jars
from tests.kafka.broker import Broker
from tests.kafka.clients import create_topics
from tests.kafka.differential.both import Pair
from tests.kafka.differential.comparison import CONFIG, await_coordinators
from tests.kafka.differential.group_sides import EoslogGroupSide, KafkaGroupSide
from tests.kafka.differential.group_wire import GroupWire
from tests.kafka.differential.sides import PARTITIONS


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


@pytest.fixture(scope="module")
def asked(broker_of: Callable[..., Broker], request: pytest.FixtureRequest) -> Broker:
    """A running broker for the comparison.

    It has the settings of the module's `BROKER`.
    """
    return broker_of(config={**CONFIG, **getattr(request.module, "BROKER", {})}).start()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[eoslog.Log]:
    """An empty log."""
    with eoslog.open(tmp_path_factory.mktemp("sides") / "log", durability="os") as log:
        yield log


@pytest.fixture
def pair(asked: Broker, log: eoslog.Log, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Both sides at the beginning of a sequence, on a topic of the test's own."""
    topic = re.sub(r"\W", "-", request.node.name)[:200]
    create_topics(asked, {topic: PARTITIONS})
    log.create_topic(topic, PARTITIONS)
    with GroupWire(asked.bootstrap) as wire:
        await_coordinators(wire)
        sides = KafkaGroupSide(wire, topic), EoslogGroupSide(log, topic)
        for side in sides:
            side.begin()
        yield sides
