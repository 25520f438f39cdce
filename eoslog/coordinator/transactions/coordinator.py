"""The transaction coordinator: one method for each of Kafka's requests.

There is no coordinator process: the thread that calls a method is the coordinator during the call.
Each request has three steps:

1. Fold the records of C, the `__transaction_state` partition of the transactional id.
2. Decide, without a lock, from the folded state.
3. Append one record on the condition that C has not changed. If it has, start again at step 1.

So every process gives the same answers, also after a crash.

Only transaction version 2 is implemented: every end of a transaction raises the epoch, and
PREPARE_* and the markers have the new epoch. Kafka answers CONCURRENT_TRANSACTIONS to make a client
wait for markers. In eoslog, the caller first tries to write the markers itself, and gets this error
only if that fails.

Source: Kafka `TransactionCoordinator`; KIP-98, KIP-360, KIP-664, KIP-890.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

from eoslog._util.argument_types import explained_calls
from eoslog._util.arguments import as_items, shown
from eoslog.coordinator.host import HeldOffset, HostLog, TransactionHost
from eoslog.coordinator.retry import again
from eoslog.coordinator.trace import Trace
from eoslog.coordinator.transactions.admin import TransactionAdmin
from eoslog.coordinator.transactions.commit import Claimed, Endings
from eoslog.coordinator.transactions.log import TransactionLogs
from eoslog.coordinator.transactions.markers import MarkerDriver, open_span
from eoslog.coordinator.transactions.prepared import (
    OUTCOME_RETENTION_MS,
    PreparedTransactions,
    StagedPayload,
)
from eoslog.coordinator.transactions.requests import (
    CoordinatorPlace,
    InitResult,
    TransactionMarker,
)
from eoslog.coordinator.transactions.resolver import Resolver
from eoslog.coordinator.transactions.snapshot import snapshot
from eoslog.coordinator.transactions.state import (
    EMPTY,
    NO_EPOCH,
    NO_ID,
    ONGOING,
    Answer,
    Cause,
    TransactionMetadata,
    TransactionState,
)
from eoslog.coordinator.transactions.validation import (
    DECIDE,
    check_expected,
    check_id,
    check_identity,
    check_new_id,
    check_timeout,
    end_txn_answer,
    outcome_of,
)
from eoslog.descriptions import TransactionDescription
from eoslog.error_codes import ErrorCode
from eoslog.errors import (
    ConcurrentTransactions,
    ConfigError,
    KafkaError,
    TransactionAbortable,
)
from eoslog.model import TopicPartition
from eoslog.storage.fs.files import failpoint

MAX_TIMEOUT_MS = 900_000
ID_EXPIRATION_MS = 604_800_000


@explained_calls("add", "verify")
class TransactionCoordinator:
    """Decides transactions, from any thread of any process.

    Thread-safe, and safe with any number of processes.

    Args:
        host: the engine.
        next_producer_id: allocates new producer ids.
        max_timeout_ms: transaction.max.timeout.ms.
        id_expiration_ms: transactional.id.expiration.ms; -1 keeps idle ids forever.
        outcome_retention_ms: outcome.retention.ms; -1 keeps outcomes forever.
        cluster_id: the id of the directory, with which tokens begin.
        staged: delivers the records of staged transactions.
    """

    def __init__(
        self, host: TransactionHost, next_producer_id: Callable[[], int] | None = None, *,
        max_timeout_ms: int = MAX_TIMEOUT_MS, id_expiration_ms: int = ID_EXPIRATION_MS,
        outcome_retention_ms: int = OUTCOME_RETENTION_MS, cluster_id: str = "",
        staged: StagedPayload | None = None,
    ) -> None:  # fmt: skip
        """Create the coordinator's parts; no partition is opened."""
        self._host = host
        self._owner = (host.process_number, host.process_nonce)
        self._new_id = next_producer_id or host.producer_ids.next_producer_id
        self._max_timeout_ms = max_timeout_ms
        self.logs = TransactionLogs(host)
        self.events = Trace()
        self._driver = MarkerDriver(host, self.events)
        self.endings = Endings(host, self._driver, self._new_id)
        self.resolver = Resolver(host, self.logs, self._driver, self.endings)
        self._admin = TransactionAdmin(host, self.logs, id_expiration_ms)
        self._check_identity = partial(check_identity, describe=self._admin.holder)
        self.prepared = PreparedTransactions(
            host, self.logs, self.endings, self.resolver, self._check_identity,
            cluster_id=cluster_id, staged=staged,
            outcome_retention_ms=outcome_retention_ms,
        )  # fmt: skip

    def check_timeout(self, timeout_ms: int) -> None:
        """Check transaction.timeout.ms of a producer.

        Raises:
            InvalidTransactionTimeout: if it is not 1 to transaction.max.timeout.ms.
        """
        check_timeout(timeout_ms, self._max_timeout_ms)

    # -- the requests of a producer

    def find_coordinator(self, key: str, kind: str = "transaction") -> CoordinatorPlace:
        """Return the partition of a transactional id or a group: FindCoordinator (10).

        Raises:
            KafkaError: INVALID_REQUEST, if the kind is unknown or the id is invalid.
        """
        with self.events.request("FindCoordinator", key, kind=kind):
            if kind == "transaction":
                check_new_id(key)
                log = self._host.transaction_partition(key)
            elif kind == "group":
                log = self._host.group_partition(key)
            else:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"find_coordinator: expected the kind 'transaction' or 'group', got {kind!r}",
                )
            return CoordinatorPlace(0, log.topic, log.partition)

    def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int = 60_000,
        producer_id: int = NO_ID, producer_epoch: int = NO_EPOCH,
    ) -> InitResult:  # fmt: skip
        """Return an identity, and end the previous producer's transaction.

        Kafka's InitProducerId (22).

        Before the new epoch is issued, an open transaction is fenced and aborted, and a decided one
        is completed.

        Args:
            transactional_id: None for an idempotent producer, which gets a new producer id.
            timeout_ms: transaction.timeout.ms, 1 to transaction.max.timeout.ms.
            producer_id: the caller's producer id; -1 for a new producer.
            producer_epoch: the caller's epoch; -1 for a new producer.

        Raises:
            ProducerFenced: if another producer has replaced the caller's identity.
            InvalidTransactionTimeout: if `timeout_ms` is out of range.
            ConcurrentTransactions: if markers of the last transaction cannot be written; retriable.
            PreparedTransactionPending: if the last transaction is prepared and not decided.

        Durability:
            The identity is durable on return.
        """
        with self.events.request(
            "InitProducerId", transactional_id, producer_id, producer_epoch
        ) as event:
            if transactional_id is None:
                result = InitResult(self._new_id(), 0)
            else:
                check_new_id(transactional_id)
                if (producer_id == NO_ID) != (producer_epoch == NO_EPOCH):
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST,
                        f"init_producer_id: got producer id {producer_id} with epoch "
                        f"{producer_epoch}; pass both or neither",
                    )
                self.check_timeout(timeout_ms)
                result = self.init(transactional_id, timeout_ms, producer_id, producer_epoch)
            event.update(producer_id=result.producer_id, producer_epoch=result.producer_epoch)
            return result

    def init(
        self, name: str, timeout_ms: int, producer_id: int = NO_ID, epoch: int = NO_EPOCH
    ) -> InitResult:
        """Do the work of `init_producer_id`, also for eoslog's own ids."""
        clog = self.logs.of(name)
        attempts = None
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
                check_expected(current, producer_id, epoch, self._admin.holder)
                self.prepared.check_none(name, current)
                if current.state.preparing:
                    self._driver.await_completion(clog, current)
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
                clog.make_durable(offset)  # before the first batch with this epoch
                failpoint("txn.init.durable")
                clog.refresh()
                outcome = outcome_of(current)
                return InitResult(record.producer_id, record.producer_epoch, outcome)
            attempts = again(attempts, "init of", name)

    def add_partitions_to_txn(
        self, transactional_id: str, producer_id: int, producer_epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> tuple[Any, int]:  # fmt: skip
        """Add partitions to the transaction: AddPartitionsToTxn (24).

        The first partitions start the transaction.

        Returns:
            (C, its end): the condition (`expect`) for the first transactional append to each
            partition. The append fails if the transaction has ended since.

        Raises:
            InvalidProducerIdMapping: if the id is unknown, or has another producer id.
            ProducerFenced: if the epoch is not the current one.
            ConcurrentTransactions: if the last transaction is not complete; retriable.
            UnknownTopicOrPartition: if a partition does not exist; none was added.

        Durability:
            The record is published, not durable. If a power loss takes it, recovery aborts the
            transaction.
        """
        wanted = frozenset(partitions if type(partitions) is set else as_items(partitions))
        with self.events.request(
            "AddPartitionsToTxn", transactional_id, producer_id, producer_epoch, partitions=wanted
        ):
            check_id(transactional_id)
            return self.add(transactional_id, producer_id, producer_epoch, wanted)

    def add_offsets_to_txn(
        self, transactional_id: str, producer_id: int, producer_epoch: int, group_id: str,
        also: Collection[TopicPartition] = (),
    ) -> tuple[Any, int]:  # fmt: skip
        """Add the `__consumer_offsets` partition of a group: AddOffsetsToTxn (25).

        With `also`, the same record adds more partitions, as `add_partitions_to_txn` does.
        """
        with self.events.request(
            "AddOffsetsToTxn", transactional_id, producer_id, producer_epoch, group_id=group_id,
            partitions=also,
        ):  # fmt: skip
            check_id(transactional_id)
            if not group_id:
                raise KafkaError(
                    ErrorCode.INVALID_GROUP_ID,
                    "add_offsets_to_txn: the group id is empty; pass the id of a group",
                )
            log = self._host.group_partition(group_id)
            tp = TopicPartition(log.topic, log.partition)
            return self.add(transactional_id, producer_id, producer_epoch, frozenset({tp, *also}))

    def add(
        self, name: str, producer_id: int, epoch: int, wanted: frozenset[TopicPartition]
    ) -> tuple[Any, int]:
        """Do the work of `add_partitions_to_txn`, also for eoslog's own ids."""
        clog = self.logs.of(name)
        attempts = None
        while True:
            end = clog.refresh()
            current = self._check_identity(name, clog.get(name), producer_id, epoch)
            going_on = current.state is ONGOING
            if going_on and self.resolver.end_overdue(clog, current):
                continue
            self.prepared.check_none(name, current)
            if current.state.preparing:
                self._driver.await_completion(clog, current)
                continue
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
            offset = clog.append(current.ongoing(fresh, owner, now, clog.clock_ns()), end, now)
            if offset is not None:
                failpoint("txn.added")
                return clog.log, offset + 1
            attempts = again(attempts, "adding partitions to", name)

    def _check_free(self, tp: TopicPartition, producer_id: int, epoch: int) -> None:
        """Check that the producer has no older open transaction in a partition.

        Otherwise the new batches would join the older transaction, and end with it.
        """
        log = self._host.partition(tp.topic, tp.partition)
        found = open_span(log, producer_id)
        if found is None or found[0] == epoch:
            return
        if not self.resolver.resolve(log, producer_id, found[0], grace_s=0.0):
            raise ConcurrentTransactions(
                f"{tp}: the transaction of producer {producer_id}, epoch {found[0]}, is still "
                "open; retry"
            )

    def end_txn(
        self, transactional_id: str, producer_id: int, producer_epoch: int, commit: bool,
        spans: Claimed | None = None,
    ) -> tuple[int, int]:  # fmt: skip
        """Commit or abort the transaction: EndTxn (26).

        A retry has the same result, so call it again until it returns.

        Args:
            transactional_id: the producer's transactional id.
            producer_id: the producer's current id.
            producer_epoch: the producer's current epoch.
            commit: True commits, False aborts.
            spans: the first and last offset that the producer wrote to each partition, optionally
                with the topic id. They are checked against the partitions.

        Returns:
            The producer id and epoch for the next transaction, whose sequences start at 0.

        Raises:
            ProducerFenced: if another producer, a timeout or an operator ended the transaction. A
                commit has not taken effect.
            InvalidTxnState: if there is nothing to end, or it ended the other way.
            InvalidProducerIdMapping: if the id is unknown, or has another producer id.
            ConcurrentTransactions: if the decision was made as requested, but markers are missing;
                retriable.
            CommitOutcomeUnknown: if the decision was written, but may not be durable. The next init
                returns the outcome.

        Durability:
            The data and then the decision are durable on return. The markers are published.
        """
        with self.events.request(
            "EndTxn", transactional_id, producer_id, producer_epoch, commit=commit
        ):
            check_id(transactional_id)
            clog = self.logs.of(transactional_id)

            def answer(now: TransactionMetadata | None) -> Answer:
                if now is not None:
                    self.prepared.check_none(transactional_id, now)
                return end_txn_answer(
                    transactional_id, now, producer_id, producer_epoch, commit, self._admin.holder
                )

            def may(now: TransactionMetadata) -> bool:
                # The transaction may time out while its data is flushed.
                return answer(now) is DECIDE and not (
                    commit and self.resolver.end_overdue(clog, now)
                )

            while True:
                record = self.endings.end(clog, transactional_id, commit, may=may, claimed=spans)
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
                    self._driver.await_completion(clog, current)

    # -- the requests of partitions and tools

    def verify_partition_in_txn(
        self, transactional_id: str, producer_id: int, producer_epoch: int, tp: TopicPartition
    ) -> tuple[Any, int]:
        """Check that a partition is in the open transaction.

        Kafka's AddPartitionsToTxn (24), verify only.

        Returns:
            (C, its end): the condition (`expect`) for an append.

        Raises:
            TransactionAbortable: if the partition was not added, or no transaction is open.
            InvalidProducerIdMapping, ProducerFenced, ConcurrentTransactions: as
                `add_partitions_to_txn`.
        """
        check_id(transactional_id)
        return self.verify(transactional_id, producer_id, producer_epoch, tp)

    def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, tp: TopicPartition
    ) -> tuple[Any, int]:
        """Do the work of `verify_partition_in_txn`, also for eoslog's own ids."""
        clog = self.logs.of(transactional_id)
        end = clog.refresh()
        current = self._check_identity(
            transactional_id, clog.get(transactional_id), producer_id, producer_epoch
        )
        if current.state.preparing:
            raise ConcurrentTransactions(
                f"transactional id {transactional_id!r}: the last transaction is not complete, its "
                f"state is {current.state.wire_name}; retry"
            )
        if current.state is not TransactionState.ONGOING or tp not in current.partitions:
            raise TransactionAbortable(
                f"transactional id {transactional_id!r}: {tp} is not in the transaction; abort it"
            )
        return clog.log, end

    def write_txn_markers(
        self, markers: Sequence[TransactionMarker]
    ) -> list[dict[TopicPartition, KafkaError | None]]:
        """End transactions in partitions as an operator: WriteTxnMarkers (27).

        A marker is written only for a decision in C. A commit marker needs the decision to commit.
        An undecided transaction is first aborted in C, as recovery does.

        Returns:
            For each entry, the error of each partition, or None.
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
        """Return the state of some ids, or of all: DescribeTransactions (65).

        Raises:
            KafkaError: INVALID_REQUEST, if an id is invalid.
            TransactionalIdNotFound: if an id is unknown.
        """
        with self.events.request("DescribeTransactions", None):
            return self._admin.describe(ids)

    def list_transactions(
        self, states: Iterable[str] = (), producer_ids: Iterable[int] = (),
        duration_ms: int = -1, id_pattern: str | None = None,
    ) -> list[TransactionDescription]:  # fmt: skip
        """List ids by state name, producer id, time open, and pattern.

        Kafka's ListTransactions (66).
        """
        with self.events.request("ListTransactions", None):
            return self._admin.list(
                as_items(states), as_items(producer_ids), duration_ms, id_pattern
            )

    def owners(self) -> dict[str, tuple[int, int] | None]:
        """Number and nonce of the process that last initialised each id."""
        return self._admin.owners()

    def explain(
        self, transactional_id: str, producer_id: int, producer_epoch: int, code: ErrorCode
    ) -> KafkaError | None:
        """The error that says why a producer's epoch is not current; None if it is."""
        return self._admin.explain(transactional_id, producer_id, producer_epoch, code)

    def abort_transaction(self, transactional_id: str) -> bool:
        """Abort an id's open transaction as an operator, and fence its producer.

        A transaction that is decided already is completed instead.

        Returns:
            Whether a transaction was aborted.

        Raises:
            TransactionalIdNotFound: if the id is unknown.
            PreparedTransactionPending: if the transaction is prepared; only its token decides it.
        """
        with self.events.request("AbortTransaction", transactional_id):
            check_id(transactional_id)
            clog = self.logs.of(transactional_id)
            clog.refresh()
            current = clog.get(transactional_id)
            if current is not None:
                self.prepared.check_none(transactional_id, current)
            return self.resolver.abort_by_hand(transactional_id)

    # -- background work

    def abort_timed_out(self) -> int:
        """Abort every overdue transaction, and complete every decided one.

        Errors of single transactions are traced; the next call tries them again.

        Returns:
            The number of aborted transactions.
        """
        aborted = self.resolver.sweep(
            lambda name, error: self.events.emit("Sweep", name, error=error)
        )
        self._admin.prune()
        return aborted

    def expire(self) -> int:
        """Expire idle ids and old outcomes; return how many."""
        return self._admin.expire() + self.prepared.expire()

    def resolve_blockers(self, log: HostLog) -> int:
        """End overdue or decided transactions that block readers: see `Resolver`."""
        return self.resolver.resolve_blockers(log)

    def held_offsets(self, group_id: str) -> list[HeldOffset]:
        """See `PreparedTransactions.held_offsets`."""
        return self.prepared.held_offsets(group_id)

    def groups_with_held_offsets(self) -> set[str]:
        """See `PreparedTransactions.groups_with_held_offsets`."""
        return self.prepared.groups_with_held_offsets()

    def await_appends(self, group_id: str, timeout_s: float) -> bool:
        """See `PreparedTransactions.await_appends`."""
        return self.prepared.await_appends(group_id, timeout_s)

    def recover_partition(self, log: HostLog) -> int:
        """End transactions in a partition after its recovery: see `Resolver`."""
        return self.resolver.recover_partition(log)

    def snapshot(
        self, partitions: Iterable[TopicPartition], topics: Iterable[str] | None = None
    ) -> dict[TopicPartition, int]:
        """Return end offsets that split no transaction: see `snapshot.py`.

        Args:
            partitions: every partition over which the cut is computed.
            topics: the topics to return; None means all.
        """
        every = as_items(partitions)
        if not all(isinstance(partition, TopicPartition) for partition in every):
            raise ConfigError(f"partitions: expected TopicPartitions, got {shown(every)}")
        return snapshot(self._host, self.logs, self._driver, every, topics and as_items(topics))

    def drive(self, producer_id: int, data_epoch: int) -> bool:
        """Complete a decided transaction; return whether it is complete or unknown."""
        self.logs.all()
        found = self.logs.decision((producer_id, data_epoch))
        return found is None or self._driver.drive(found[0], found[1].decided.key)

    def uncleanable_offset(self, partition: int) -> int:
        """The first offset of a C partition that a decision needs.

        Compaction must keep it and everything after it.
        """
        return self._admin.uncleanable_offset(partition)

    def trace(self, callback: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        """Call a function for every request, with a dict.

        The dict has `request`, its arguments and `error`.

        Returns:
            A function that ends the calls.
        """
        return self.events.add(callback)
