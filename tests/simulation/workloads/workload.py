"""The simulated processes' client calls, chosen by the world's generator.

Each process chooses operations at random until it has done its share: plain idempotent records,
transactions over several partitions with or without a group's offset, commits and aborts,
readers, snapshots, background steps, rolls, reopening. Transactional ids are few and shared, so
processes fence each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import eoslog
from eoslog import Producer, TopicPartition, errors
from eoslog.coordinator.transactions.resolver import GRACE_S
from eoslog.engine.engine import Engine
from eoslog.errors import EoslogError, InvalidProducerEpoch, ProducerFenced
from tests.simulation.machine.world import World
from tests.simulation.oracles import looks
from tests.simulation.oracles.model import Model, Txn
from tests.simulation.workloads.chores import Chores
from tests.simulation.workloads.halves import Halves

TOPICS = {"a": 2, "b": 1}
IDS = ("t0", "t1", "t2")
CONFIG = {
    "segment.bytes": 1200,
    "segment.index.bytes": 240,
    "index.interval.bytes": 100,
    "flush.ms": 10,
}
UNFLUSHED = {**CONFIG, "flush.ms": 3_600_000}
"""For topic a: only callers flush it, so most of what its commits carry is in no file."""
PREALLOCATED = {**CONFIG, "preallocate": True}
"""For topic b, as for the coordinators' topics."""

EXPECTED = (
    errors.ProducerFenced,
    errors.InvalidProducerEpoch,
    errors.InvalidTxnState,
    errors.ConcurrentTransactions,
    errors.RequestTimedOut,
    errors.TransactionAborted,
    errors.LockTimeout,
    errors.PreparedTransactionPending,
)
"""What other processes and time may cause."""


