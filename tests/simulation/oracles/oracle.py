"""One opening of what a crash left, and everything that must hold of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import eoslog
from eoslog.storage.format import checkpoints
from tests.simulation.oracles import decisions, looks
from tests.simulation.oracles.model import Model
from tests.simulation.workloads import chores

State = dict[str, Any]


def inspect(
    path: str, model: Model, found: list[State], *, settle: bool,
    then: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Open, let everything settle, compare it with the promises, and close.

    Args:
        path: the directory; no other process has it open.
        model: gets the violations.
        found: gets the state of all folds.
        settle: resolve what is unknown; the first opening after a crash does.
        then: called before it is closed.
    """
    with eoslog.open(path) as log:
        engine = log._engine
        for one in looks.all_partitions(engine):
            engine.transactions.resolve_blockers(one)
        if settle:
            decisions.settle(log, model)
        looks.check_structure(engine, model, settled=True)
        if settle:
            seen = looks.everything(engine)
            for place in [place for place in seen if place[0] in chores.TOPICS]:
                del seen[place]
            for place, end in model.watermarks.items():
                if (left := engine.partition(*place).log_end) < end:
                    model.violated(f"O1 {place} ends at {left}, its high watermark was {end}")
            model.settle(seen, looks.positions(engine, set(model.positions)))
            model.chores.settle(chores.looked_at(engine), model.violated)
        found.append(looks.state(engine))
        then()


def open_all(path: str) -> None:
    """Do what a recovery does, without any check."""
    log = eoslog.open(path)
    looks.all_partitions(log._engine)
    log.close()


def closed_clean(path: str, model: Model) -> None:
    """The last one out has closed."""
    if not os.path.exists(os.path.join(path, checkpoints.CLEAN_SHUTDOWN)):
        model.violated("O7 the last one out closed, and the directory is not clean")


def same(found: list[State], model: Model) -> None:
    """Check that the second opening replayed the live state of the first."""
    for what in looks.difference(found[0], found[1]):
        model.violated(f"O6 live is not replayed: {what}")
