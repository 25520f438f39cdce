"""An export to a real cluster leaves out what is prepared, until it is committed."""

from __future__ import annotations

from pathlib import Path

import pytest

import eoslog
from eoslog import Outcome
from eoslog.engine.inline_limit import InlineLimit
from tests.kafka.broker import Broker
from tests.kafka.clients import librdkafka_rows


@pytest.mark.parametrize("outcome", [Outcome.COMMIT, Outcome.ABORT])
@pytest.mark.parametrize("kind", ["inline", "staged", "moved"])
def test_an_export_has_a_prepared_transaction_once_after_its_commit(
    broker: Broker, tmp_path: Path, kind: str, outcome: Outcome
) -> None:
    topic = f"{kind}-{outcome.value}"

    def exported() -> list[bytes | None]:
        rows = librdkafka_rows(broker, {topic: 1}, "read_committed")[topic]
        return [row.value for row in rows]

    with eoslog.open(tmp_path / "log") as log:
        log.create_topic(topic)
        producer = log.producer(transactional_id="till")
        producer.init_transactions()
        with producer.transaction() as tx:
            tx.produce(topic, b"before")
        producer.begin_transaction(mode="staged" if kind == "staged" else "inline")
        producer.produce(topic, b"prepared")
        token = producer.prepare_transaction().token
        with log.producer() as plain:
            plain.produce(topic, b"after")
        if kind == "moved":
            assert InlineLimit(log._engine).set_aside(token)
        log.export_kafka(broker.bootstrap, [topic])
        visible = [b"before"] if kind == "inline" else [b"before", b"after"]
        assert exported() == visible
        log.resolve(token, outcome)
        log.export_kafka(broker.bootstrap, [topic])
        committed = [record.value for record in log.read(topic)]
        assert committed.count(b"prepared") == (outcome is Outcome.COMMIT)
        assert exported() == committed