class Client(Chores, Halves):
    """One process's work on a directory.

    Args:
        world: the scheduler.
        model: what it is promised.
        path: the directory.
        name: unique, and part of every value.
        operations: how many it makes.
    """

    def __init__(self, world: World, model: Model, path: str, name: str, operations: int) -> None:
        """Nothing is open yet."""
        self.world, self.model, self.path, self.name = world, model, path, name
        self.rng = world.rng
        self.operations = operations
        self.count = 0
        self.reopens = True
        self.does_chores = False
        self.prepares = False
        self.only_commits = False
        self.options: dict[str, object] = {}
        self.log: eoslog.Log | None = None
        self.plain: Producer | None = None
        self.transactional: dict[str, Producer] = {}

    def __call__(self) -> None:
        """The body of the process."""
        self.reopen()
        choices: list[Callable[[], None]] = [
            self.produce, self.produce, self.produce, self.transact, self.transact, self.transact, self.transact,
            self.read, self.background, self.commit_offset, self.snapshot, self.roll, self.reopen, self.look,
        ]  # fmt: skip
        if self.does_chores:
            choices += [
                self.put_keyed, self.put_keyed, self.put_ageing, self.put_mortal, self.clean, self.clean, self.trim,
                self.shed, self.take_part, self.take_part, self.put_limited, self.put_limited, self.grow,
            ]  # fmt: skip
        if self.prepares:
            choices += [self.prepare] * 4 + [self.decide] * 3
        if self.only_commits:
            choices = [*[self.transact] * 6, self.produce, self.background]
            choices += [*[self.look_later] * 2, *[self.clean_decisions] * 3]
        for _ in range(self.operations):
            try:
                self.rng.choice(choices)()
            except EoslogError as error:
                self.world.alive()
                self.refused(error)
            self.world.alive()
        if self.rng.random() < 0.5:
            self.close()

    def refused(self, error: EoslogError) -> None:
        """Accept an error that other processes or time may cause.

        Any other error is a fault of the disk, or a bug.
        """
        self.model.counts[f"error {type(error).__name__}"] += 1
        if not isinstance(error, EXPECTED) and not self.world.faults.hit:
            self.model.violated(f"O7 {self.name}: {type(error).__name__}: {error}")

    @property
    def engine(self) -> Engine:
        assert self.log is not None
        return self.log._engine

    # -- opening ------------------------------------------------------------------------------------

    def reopen(self) -> None:
        if self.log is not None and (self.rng.random() < 0.6 or not self.reopens):
            return
        self.close()
        self.log = eoslog.open(self.path)
        for topic, partitions in TOPICS.items():
            if topic not in self.log.topics():
                with contextlib.suppress(eoslog.errors.TopicAlreadyExists):
                    config = UNFLUSHED if topic == "a" else PREALLOCATED
                    self.log.create_topic(topic, partitions, config)
        if self.does_chores:
            self.make_topics()

    def close(self) -> None:
        producers = [
            *self.transactional.values(),
            *([self.plain] if self.plain is not None else []),
        ]
        self.transactional.clear()
        self.plain = None
        with contextlib.suppress(EoslogError):
            self.leave()
        for producer in producers:
            with contextlib.suppress(EoslogError):
                producer.close()
        if self.log is not None:
            self.log.close()
            self.log = None

    # -- operations -----------------------------------------------------------------------------------

    def _value(self) -> str:
        self.count += 1
        return f"{self.name}.{self.count}" + "x" * self.rng.choice((0, 0, 10, 120))

    def _place(self) -> tuple[str, int]:
        topic = self.rng.choice(sorted(TOPICS))
        return topic, self.rng.randrange(TOPICS[topic])

    def _producer(self, **options: object) -> Producer:
        return Producer(
            {
                "log.dir": self.path,
                "linger.ms": 0,
                "batch.size": 200,
                "max.block.ms": 3000,
                **self.options,
                **options,
            }
        )

    def _ensure_plain(self) -> Producer:
        if self.plain is None:
            self.plain = self._producer()
        return self.plain

    def produce(self) -> None:
        plain = self._ensure_plain()
        sent = []
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            value, place = self._value(), self._place()
            self.model.sent(f"{self.name} plain", place, value)
            sent.append((place, value, plain.send(place[0], value, partition=place[1])))
        plain.flush()
        self.world.alive()
        for place, value, delivery in sent:
            self.model.acknowledged(place, delivery.result(0).offset, value)

    def transact(self) -> None:
        name = self.rng.choice(IDS)
        producer = self.transactional.get(name)
        if producer is None:
            producer = self.transactional[name] = self._producer(transactional_id=name)
            try:
                producer.init_transactions()
            except EoslogError:
                self._give_up(name)
                raise
            self._check_committed()
        txn = self.model.begin(f"{self.name}:{name}:{self.count}")
        try:
            producer.begin_transaction()
            for _ in range(self.rng.choice((1, 2, 3, 6))):
                value, place = self._value(), self._place()
                self.model.sent(f"{self.name} {name}", place, value, txn)
                producer.produce(place[0], value, partition=place[1])
                if self.rng.random() < 0.2:
                    producer.flush()
            if self.rng.random() < 0.4:
                self._add_position(producer, txn, name)
            if self.rng.random() < 0.2:
                producer.abort_transaction()
                self.world.alive()
                self.model.counts["aborted"] += 1
                return
        except EoslogError:
            self._abort(producer, name)
            raise
        self._commit(producer, txn, name)

    def _add_position(self, producer: Producer, txn: Txn, name: str) -> None:
        self.count += 1
        txn.group, txn.position = f"g-{name}", abs(hash_of(self.name)) % 1000 * 100_000 + self.count
        self.model.positions.setdefault(txn.group, set()).add(txn.position)
        producer.send_offsets_to_transaction({TopicPartition("b", 0): txn.position}, txn.group)

    def _commit(self, producer: Producer, txn: Txn, name: str) -> None:
        txn.outcome = "unknown"
        self.model.committing += 1
        try:
            producer.commit_transaction()
        except (ProducerFenced, InvalidProducerEpoch):
            self.world.alive()
            self.model.ended(txn, "aborted")
            self._give_up(name)
            raise
        except EoslogError:
            self.world.alive()
            self._give_up(name)  # unknown: the next instance tells
            raise
        finally:
            self.model.committing -= 1
        self.world.alive()
        self.model.ended(txn, "committed")

    def _abort(self, producer: Producer, name: str) -> None:
        self.world.alive()
        try:
            producer.abort_transaction()
        except EoslogError:
            self._give_up(name)

    def _give_up(self, name: str) -> None:
        producer = self.transactional.pop(name, None)
        if producer is not None:
            with contextlib.suppress(EoslogError):
                producer.close()

    def read(self) -> None:
        place = self._place()
        records = looks.visible(self.engine.partition(*place))
        self.world.alive()
        self.model.read(place, records)

    def snapshot(self) -> None:
        assert self.log is not None
        cut = self.log.snapshot()
        seen = {
            (tp.topic, tp.partition): looks.visible(
                self.engine.partition(tp.topic, tp.partition), end
            )
            for tp, end in cut.items()
            if tp.topic in TOPICS  # another process may have deleted the others since
        }
        self.world.alive()
        self.model.cut(seen)

    def commit_offset(self) -> None:
        """Outside of transactions, for a group of this process alone."""
        self.count += 1
        group = f"own-{self.name}"
        self.model.positions.setdefault(group, set()).add(self.count)
        self.engine.groups.commit_offsets(
            group, "", -1, {TopicPartition("a", 0): eoslog.model.OffsetAndMetadata(self.count)}
        )
        self.world.alive()
        self.model.floor[group] = self.count

    def background(self) -> None:
        background = self.engine._background
        assert background is not None
        if self.rng.random() < 0.3:
            self.world.sleep(int(self.rng.choice((0.01, 1.0, 15.0, 70.0)) * 1e9))
        background.step()
        for producer in self.transactional.values():
            producer._sender.run_once()

    def roll(self) -> None:
        self.engine.partition(*self._place()).roll()

    def clean_decisions(self) -> None:
        """Compact the coordinator's log, which has the records that no flush has covered."""
        assert self.log is not None
        self.model.cleaned = True
        self.log.clean("__transaction_state", roll=True)

    def look(self) -> None:
        """Complete the due transactions of other processes that block this one."""
        log = self.engine.partition(*self._place())
        self.engine.transactions.resolve_blockers(log)
        self._check_committed()

    def look_later(self) -> None:
        """Complete what the process that decided has left for others."""
        self.world.sleep(2 * int(GRACE_S * 1e9))
        self.look()

    def _check_committed(self) -> None:
        """Check what this process or another one has completed."""
        for topic, partitions in TOPICS.items():
            for partition in range(partitions):
                looks.check_committed(self.engine.partition(topic, partition), self.model)


def hash_of(name: str) -> int:
    """A number from a name, the same in every run."""
    return sum(ord(c) * 31**i for i, c in enumerate(name))
