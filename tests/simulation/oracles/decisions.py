"""The promises for prepared transactions, which any process may decide."""

from __future__ import annotations

from typing import Any

from eoslog import Outcome
from tests.simulation.oracles.model import Half, Model

_MOST_DELIVERIES = 20


def told(model: Model, half: Half, commit: bool) -> None:
    """Note a decision that a process got, and check that it is the only one."""
    if half.told not in (None, commit):
        model.violated(f"O2 {half.txn.name}: two decisions, {half.told} and {commit}")
    half.told = commit
    model.ended(half.txn, "committed" if commit else "aborted")


def asked(model: Model, half: Half, commit: bool) -> None:
    """Note that a process is about to ask for a decision."""
    model.events += 1
    half.asked.add(commit)
    if commit and half.told is None:
        half.txn.outcome = "unknown"


def settle(log: Any, model: Model) -> None:
    """Judge what is undecided, decide and deliver it."""
    pending = {one.meta["order"]: one.token for one in log.pending()}
    for label, half in sorted(model.halves.items()):
        if label in pending:
            if half.told is not None:
                model.violated(f"O1 {label} is pending, and was decided: {half.told}")
            if not half.tried:
                model.violated(f"O3 {label} is pending, and was never prepared")
            commit = sum(map(ord, label)) % 2 == 0
            asked(model, half, commit)
            log.resolve(pending[label], Outcome.COMMIT if commit else Outcome.ABORT)
            told(model, half, commit)
        elif half.token:
            _judge(log.outcome(half.token), model, half)
    prepared = log._engine.transactions.prepared
    for _ in range(_MOST_DELIVERIES):
        for token, _ in prepared.index.undelivered():
            prepared.deliver(token)
    if prepared.index.undelivered():
        model.violated(f"O1 not delivered: {prepared.index.undelivered()}")


def _judge(outcome: Outcome | None, model: Model, half: Half) -> None:
    name, final = half.txn.name, half.prepared or half.told is not None
    if outcome in (Outcome.COMMIT, Outcome.ABORT):
        commit = outcome is Outcome.COMMIT
        if commit not in half.asked:
            model.violated(f"O3 {name} has the outcome {outcome}, which nobody asked for")
        told(model, half, commit)
    elif final:
        model.violated(f"O1 {name} was prepared, and its outcome is {outcome}")
