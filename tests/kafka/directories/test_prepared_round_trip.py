"""A log with prepared transactions goes to a real broker and back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

import eoslog
from eoslog import Outcome
from eoslog.engine.inline_limit import InlineLimit
from eoslog.errors import CorruptRecord, OutcomeConflict
from eoslog.storage.format.checkpoints import read_meta_properties
from tests.kafka import jars
from tests.kafka.broker import Broker
from tests.kafka.clients import create_topics, librdkafka_rows
from tests.kafka.differential.wire import Wire
from tests.kafka.directories.test_prepared_transactions import described, until

TOPICS = {"kept": 1, "taken": 1, "staged": 1}
STATES = 50
"""Partitions of `__transaction_state` in an eoslog directory."""


class Tokens(NamedTuple):
    """One prepared transaction per topic, with a record in it."""

    kept: str
    taken: str
    staged: str


def prepare(path: Path) -> Tokens:
    """A directory whose transactional ids have the names of their topics."""
    with eoslog.open(path) as log:
        for name in TOPICS:
            log.create_topic(name)
        tokens = []
        for name in TOPICS:
            producer = log.producer(transactional_id=name)
            producer.init_transactions()
            with producer.transaction() as tx:
                tx.produce(name, b"before")
            producer.begin_transaction(mode="staged" if name == "staged" else "inline")
            producer.produce(name, b"prepared")
            tokens.append(producer.prepare_transaction().token)
        with log.producer() as plain:
            for name in TOPICS:
                plain.produce(name, b"after")
    return Tokens(*tokens)


def put_under(broker: Broker, directory: Path) -> None:
    """Replace the files of a stopped broker's partitions by eoslog's."""
    for source in directory.glob("*-*"):
        target = broker.logs / source.name
        if source.name.rpartition("-")[0] in (*TOPICS, "__transaction_state"):
            for path in target.iterdir():
                if path.name != "partition.metadata":
                    path.unlink()
            for path in source.iterdir():
                if path.name != "partition.metadata":
                    shutil.copy(path, target / path.name)


@pytest.mark.parametrize(("version", "aside"), [(jars.DIRECTORIES, False), (jars.BEHAVIOUR, True)])
def test_prepared_transactions_are_decided_once_after_a_broker_used_the_log(
    version: str, aside: bool, broker_of: Callable[..., Broker], tmp_path: Path
) -> None:
    place = tmp_path / "log"
    tokens = prepare(place)
    properties = read_meta_properties(str(place))
    assert properties is not None
    broker = broker_of(
        version,
        cluster=properties.cluster_id,
        config={"transaction.state.log.num.partitions": STATES},
    ).start()
    create_topics(broker, TOPICS)
    with Wire(broker.bootstrap) as wire:  # creates `__transaction_state`
        until(lambda: wire.find_coordinator("any", 1) == 0)
    broker.stop()
    put_under(broker, place)
    broker.start()
    for name, state in (("kept", "Ongoing"), ("taken", "Ongoing"), ("staged", "CompleteCommit")):
        assert described(broker, name).state == state
    rows = librdkafka_rows(broker, TOPICS, "read_committed")
    assert {name: [row.value for row in found] for name, found in rows.items()} == {
        "kept": [b"before"], "taken": [b"before"], "staged": [b"before", b"after"],
    }  # fmt: skip
    taker = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "taken"})
    taker.init_transactions(30)
    rows = librdkafka_rows(broker, TOPICS, "read_committed")
    assert [row.value for row in rows["taken"]] == [b"before", b"after"]
    broker.stop()
    back = tmp_path / "back"
    report = eoslog.import_kafka_dir(broker.logs, back)
    assert any(tokens.staged in problem.message for problem in report.problems)
    with eoslog.open(back) as log:
        assert log.outcome(tokens.taken) is Outcome.ABORT
        with pytest.raises(OutcomeConflict, match="decided to abort"):
            log.resolve(tokens.taken, Outcome.COMMIT)
        assert sorted(state.token for state in log.pending()) == sorted(
            [tokens.kept, tokens.staged]
        )
        assert [record.value for record in log.read("kept")] == [b"before"]
        # The topic has the broker's id now, and the records keep their place.
        assert not aside or InlineLimit(log._engine).set_aside(tokens.kept)
        log.resolve(tokens.kept, Outcome.COMMIT)
        kept = [record.value for record in log.read("kept")]
        assert sorted(kept) == [b"after", b"before", b"prepared"]
        assert [record.value for record in log.read("taken")] == [b"before", b"after"]
        with pytest.raises(CorruptRecord, match="are missing"):
            log.resolve(tokens.staged, Outcome.COMMIT)
        log.resolve(tokens.staged, Outcome.ABORT)
        assert [record.value for record in log.read("staged")] == [b"before", b"after"]
