"""The transaction coordinator: one method for each of Kafka's requests.

There is no coordinator process: whoever calls is the coordinator for the length of the call. A
request folds the id's `__transaction_state` partition, decides on what it reads without any lock,
and appends one record on the condition that the partition has not moved; if it has, it reads on and
decides again. So every process, and every process after a crash, gives the same answers.

Only transaction version 2 is spoken: the epoch grows at every end, PREPARE_* and the markers bear
the new one. Where Kafka answers CONCURRENT_TRANSACTIONS to make the client wait for markers, the
caller here first drives them itself, and is told so only if that fails.

Source: Kafka `TransactionCoordinator`; KIP-98, KIP-360, KIP-664, KIP-890.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from eoslog.coordinator.attempts import Attempts
from eoslog.coordinator.host import Host, HostLog
from eoslog.coordinator.markers import MarkerDriver, open_span
from eoslog.coordinator.recovery import Resolver
from eoslog.coordinator.request_checks import (
    DECIDE,
    check_id,
    check_identity,
    check_timeout,
    end_txn_answer,
    outcome_of,
)
from eoslog.coordinator.request_types import Coordinator, InitResult, TransactionMarker
from eoslog.coordinator.snapshot_cut import snapshot
from eoslog.coordinator.trace import Trace
from eoslog.coordinator.transaction_admin import TransactionAdmin
from eoslog.coordinator.transaction_ending import Claimed, Endings
from eoslog.coordinator.transaction_log import TransactionLog, TransactionLogs
from eoslog.coordinator.transaction_state import (
    EMPTY,
    MAX_EPOCH,
    NO_EPOCH,
    NO_ID,
    ONGOING,
    Answer,
    Cause,
    TransactionMetadata,
    TransactionState,
)
from eoslog.error_codes import ErrorCode
from eoslog.errors import (
    ConcurrentTransactions,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdNotFound,
)
from eoslog.model import TopicPartition, TransactionDescription
from eoslog.storage.files import failpoint

MAX_TIMEOUT_MS = 900_000
ID_EXPIRATION_MS = 604_800_000


class TransactionCoordinator:
    """Decides what happens to transactions, from any thread of any process.

    Args:
        host: the engine.
        next_producer_id: hands out fresh producer ids.
        max_timeout_ms: transaction.max.timeout.ms.
        id_expiration_ms: transactional.id.expiration.ms; -1 keeps idle ids for ever.

    Thread-safe, and safe against any number of processes.
    """

    def __init__(
        self, host: Host, next_producer_id: Callable[[], int] | None = None, *,
        max_timeout_ms: int = MAX_TIMEOUT_MS, id_expiration_ms: int = ID_EXPIRATION_MS,
    ) -> None:  # fmt: skip
        """Open nothing yet."""
        self._host = host
        self._new_id = next_producer_id or host.producer_ids.next_producer_id
        self._max_timeout_ms = max_timeout_ms
        self.logs = TransactionLogs(host)
        self.events = Trace()
        self._driver = MarkerDriver(host, self.events)
        self._endings = Endings(host, self._driver, self._new_id)
        self.resolver = Resolver(host, self.logs, self._driver, self._endings)
        self._admin = TransactionAdmin(host, self.logs, id_expiration_ms)

    @property
    def _owner(self) -> tuple[int, int]:
        return (self._host.process_number, self._host.process_nonce)

    # -- the requests of a producer

    def find_coordinator(self, key: str, kind: str = "transaction") -> Coordinator:
        """FindCoordinator (10): the partition that holds a transactional id or a group.

        Raises:
            KafkaError: INVALID_REQUEST for another kind or an empty id.
        """
        with self.events.request("FindCoordinator", key, kind=kind):
            if kind == "transaction":
                check_id(key)
                log = self._host.transaction_partition(key)
            elif kind == "group":
                log = self._host.group_partition(key)
            else:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"no coordinator of kind {kind!r}")
            return Coordinator(0, log.topic, log.partition)

    def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int = 60_000,
        producer_id: int = NO_ID, producer_epoch: int = NO_EPOCH,
    ) -> InitResult:  # fmt: skip
        """InitProducerId (22): an identity, and the end of the previous instance's transaction.

        An open transaction is fenced and aborted, a decided one driven to its end, both before the
        new epoch is handed out.

        Args:
            transactional_id: None for an idempotent producer, which gets a fresh id.
            timeout_ms: transaction.timeout.ms, 1 to transaction.max.timeout.ms.
            producer_id: what the caller has; -1 for a new instance.
            producer_epoch: the same.

        Raises:
            ProducerFenced: the caller's identity was replaced by another instance.
            InvalidTransactionTimeout: timeout_ms is out of range.
            ConcurrentTransactions: the last transaction's markers cannot be written; retriable.

        **Durability**: the identity is durable on return.
        """
        with self.events.request(
            "InitProducerId", transactional_id, producer_id, producer_epoch
        ) as event:
            if transactional_id is None:
                result = InitResult(self._new_id(), 0)
            else:
                check_id(transactional_id)
                if (producer_id == NO_ID) != (producer_epoch == NO_EPOCH):
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST,
                        f"producer id {producer_id} with epoch {producer_epoch}: both or none",
                    )
                check_timeout(timeout_ms, self._max_timeout_ms)
                result = self._init(transactional_id, timeout_ms, producer_id, producer_epoch)
            event.update(producer_id=result.producer_id, producer_epoch=result.producer_epoch)
            return result

    def _init(self, name: str, timeout_ms: int, producer_id: int, epoch: int) -> InitResult:
        clog = self.logs.of(name)
        attempts = Attempts("init of", name)
        new_id = NO_ID
        while True:
            end = clog.refresh()
            current = clog.get(name)
            now = self._host.clock_ms()
            if current is None:
                new_id = self._new_id() if new_id == NO_ID else new_id
                record = TransactionMetadata(
                    name, new_id, 0, timeout_ms, last_update_timestamp=now, owner=self._owner
                )
            else:
                self._check_expected(current, producer_id, epoch)
                if current.state.preparing:
                    self._await_completion(clog, current)
                    continue
                if current.state is TransactionState.ONGOING:
                    # The next init rotates an exhausted id, so the fence need not.
                    self.resolver.abort(clog, current, Cause.FENCED, goes_on=False)
                    continue
                if current.needs_new_id(epoch) and new_id == NO_ID:
                    new_id = self._new_id()
                record = current.initialised(
                    timeout_ms, now, expected_epoch=epoch, new_id=new_id, owner=self._owner
                )
            offset = clog.append(record, end, now)
            if offset is not None:
                failpoint("txn.init.appended")
                clog.make_durable(offset)  # before the first batch that bears the epoch
                failpoint("txn.init.durable")
                clog.refresh()
                outcome = outcome_of(current)
                return InitResult(record.producer_id, record.producer_epoch, outcome)
            attempts.again()

    @staticmethod
    def _check_expected(current: TransactionMetadata, producer_id: int, epoch: int) -> None:
        """The caller's identity, if it names one, must be the id's current or last one."""
        if producer_id == NO_ID:
            return
        ours = producer_id == current.producer_id or current.is_retry_of(producer_id, epoch)
        known = {current.producer_epoch}
        if current.state is not TransactionState.ONGOING:
            known.add(current.last_producer_epoch)  # the answer to the last bump may be lost
        if not ours or epoch not in known:
            raise ProducerFenced(
                f"{current.transactional_id}: expected producer id {producer_id} epoch {epoch}, "
                f"current is {current.producer_id} epoch {current.producer_epoch}"
            )

    def add_partitions_to_txn(
        self, transactional_id: str, producer_id: int, producer_epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> tuple[Any, int]:  # fmt: skip
        """AddPartitionsToTxn (24): the transaction will write there; the first start it.

        Returns:
            (C, its end): to be passed as `expect` of the first transactional append to each
            partition, which thereby fails if the transaction was ended meanwhile.

        Raises:
            InvalidProducerIdMapping: the id is unknown, or has another producer id.
            ProducerFenced: the epoch is not the current one.
            ConcurrentTransactions: the last transaction is not complete yet; retriable.
            UnknownTopicOrPartition: no such partition; none was added.

        **Durability**: published only; recovery aborts what was lost with it.
        """
        wanted = frozenset(partitions)
        with self.events.request(
            "AddPartitionsToTxn", transactional_id, producer_id, producer_epoch, partitions=wanted
        ):
            return self._add(transactional_id, producer_id, producer_epoch, wanted)

    def add_offsets_to_txn(
        self, transactional_id: str, producer_id: int, producer_epoch: int, group_id: str
    ) -> tuple[Any, int]:
        """AddOffsetsToTxn (25): the same for the `__consumer_offsets` partition of a group."""
        with self.events.request(
            "AddOffsetsToTxn", transactional_id, producer_id, producer_epoch, group_id=group_id
        ):
            if not group_id:
                raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
            log = self._host.group_partition(group_id)
            tp = TopicPartition(log.topic, log.partition)
            return self._add(transactional_id, producer_id, producer_epoch, frozenset({tp}))

    def _add(
        self, name: str, producer_id: int, epoch: int, wanted: frozenset[TopicPartition]
    ) -> tuple[Any, int]:
        check_id(name)
        clog = self.logs.of(name)
        attempts = Attempts("adding partitions to", name)
        while True:
            end = clog.refresh()
            current = check_identity(name, clog.get(name), producer_id, epoch)
            if current.state.preparing:
                self._await_completion(clog, current)
                continue
            going_on = current.state is ONGOING
            fresh = wanted - current.partitions if going_on else wanted
            if going_on and not fresh:
                return clog.log, end
            for tp in sorted(fresh):
                self._check_free(tp, producer_id, epoch)
            if current.state is EMPTY:
                clog.make_durable(current.offset)
            owner, me = current.owner, self._owner
            if owner is None or (owner != me and not self._host.process_alive(*owner)):
                owner = me
            now = self._host.clock_ms()
            offset = clog.append(current.ongoing(fresh, owner, now), end, now)
            if offset is not None:
                failpoint("txn.added")
                return clog.log, offset + 1
            attempts.again()

    def _check_free(self, tp: TopicPartition, producer_id: int, epoch: int) -> None:
        """Nothing older of this producer may be open where it is going to write.

        The new batches would join the older transaction, and its end would be theirs.
        """
        log = self._host.partition(tp.topic, tp.partition)
        found = open_span(log, producer_id)
        if found is None or found[0] == epoch:
            return
        if not self.resolver.resolve(log, producer_id, found[0], grace_s=0.0):
            raise ConcurrentTransactions(
                f"{tp}: epoch {found[0]} of producer {producer_id} is still open"
            )

    def end_txn(
        self, transactional_id: str, producer_id: int, producer_epoch: int, commit: bool,
        spans: Claimed | None = None,
    ) -> tuple[int, int]:  # fmt: skip
        """EndTxn (26): commit or abort. Call it again until it answers: a retry gets the same.

        Args:
            transactional_id: who asks.
            producer_id: as handed out last.
            producer_epoch: as handed out last.
            commit: the decision.
            spans: first and last offset the producer wrote to each partition, perhaps with its
                topic's id, checked against what the partitions hold.

        Returns:
            The producer id and epoch for the next transaction; sequences start at 0 with them.

        Raises:
            ProducerFenced: another instance, a timeout or an operator ended the transaction; a
                commit has not taken effect.
            InvalidTxnState: there is nothing to end, or it was ended the other way.
            InvalidProducerIdMapping: the id is unknown, or has another producer id.
            ConcurrentTransactions: decided as asked, markers are still missing; retriable.
            CommitOutcomeUnknown: decided, but not known to be durable; the next init tells.

        **Durability**: data, then decision, are durable on return; markers are published.
        """
        with self.events.request(
            "EndTxn", transactional_id, producer_id, producer_epoch, commit=commit
        ):
            check_id(transactional_id)
            clog = self.logs.of(transactional_id)

            def answer(now: TransactionMetadata | None) -> Answer:
                return end_txn_answer(transactional_id, now, producer_id, producer_epoch, commit)

            def may(now: TransactionMetadata) -> bool:
                return answer(now) is DECIDE

            while True:
                record = self._endings.end(clog, transactional_id, commit, may=may, claimed=spans)
                if record is not None:
                    self._admin.prune_now_and_then()
                    rotated = record.next_producer_id
                    return (
                        (rotated, 0)
                        if rotated != NO_ID
                        else (record.producer_id, record.producer_epoch)
                    )
                current = clog.get(transactional_id)
                found = answer(current)
                assert current is not None
                if found is Answer.DONE:
                    return current.producer_id, current.producer_epoch
                if found is Answer.WAIT:
                    self._await_completion(clog, current)

    def _await_completion(self, clog: TransactionLog, current: TransactionMetadata) -> None:
        """Drive what is decided, as Kafka's clients wait for it."""
        assert current.decided is not None
        key = current.decided.key
        if not self._driver.drive(clog, key):
            raise ConcurrentTransactions(
                f"{current.transactional_id}: {current.state.wire_name} of epoch {key[1]} is not "
                f"complete: {self._driver.failure(key)}"
            )

    # -- the requests of partitions and tools

    def verify_partition_in_txn(
        self, transactional_id: str, producer_id: int, producer_epoch: int, tp: TopicPartition
    ) -> tuple[Any, int]:
        """AddPartitionsToTxn, verify only: is the transaction open, and is the partition in it?

        Returns:
            (C, its end), to be passed as `expect`.

        Raises:
            TransactionAbortable: the partition was never added, or nothing is open.
            InvalidProducerIdMapping, ProducerFenced, ConcurrentTransactions: as for adding.
        """
        check_id(transactional_id)
        clog = self.logs.of(transactional_id)
        end = clog.refresh()
        current = check_identity(
            transactional_id, clog.get(transactional_id), producer_id, producer_epoch
        )
        if current.state.preparing:
            raise ConcurrentTransactions(f"{transactional_id} is in {current.state.wire_name}")
        if current.state is not TransactionState.ONGOING or tp not in current.partitions:
            raise TransactionAbortable(f"{tp} is not in the transaction of {transactional_id}")
        return clog.log, end

    def write_txn_markers(
        self, markers: Sequence[TransactionMarker]
    ) -> list[dict[TopicPartition, KafkaError | None]]:
        """WriteTxnMarkers (27): end transactions in partitions, by hand.

        A marker is never written on somebody's word: a commit needs the decision in C, and an abort
        of what nobody decided is decided in C first, as recovery does it.

        Returns:
            For each entry, each partition's error or None.
        """
        answers = []
        for marker in markers:
            name = f"{marker.producer_id}:{marker.producer_epoch}"
            with self.events.request("WriteTxnMarkers", name, commit=marker.commit):
                answers.append(
                    {tp: self.resolver.end_by_hand(*marker[:3], tp) for tp in marker.partitions}
                )
        return answers

    def describe_transactions(
        self, ids: Iterable[str] | None = None
    ) -> list[TransactionDescription]:
        """DescribeTransactions (65): the state of ids, or of all.

        Raises:
            KafkaError: INVALID_REQUEST for an empty id.
            TransactionalIdNotFound: an id is unknown.
        """
        with self.events.request("DescribeTransactions", None):
            return self._admin.describe(ids)

    def list_transactions(
        self, states: Iterable[str] = (), producer_ids: Iterable[int] = (),
        duration_ms: int = -1, id_pattern: str | None = None,
    ) -> list[TransactionDescription]:  # fmt: skip
        """ListTransactions (66): ids by Kafka's state names, producer ids, time open, regex."""
        with self.events.request("ListTransactions", None):
            return self._admin.list(states, producer_ids, duration_ms, id_pattern)

    def abort_transaction(self, transactional_id: str) -> bool:
        """Abort an id's open transaction as an operator; its producer is fenced.

        Returns:
            Whether there was one. What is decided already is driven to its end.

        Raises:
            TransactionalIdNotFound: no such id.
        """
        with self.events.request("AbortTransaction", transactional_id):
            check_id(transactional_id)
            clog = self.logs.of(transactional_id)
            while True:
                clog.refresh()
                current = clog.get(transactional_id)
                if current is None:
                    raise TransactionalIdNotFound(f"no transactional id {transactional_id!r}")
                if current.state.preparing:
                    self._await_completion(clog, current)
                if (
                    current.state is not TransactionState.ONGOING
                    or current.producer_epoch >= MAX_EPOCH
                ):
                    return False
                if self.resolver.abort(clog, current, Cause.OPERATOR):
                    return True

    # -- what happens now and then

    def abort_timed_out(self) -> int:
        """Abort every transaction that is due, drive every decided one; how many were aborted.

        Errors of single transactions are traced, and met again the next time.
        """
        aborted = self.resolver.sweep(
            lambda name, error: self.events.emit("Sweep", name, error=error)
        )
        self._admin.prune()
        return aborted

    def expire(self) -> int:
        """Forget ids that were idle for transactional.id.expiration.ms; how many."""
        return self._admin.expire()

    def resolve_blockers(self, log: HostLog) -> int:
        """What a reader calls that waits at a partition's last stable offset: see `recovery.py`."""
        return self.resolver.resolve_blockers(log)

    def recover_partition(self, log: HostLog) -> int:
        """The engine calls this for a partition recovered at a session start: `recovery.py`."""
        return self.resolver.recover_partition(log)

    def snapshot(
        self, partitions: Iterable[TopicPartition], topics: Iterable[str] | None = None
    ) -> dict[TopicPartition, int]:
        """End offsets that divide no transaction: see `snapshot_cut.py`.

        Args:
            partitions: every partition that the cut is computed over.
            topics: the topics to answer for; None: all of them.
        """
        return snapshot(self._host, self.logs, self._driver, partitions, topics)

    def drive(self, producer_id: int, data_epoch: int) -> bool:
        """Drive a decided transaction; whether it is complete (or nothing of it is known)."""
        self.logs.all()
        found = self.logs.decision((producer_id, data_epoch))
        return found is None or self._driver.drive(found[0], found[1].decided.key)

    def uncleanable_offset(self, partition: int) -> int:
        """The first offset of a C partition that compaction must keep, for a decision's sake."""
        return self._admin.uncleanable_offset(partition)

    def trace(self, callback: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        """Hear of every request as a dict with `request`, who asked, what for, and `error`.

        Returns:
            A function that ends it.
        """
        return self.events.add(callback)
