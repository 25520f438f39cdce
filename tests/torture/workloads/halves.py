"""Programs that prepare, decide, set aside and sweep transactions.

Each transaction has a label, which is the `order` of its meta and the beginning of its values. A
line of the journal is written before each call that may change something, and after its answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import eoslog
from eoslog import Outcome, TopicPartition
from eoslog.engine.inline_limit import InlineLimit
from eoslog.errors import CorruptRecord, EoslogError, OutcomeConflict
from tests.faults.harness import Child

PLACES = [TopicPartition("ha", 0), TopicPartition("ha", 1), TopicPartition("hb", 0)]
IDS = [f"till-{number}" for number in range(4)]
NAMES = ["relay-0", "relay-1"]
RESOLVER, SCRATCH = "books", "scratch"
STEPS = 14
DELAYS_MS = (-1000, 0, 150, 400)


class Journal:
    """Lines that survive the death of their process."""

    def __init__(self, folder: Path, name: str) -> None:
        """Open the journal of one life."""
        self._file = os.open(folder / f"{name}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, what: str, **facts: Any) -> None:
        """Write a line."""
        line = json.dumps({"what": what, "at": time.monotonic_ns(), **facts})
        os.write(self._file, line.encode() + b"\n")


@contextlib.contextmanager
def refusals(*of_drivers: type[Exception]) -> Iterator[None]:
    """End a program at a typed refusal, but not at damage or a second decision."""
    try:
        yield
    except (CorruptRecord, OutcomeConflict):
        raise
    except (EoslogError, *of_drivers):
        pass


def founded(child: Child, path: Path) -> None:
    """Create the topics."""
    with eoslog.open(path) as log:
        for tp in sorted({tp.topic for tp in PLACES}):
            log.create_topic(tp, partitions=sum(one.topic == tp for one in PLACES))


def halves(child: Child, path: Path, folder: Path, name: str, seed: int) -> None:
    """Take random steps until they are done, or the process is killed."""
    journal, rng = Journal(folder, name), random.Random(seed)
    with refusals():
        child.armed()
        with eoslog.open(path) as log:
            Program(log, journal, rng, name, child).run()


class Program:
    """The steps of one process."""

    def __init__(
        self, log: eoslog.Log, journal: Journal, rng: random.Random, name: str, child: Child
    ) -> None:
        """Start without a producer."""
        self.log, self.journal, self.rng, self.name, self.child = log, journal, rng, name, child
        self.number = 0
        self.producer: eoslog.Producer | None = None
        self.tokens: list[str] = []

    def run(self) -> None:
        """Take the steps; a typed refusal ends one of them only."""
        steps = {
            self.transact: 9, self.decide: 6, self.ask: 3, self.aside: 3, self.sweep: 3,
            self.listen: 3, self.renew: 3, self.publish: 3, self.clean: 1,
        }  # fmt: skip
        for step in self.rng.choices(list(steps), list(steps.values()), k=STEPS):
            try:
                step()
            except CorruptRecord:
                raise  # nothing here damages a file
            except EoslogError as error:
                self.child.tell("refused", type(error).__name__, str(error))
                if step == self.transact:
                    self._drop()

    def _drop(self) -> None:
        producer, self.producer = self.producer, None
        if producer is not None:
            with contextlib.suppress(EoslogError):
                producer.close(1)

    def renew(self) -> None:
        """Take over a transactional id."""
        self._drop()
        producer = self.log.producer(transactional_id=self.rng.choice(IDS))
        if self.rng.random() < 0.5:
            kept = producer.init_transactions(5, keep_prepared=True)
            self.tokens += [one.token for one in kept]
        else:
            producer.init_transactions(5)
        self.producer = producer

    def transact(self) -> None:
        """Run a transaction, and prepare, commit or abort it."""
        if self.producer is None:
            self.renew()
        producer, rng = self.producer, self.rng
        assert producer is not None
        self.number += 1
        label, mode = f"{self.name}.{self.number}", rng.choice(["inline", "staged"])
        places = rng.sample(PLACES, rng.randint(1, len(PLACES)))
        end = rng.choice(["prepare", "prepare", "prepare", "commit", "abort"])
        delay = rng.choice(DELAYS_MS) if rng.random() < 0.2 else None
        timed = mode == "staged" and delay is not None and end == "prepare"
        grouped = rng.random() < 0.5
        placed = mode == "inline" and rng.random() < 0.2
        size, records, flushed = rng.choice([1, 10, 3000]), rng.choice([2, 4]), rng.random() < 0.5
        self.journal.note(
            "planned", label=label, mode=mode, end=end, timed=timed, grouped=grouped, placed=placed,
            places=[[tp.topic, tp.partition] for tp in places], records=records,
        )  # fmt: skip
        with producer.transaction(mode=mode) as tx:
            for tp in places:
                for at in range(records):
                    tx.produce(
                        tp.topic, f"{label}/{at}".encode(), bytes(size), partition=tp.partition
                    )
                    if flushed:
                        producer.flush()  # so that each record is a batch
            if grouped:
                tx.send_offsets({PLACES[0]: 1}, f"group-{label}")
            if placed:
                tx.set_position(f"position-{label}", 7)
                tx.set_position(SCRATCH, 8)
            if end == "prepare":
                resolver = RESOLVER if not timed and rng.random() < 0.5 else None
                deliver_at = int(time.time() * 1000) + (delay or 0) if timed else None
                state = producer.prepare_transaction({"order": label}, resolver, deliver_at)
                self.journal.note("prepared", label=label, token=state.token)
                self.tokens.append(state.token)
            elif end == "abort":
                tx.abort()
        if end != "prepare":
            self.journal.note("ended", label=label, commit=end == "commit")

    def _token(self) -> tuple[str, str] | None:
        """(label, token) of an undecided transaction of any process."""
        found = self.log.pending()
        for one in found:
            self.journal.note("listed", label=one.meta["order"], token=one.token)
        if not found:
            return None
        one = self.rng.choice(found)
        return one.meta["order"], one.token

    def decide(self) -> None:
        """Decide a transaction, perhaps in a race with others."""
        found = self._token()
        if found is None:
            return
        label, token = found
        for _ in range(self.rng.choice([1, 1, 2])):
            commit = self.rng.random() < 0.5
            self.journal.note("ask", label=label, token=token, commit=commit)
            try:
                self.log.resolve(token, Outcome.COMMIT if commit else Outcome.ABORT)
                self.journal.note("told", label=label, token=token, commit=commit)
            except OutcomeConflict:
                self.journal.note("told", label=label, token=token, commit=not commit)
        self.tokens.append(token)

    def ask(self) -> None:
        """Ask for outcomes."""
        for token in self.tokens[-5:]:
            began = time.monotonic_ns()
            outcome = self.log.outcome(token)
            word = None if outcome is None else outcome.name
            self.journal.note("outcome", token=token, outcome=word, began=began)

    def aside(self) -> None:
        """Make an inline transaction a staged one."""
        for one in self.log.pending():
            if one.mode == "inline" and self.rng.random() < 0.5:
                self.journal.note("aside", label=one.meta["order"], token=one.token)
                InlineLimit(self.log._engine).set_aside(one.token)

    def sweep(self) -> None:
        """Run what the background does seldom."""
        self.log.delete_position(SCRATCH)
        self.log._engine.staged.sweep()
        self.log._engine.transactions.expire()
        self.log._engine.transactions.abort_timed_out()

    def clean(self) -> None:
        """Compact all internal topics, which takes longer than ten other steps."""
        self.log.clean(roll=True)

    def publish(self) -> None:
        """Continue a sequence of records with publishing ids."""
        name, tp = self.rng.choice(NAMES), PLACES[0]
        with self.log.producer(name=name) as producer:
            last = self.log.last_publishing_id(name, tp.topic, tp.partition)
            first = 0 if last is None else last + 1
            again = max(first - 2, 0)  # what a program sends again that does not know its end
            for number in range(again, first + 4):
                producer.produce(
                    tp.topic, f"{name}/{number}".encode(), partition=tp.partition,
                    publishing_id=number,
                )  # fmt: skip
            producer.flush(30)
            self.journal.note("published", name=name, last=first + 3)

    def listen(self) -> None:
        """Be asked about transactions for a moment."""
        rng = random.Random(self.rng.random())

        def answer(one: eoslog.PreparedTransaction) -> Outcome:
            outcome = rng.choice(list(Outcome))
            if outcome is not Outcome.UNKNOWN:
                self.journal.note(
                    "ask", label=one.meta["order"], token=one.token,
                    commit=outcome is Outcome.COMMIT,
                )  # fmt: skip
            return outcome

        end = self.log.register_resolver(
            RESOLVER, answer, first_check=0, interval=0.05, max_checks=2
        )
        time.sleep(0.2)
        end()
