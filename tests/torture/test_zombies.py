"""A message of an old epoch, sent again at any later point, changes nothing.

A producer's messages (registrations, batches, markers, ends, inits) are kept with the identity
that sent them. After each later step all of the old ones arrive again, as a delayed network or
a stopped process would bring them. They are rejected, or answered as before. No partition
grows, the open transaction stays open, and readers see what they saw.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog._core import build_marker
from eoslog.errors import EoslogError
from eoslog.model import AppendOrigin
from tests.rows.tools import NOW, data, values

TPS = [TopicPartition("t", 0), TopicPartition("t", 1)]
Message = Callable[[], Any]


class Play:
    """One transactional id's life, and everything that it ever sent."""

    def __init__(self, log: Any, rng: random.Random) -> None:
        self.engine, self.log, self.rng = log._engine, log, rng
        self.coordinator = log._engine.transactions
        self.sent: dict[tuple[int, int], list[Message]] = {}
        self.replayed = 0
        self.open = False
        self.init()

    @property
    def identity(self) -> tuple[int, int]:
        return self.producer_id, self.epoch

    def keep(self, message: Message) -> None:
        self.sent.setdefault(self.identity, []).append(message)

    def init(self) -> None:
        """A new instance."""
        result = self.coordinator.init_producer_id("z")
        self.producer_id, self.epoch = result.producer_id, result.producer_epoch
        self.sequence, self.open = [0, 0], False
        pid, epoch = self.identity
        self.keep(lambda: self.coordinator.init_producer_id("z", 60_000, pid, epoch))

    def write(self) -> None:
        """Register, then a batch into each partition."""
        pid, epoch = self.identity
        expect = self.coordinator.add_partitions_to_txn("z", pid, epoch, TPS)
        self.keep(lambda: self.coordinator.add_partitions_to_txn("z", pid, epoch, TPS))
        self.open = True
        for number, tp in enumerate(TPS):
            batch = data(
                [f"{number}.{pid}.{epoch}.{self.sequence[number]}"],
                producer_id=pid, epoch=epoch, sequence=self.sequence[number], transactional=True,
            )  # fmt: skip
            self.sequence[number] += 1
            partition = self.engine.partition(tp.topic, tp.partition)
            assert partition.append(batch, expect=[expect]) is not None
            self.keep(lambda p=partition, b=batch: p.append(b))
            self.keep(lambda p=partition, b=batch: p.append(b, expect=[(p, p.log_end)]))
            for commit in (True, False):
                marker = build_marker(pid, epoch, commit, timestamp=NOW)
                self.keep(
                    lambda p=partition, m=marker: p.append(m, origin=AppendOrigin.COORDINATOR)
                )

    def end(self) -> None:
        """Commit or abort, which gives the next epoch."""
        pid, epoch = self.identity
        for partition in TPS:
            self.engine.partition(partition.topic, partition.partition).flush()
        commit = self.rng.random() < 0.6
        for decision in (True, False):
            self.keep(lambda d=decision: self.coordinator.end_txn("z", pid, epoch, d))
        self.producer_id, self.epoch = self.coordinator.end_txn("z", pid, epoch, commit)
        self.sequence, self.open = [0, 0], False

    def state(self) -> Any:
        logs = [self.engine.partition(tp.topic, tp.partition) for tp in TPS]
        found = next(t for t in self.log.transactions(False) if t.transactional_id == "z")
        return (
            [log.log_end for log in logs],
            [log.open_transactions() for log in logs],
            # A repeated init of the identity before is answered with the one that followed it.
            (str(found.state) == "Ongoing", found.producer_id, found.producer_epoch),
            values(self.log),
        )

    def zombies(self) -> None:
        """All messages of all identities but the current one, in random order."""
        for log in [self.engine.partition(tp.topic, tp.partition) for tp in TPS]:
            log.flush()
        before = self.state()
        old = [m for identity, kept in self.sent.items() if identity != self.identity for m in kept]
        self.rng.shuffle(old)
        for message in old:
            self.replayed += 1
            try:
                answer = message()
            except EoslogError:
                continue
            if hasattr(answer, "duplicate"):
                assert answer.duplicate or answer.base_offset < before[0][0] + before[0][1]
        assert self.state() == before


@pytest.mark.parametrize("seed", range(4))
def test_no_message_of_an_old_epoch_changes_anything(tmp_path, seed):
    with eoslog.open(tmp_path / "log", durability="os") as log:
        log.create_topic("t", 2)
        play = Play(log, random.Random(seed))
        for _ in range(24):
            step = play.rng.choice([play.write, play.write, play.end, play.init])
            if step == play.end and not play.open:
                step = play.write
            step()
            play.zombies()
        assert play.replayed > 400
        if play.open:
            play.end()
        seen = values(log)
        assert len(seen) == len(set(seen))
        assert log.check(full=True).ok
