"""The mixed workload with prepared transactions, which any process decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from eoslog.errors import EoslogError, PreparedTransactionPending
from tests.faults.harness import Child
from tests.torture.workloads.mixed import OUTPUTS, Life, mixed

IDS = ("first", "second")


class Deciding(Life):
    """The steps of the mixed workload, and those of prepared transactions."""

    STEPS: ClassVar[Any] = Life.STEPS

    def prepare(self) -> None:
        """Prepare a transaction, inline or staged."""
        name, mode = self.rng.choice(IDS), self.rng.choice(["inline", "staged"])
        if name not in self.transactional:
            self.transactional[name] = self.recorder.producer(
                self.log, name, keep_prepared=True, **self.sending
            )
        producer = self.transactional[name]
        try:
            try:
                producer.begin(mode)
            except PreparedTransactionPending:
                return
            for place in self.rng.sample(OUTPUTS, self.rng.randint(1, len(OUTPUTS))):
                self.put(producer, [(place, self.value()) for _ in range(self.rng.randint(1, 3))])
            producer.prepare()
        except EoslogError:
            self.transactional.pop(name).close()
            raise

    def decide(self) -> None:
        """Decide a pending transaction of any process, perhaps twice, and ask for outcomes."""
        pending = self.log.pending()
        for one in self.rng.sample(pending, min(len(pending), 2)):
            txn = one.meta["txn"]
            self.recorder.outcome(self.log, txn, one.token)
            for _ in range(self.rng.choice((1, 1, 2))):
                commit = self.rng.random() < 0.6
                self.recorder.decide(self.log, txn, one.token, commit=commit)
            self.recorder.outcome(self.log, txn, one.token)


# A prepared transaction blocks the readers of a copy, so that it shows less than it has.
Deciding.STEPS = (
    *(step for step in Life.STEPS if step[0] is not Life.back_up),
    (Deciding.prepare, 16),
    (Deciding.decide, 12),
)


def deciding(child: Child, path: Path, history: Path, name: str, seed: int) -> None:
    """Open, take some steps, and close."""
    mixed(child, path, history, name, seed, life=Deciding)
