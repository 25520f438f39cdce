"""Prepared transactions of the simulated processes, which any process decides."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import eoslog
from eoslog import Outcome
from eoslog.errors import EoslogError, OutcomeConflict
from tests.simulation.oracles import decisions
from tests.simulation.oracles.model import Half

IDS = ("h0", "h1")


class Halves:
    """Operations of a `workload.Client`, which gives what is named here."""

    world: Any
    model: Any
    log: eoslog.Log | None
    rng: Random
    name: str
    count: int
    transactional: dict[str, Any]

    _value: Callable[[], str]
    _place: Callable[[], tuple[str, int]]
    _producer: Callable[..., Any]
    _give_up: Callable[[str], None]

    def prepare(self) -> None:
        """Prepare a transaction, inline or staged."""
        name, mode = self.rng.choice(IDS), self.rng.choice(("inline", "staged"))
        producer = self.transactional.get(name)
        try:
            if producer is None:
                producer = self.transactional[name] = self._producer(transactional_id=name)
                producer.init_transactions(keep_prepared=True)
            producer.begin_transaction(mode)
            self.count += 1
            txn = self.model.begin(f"{self.name}:{name}:{self.count}")
            half = self.model.halves[txn.name] = Half(txn)
            batches = self.count % 2 == 0  # of one record, in one partition
            one = self._place()
            for _ in range(self.rng.choice((1, 2, 4))):
                value, place = self._value(), one if batches else self._place()
                order = txn.name if mode == "staged" else f"{self.name} {name}"
                self.model.sent(order, place, value, txn)
                producer.produce(place[0], value, partition=place[1])
                if batches:
                    producer.flush()
            half.tried = True
            self.model.events += 1
            token = producer.prepare_transaction({"order": txn.name}).token
            self.world.alive()
        except EoslogError:
            self.world.alive()
            self._give_up(name)
            raise
        half.prepared, half.token = True, token
        self.model.events += 1
        self.model.counts["prepared"] += 1

    def decide(self) -> None:
        """Decide a pending transaction of any process, perhaps twice."""
        assert self.log is not None
        pending = self.log.pending()
        self.world.alive()
        if not pending:
            return
        one = self.rng.choice(pending)
        half = self.model.halves[one.meta["order"]]
        half.token = one.token
        for _ in range(self.rng.choice((1, 1, 2))):
            commit = self.rng.random() < 0.6
            decisions.asked(self.model, half, commit)
            try:
                self.log.resolve(one.token, Outcome.COMMIT if commit else Outcome.ABORT)
            except OutcomeConflict:
                commit = not commit
            self.world.alive()
            decisions.told(self.model, half, commit)
