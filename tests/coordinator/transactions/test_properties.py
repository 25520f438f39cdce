"""Random requests, kills and power losses against a table and two sets.

The model knows nothing of logs, folds or markers. An id has a producer id, an epoch and a
state. An answer comes from the table of `test_state.py`. A value is committed or it is not.
Every partition must agree with the model at every step, and be settled at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from eoslog import errors
from eoslog.coordinator.transactions.coordinator import TransactionCoordinator
from eoslog.coordinator.transactions.records import decode_key, decode_value
from eoslog.coordinator.transactions.state import VALID_PREVIOUS, TransactionMetadata
from eoslog.model import TopicPartition
from tests.coordinator.transactions.test_recovery import put
from tests.coordinator.transactions.test_state import CELLS
from tests.coordinator.world import A0, A1, B0, World, Writer
from tests.reference.memory_engine import MemoryProcess

PARTITIONS = [A0, A1, B0]
TABLE = {(state, commit, retried): cell for state, commit, retried, cell in CELLS}
REFUSALS = {"FENCED": errors.ProducerFenced, "INVALID": errors.InvalidTxnState}
LAST = 32766


@dataclass
class ModelId:
    """A transactional id in the words of the rules."""

    producer_id: int
    epoch: int
    state: str = "Empty"
    previous: int = -1
    values: list[tuple[TopicPartition, bytes]] = field(default_factory=list)

    def bump(self, fresh: int | None) -> None:
        """The next epoch, or the next producer id after the last epoch."""
        if self.epoch >= LAST:
            assert fresh is not None
            self.previous, self.producer_id, self.epoch = self.producer_id, fresh, 0
        else:
            self.epoch += 1

    def relation(self, producer_id: int, epoch: int) -> str:
        """The identity of a request: current, previous, older, or of another producer."""
        if (producer_id, epoch) == (self.producer_id, self.epoch):
            return "current"
        if producer_id == self.producer_id:
            return "retried" if epoch + 1 == self.epoch else "fenced"
        if (producer_id, epoch, self.epoch) == (self.previous, LAST, 0):
            return "retried"
        return "unmapped"


@dataclass
class Instance:
    """A producer in some process, with the identity it believes in."""

    writer: Writer
    process: MemoryProcess
    ended: tuple[int, int] | None = None
    """The identity of its last end, for a retry."""


class Transactions(RuleBasedStateMachine):
    """Two ids (one close to its last epoch) in two processes over one directory."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.directory.transaction_count = 2
        put(self.world, TransactionMetadata("old", 500, LAST - 3, 60_000))
        self.ids = {"old": ModelId(500, LAST - 3)}
        self.processes = [(self.world.process, self.world.coordinator), self.world.open()]
        self.instances: list[Instance] = []
        self.committed: set[bytes] = set()
        self.count = 0

    # -- requests

    @rule(name=st.sampled_from(["new", "old"]), where=st.integers(0, 1))
    def init(self, name: str, where: int) -> None:
        process, coordinator = self.processes[where]
        writer = Writer(self.world, name, coordinator)
        model = self.ids.get(name)
        if model is None:
            assert writer.epoch == 0
            self.ids[name] = ModelId(writer.producer_id, 0)
        else:
            if model.state == "Ongoing":
                assert writer.outcome is not None
                assert not writer.outcome.committed
                if model.epoch < LAST:
                    model.epoch += 1  # the fence; at the last epoch the init rotates all the same
                model.values.clear()
            model.bump(writer.producer_id)
            model.state = "Empty"
            assert (writer.producer_id, writer.epoch) == (model.producer_id, model.epoch)
        self.instances.append(Instance(writer, process))

    @precondition(lambda self: self.instances)
    @rule(data=st.data(), tp=st.sampled_from(PARTITIONS))
    def write(self, data: st.DataObject, tp: TopicPartition) -> None:
        writer = data.draw(st.sampled_from(self.instances)).writer
        model = self.ids[writer.name]
        relation = model.relation(writer.producer_id, writer.epoch)
        value = b"%d" % self.count
        self.count += 1
        if relation == "current":
            writer.write(tp, value)
            if model.state != "Ongoing":
                model.values = []
            model.state = "Ongoing"
            model.values.append((tp, value))
        elif relation == "unmapped":
            with pytest.raises(errors.InvalidProducerIdMapping):
                writer.write(tp, value)
        else:
            with pytest.raises((errors.ProducerFenced, errors.InvalidProducerIdMapping)):
                writer.write(tp, value)

    @precondition(lambda self: self.instances)
    @rule(data=st.data(), commit=st.booleans(), again=st.booleans())
    def end(self, data: st.DataObject, commit: bool, again: bool) -> None:
        instance = data.draw(st.sampled_from(self.instances))
        writer = instance.writer
        model = self.ids[writer.name]
        asks = instance.ended if again and instance.ended else (writer.producer_id, writer.epoch)
        relation = model.relation(*asks)
        end = lambda: writer.coordinator.end_txn(writer.name, *asks, commit)  # noqa: E731
        if relation == "unmapped":
            with pytest.raises(errors.InvalidProducerIdMapping):
                end()
            return
        cell = (
            "FENCED" if relation == "fenced" else TABLE[model.state, commit, relation == "retried"]
        )
        if cell in REFUSALS:
            with pytest.raises(REFUSALS[cell]):
                end()
            return
        answer = end()
        if cell == "decide":
            if commit:
                self.committed |= {value for _, value in model.values}
            model.values = []
            model.bump(answer[0])
            model.state = "CompleteCommit" if commit else "CompleteAbort"
        assert answer == (model.producer_id, model.epoch)
        instance.ended = asks
        writer.become(*answer)

    # -- what happens to it

    @rule(where=st.integers(0, 1))
    def rival_moves_the_log(self, where: int) -> None:
        """Another id's record precedes the next append to the coordinator's log.

        Everything is therefore decided twice.
        """
        _, coordinator = self.processes[where]
        for log in self.world.process.transaction_partitions():
            name = next(n for n in ("x", "y", "z", "w") if self.world.clog(n) is log)
            log.before_append = lambda n=name: coordinator.init_producer_id(n)

    @rule(data=st.data())
    def flush(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(list(self.world.directory.logs.values()))).flush()

    @rule(where=st.integers(0, 1))
    def sweep(self, where: int) -> None:
        self._aborted(self.processes[where][1].abort_timed_out())

    @rule(where=st.integers(0, 1), tp=st.sampled_from(PARTITIONS))
    def reader_waits(self, where: int, tp: TopicPartition) -> None:
        self.processes[where][1].resolve_blockers(self.world.log(tp))
        self._sync_aborted()

    @rule(where=st.integers(0, 1))
    def kill(self, where: int) -> None:
        process, _ = self.processes[where]
        process.kill()
        self.instances = [i for i in self.instances if i.process is not process]
        self.processes[where] = self.world.open()

    @rule(kept=st.dictionaries(st.sampled_from(PARTITIONS), st.integers(0, 60)))
    def power_cut(self, kept: dict[TopicPartition, int]) -> None:
        self.world.directory.power_cut(kept)
        self.instances.clear()
        self.processes = [self.world.open(), self.world.open()]
        _, coordinator = self.processes[0]
        for tp in PARTITIONS:
            coordinator.recover_partition(self.world.log(tp))
        coordinator.abort_timed_out()
        for name, model in self.ids.items():
            self._take_over(coordinator, name, model)

    def _take_over(self, coordinator: TransactionCoordinator, name: str, model: ModelId) -> None:
        """Check that a power loss aborts an open transaction or removes it completely.

        Nothing else has changed.
        """
        found = coordinator.logs.of(name).get(name)
        assert found is not None, "the identity is durable"
        was, model.values = model.state, []
        now = (found.producer_id, found.producer_epoch)
        if was != "Ongoing" or found.state.wire_name != "CompleteAbort":
            gone = was == "Ongoing" and found.state.wire_name != "Ongoing"
            assert now == (model.producer_id, model.epoch)
            assert gone or found.state.wire_name in (was, was.replace("Complete", "Prepare"))
            if not gone:
                return
        elif now != (model.producer_id, model.epoch):
            model.bump(found.producer_id)
            assert now == (model.producer_id, model.epoch)
        model.state = found.state.wire_name

    def _aborted(self, count: int) -> None:
        assert count == self._sync_aborted()

    def _sync_aborted(self) -> int:
        """Only ids whose owner is dead may have been aborted; take that over."""
        count = 0
        for name, model in self.ids.items():
            log = self.processes[0][1].logs.of(name)
            log.refresh()
            found = log.get(name)
            assert found is not None
            if model.state == "Ongoing" and found.state.wire_name != "Ongoing":
                assert found.state.wire_name == "CompleteAbort"
                assert found.owner is not None
                assert not self.world.process.process_alive(*found.owner)
                model.values = []
                model.bump(found.producer_id)
                model.state = "CompleteAbort"
                count += 1
        return count

    # -- what must hold

    @invariant()
    def only_committed_values_are_visible_and_all_of_them(self) -> None:
        seen = [v for tp in PARTITIONS for v in self.world.values(tp)]
        assert len(seen) == len(set(seen))
        assert set(seen) <= self.committed
        hidden = self.committed - set(seen)
        stable = {tp: self.world.log(tp).stable_end for tp in PARTITIONS}
        below = {
            v for tp in PARTITIONS
            for _, v in self.world.log(tp).model.visible("read_uncommitted", end=stable[tp])
        }  # fmt: skip
        assert not hidden & below, "committed, below the stable end, and not visible"

    @invariant()
    def every_log_tells_a_legal_story(self) -> None:
        for log in self.world.process.transaction_partitions():
            last: dict[str, TransactionMetadata] = {}
            for batch in log.stored:
                for offset, _, key, value, _ in batch.records():
                    name = decode_key(key)
                    found = decode_value(name, value, offset)
                    before = last.get(name)
                    if before is not None and not name.startswith("__"):
                        assert before.state in VALID_PREVIOUS[found.state]
                        if found.producer_id == before.producer_id:
                            assert found.producer_epoch >= before.producer_epoch
                    last[name] = found

    def teardown(self) -> None:
        for process, _ in self.processes:
            process.kill()
        _, coordinator = self.world.open()
        coordinator.abort_timed_out()
        for tp in PARTITIONS:
            coordinator.recover_partition(self.world.log(tp))
            assert self.world.log(tp).open_transactions() == []
        assert {v for tp in PARTITIONS for v in self.world.values(tp)} == self.committed


TestTransactions = pytest.mark.slow(Transactions.TestCase)
TestTransactions.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
