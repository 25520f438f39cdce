"""`dir()` and `help()` of a producer and its transactions show only public calls."""

from __future__ import annotations

import inspect
import json

import pytest

from eoslog.client.producer.producer import Producer
from eoslog.client.producer.transactions.transaction import Transaction
from eoslog.errors import IllegalState
from eoslog.log import Log
from tests.paths import TESTS

LISTED = json.loads((TESTS / "project/public_names.json").read_text())


def _public(thing: object) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


def test_dir_of_a_producer_and_its_transaction_shows_public_names_only(log: Log) -> None:
    with log.producer(transactional_id="x") as producer:
        assert _public(producer) == LISTED["Producer"]
        producer.init_transactions()
        with producer.transaction() as tx:
            assert _public(tx) == LISTED["Transaction"]


def test_transaction_methods_have_the_signatures_of_the_producer() -> None:
    for name in ("produce", "send", "produce_many", "produce_arrow", "produce_batches"):
        mine, its = (inspect.signature(getattr(c, name)) for c in (Transaction, Producer))
        assert [(p.name, p.kind, p.default) for p in mine.parameters.values()] == [
            (p.name, p.kind, p.default) for p in its.parameters.values()
        ], name


def test_a_transaction_that_has_not_begun_rejects_records(log: Log) -> None:
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        tx = producer.transaction()
        for call in (tx.produce, tx.send):
            with pytest.raises(IllegalState, match="begin_transaction"):
                call("one", b"v")
        with pytest.raises(IllegalState, match="begin_transaction"):
            tx.produce_many("one", [b"v"])
