"""The partition log equals its model after any sequence of operations."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from eoslog.storage.log.retention import delete_records
from tests.properties.partition_machine import RealLog, outcome
from tests.reference.codec import MAX_SEQUENCE, sequence_add
from tests.reference.model_log import ModelBatch, ModelLog, ModelProducer

PIDS = st.integers(0, 3)
COUNTS = st.integers(1, 3)


class PartitionMachine(RuleBasedStateMachine):
    """Producers 0 and 1 are transactional, 2 and 3 idempotent; one has no id."""

    @initialize(segment_bytes=st.sampled_from([400, 1500, 1 << 30]))
    def begin(self, segment_bytes: int) -> None:
        self.real = RealLog(segment_bytes=segment_bytes, index_interval_bytes=100)
        self.model = ModelLog()
        self.time = 1_700_000_000_000
        self.forgot = False
        """Reopened: a snapshot holds only the last batch of each producer."""

    def teardown(self) -> None:
        if hasattr(self, "real"):
            self.real.close()
            shutil.rmtree(self.real.directory)

    def batch(self, pid: int, epoch: int, sequence: int, count: int) -> ModelBatch:
        self.time += 1
        records: list[Any] = [
            (self.time, None, b"%d.%d.%d" % (pid, epoch, sequence_add(max(sequence, 0), i)), ())
            for i in range(count)
        ]
        return ModelBatch(-1, count, self.time, pid, epoch, sequence, pid in (0, 1), None, records)

    def both(self, batch: ModelBatch) -> None:
        expected = outcome(lambda: self.model.append(batch))
        found = outcome(lambda: self.real.append(batch))
        allowed = [expected]
        if self.forgot and isinstance(expected, tuple) and expected[2]:
            allowed += [
                (-1, -1, True),
                "OutOfOrderSequence",
            ]  # refused is safe, stored again is not
        if self.forgot and expected == "OutOfOrderSequence" and self.model.stored(batch):
            if isinstance(found, tuple) and found[2]:
                return  # a replay meets what was stored before its producer was forgotten
        assert found in allowed, (found, expected)

    def state(self, pid: int) -> ModelProducer:
        return self.model.producers.get(pid, ModelProducer())

    @rule(pid=PIDS, count=COUNTS)
    def next_batch(self, pid: int, count: int) -> None:
        state = self.state(pid)
        sequence = sequence_add(state.last_sequence, 1) if state.window else 0
        self.both(self.batch(pid, max(state.epoch, 0), sequence, count))

    @rule(pid=PIDS, back=st.integers(0, 6))
    def resend(self, pid: int, back: int) -> None:
        sent = [b for b in self.model.batches if b.producer_id == pid and b.marker is None]
        if len(sent) > back:
            self.both(sent[-1 - back])

    @rule(pid=PIDS, ahead=st.integers(-4, 4), count=COUNTS)
    def wrong_sequence(self, pid: int, ahead: int, count: int) -> None:
        state = self.state(pid)
        if state.window:
            sequence = sequence_add(state.last_sequence, 1 + ahead)
            self.both(self.batch(pid, state.epoch, sequence, count))

    @rule(pid=PIDS, change=st.sampled_from([-1, 1, 2]), sequence=st.sampled_from([0, 0, 1]))
    def other_epoch(self, pid: int, change: int, sequence: int) -> None:
        state = self.state(pid)
        if state.epoch + change >= 0 and state.open_at is None:
            self.both(self.batch(pid, state.epoch + change, sequence, 1))

    @rule(pid=st.integers(2, 3))
    def near_the_wrap(self, pid: int) -> None:
        if not self.state(pid).window and self.state(pid).epoch == -1:
            self.both(self.batch(pid, 0, MAX_SEQUENCE - 1, 1))

    @rule(count=COUNTS)
    def plain(self, count: int) -> None:
        batch = self.batch(-1, -1, -1, count)
        self.both(batch)

    @rule(pid=st.integers(0, 1), commit=st.booleans(), bump=st.sampled_from([1, 1, 1, 0]))
    def end(self, pid: int, commit: bool, bump: int) -> None:
        state = self.state(pid)
        if state.epoch < 0:
            return
        self.time += 1
        epoch, now = state.epoch + bump, self.time
        expected = outcome(lambda: self.model.end(pid, epoch, commit, now))
        found = outcome(lambda: self.real.end(pid, epoch, commit, now))
        assert found == expected

    @rule()
    def roll(self) -> None:
        self.real.log.roll()

    @rule(part=st.floats(0, 1))
    def delete_records(self, part: float) -> None:
        before = int(self.model.stable_end * part)
        self.real.log.flush()
        delete_records(self.real.log, before)
        self.model.delete_records(before)

    @rule(part=st.floats(0, 1), age=st.integers(0, 10))
    def expire(self, part: float, age: int) -> None:
        below = int(self.model.log_end * part)
        self.real.log.expire_producers(below, self.time - age)
        self.model.expire(below, self.time - age)

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        self.real.reopen(clean)
        self.real.log.expire_producers(*self.model.horizon)
        self.forgot = True

    @rule()
    def check_times(self) -> None:
        for batch in self.model.batches[-3:]:
            found = self.real.log.offset_for_time(batch.timestamp, self.real.log.log_end)
            assert found == self.model.offset_for_time(batch.timestamp)

    @invariant()
    def same(self) -> None:
        if hasattr(self, "real"):
            found, expected = self.real.digest(), self.model.digest()
            if self.forgot:  # a replay sees the marker of a producer that was forgotten later on
                producers: Any = found["producers"]
                for pid, (*_, coordinator_epoch, _) in expected["producers"].items():
                    if coordinator_epoch == -1 and pid in producers:
                        epoch, sequence, _, first = producers[pid]
                        producers[pid] = (epoch, sequence, -1, first)
            for key, value in expected.items():
                assert found[key] == value, key


PartitionMachine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestPartitionLog = pytest.mark.slow(PartitionMachine.TestCase)
