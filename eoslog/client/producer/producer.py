"""The producer: writes records, and transactions of records.

The compiled accumulator implements `produce`. This class adds the sender, waiting, and
transactions.

Source: KIP-98, KIP-91, KIP-360, KIP-447, KIP-679, KIP-890; names are confluent-kafka's.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from eoslog._core import RecordAccumulator
from eoslog._util.argument_types import explained_calls
from eoslog._util.arguments import as_seconds
from eoslog.client.consumer_registry import registry_of
from eoslog.client.offset_arguments import Offsets, offsets_of
from eoslog.client.prepared import (
    described,
    prepare_arguments,
    prepared_of,
    staged_of,
    token_of,
)
from eoslog.client.producer.batch_dispatch import GROUP_BYTES, check_test_keys
from eoslog.client.producer.delivery import Delivery
from eoslog.client.producer.encoded_batch import chunks
from eoslog.client.producer.identity import Identity
from eoslog.client.producer.segment_ingest import SegmentIngest
from eoslog.client.producer.sender import Sender
from eoslog.client.producer.shutdown import GATES, producers, remember
from eoslog.client.producer.timed_records import SecondProducer, send_at
from eoslog.client.producer.transactions.manager import (
    PREDECESSORS,
    ClientState,
    TransactionManager,
)
from eoslog.client.producer.transactions.transaction import Group, Transaction, group_metadata_of
from eoslog.client.transaction_link import TransactionLink
from eoslog.config.keys import ProducerConfig
from eoslog.coordinator.positions.records import PositionChange
from eoslog.descriptions import PreparedTransaction, TransactionOutcome
from eoslog.engine.engine import Engine
from eoslog.errors import (
    ConfigError,
    EoslogError,
    IllegalState,
    InvalidTopic,
    RequestTimedOut,
    TransactionAborted,
)
from eoslog.model import INTERNAL_TOPICS, RecordMetadata
from eoslog.shown_paths import get_logger
from eoslog.storage.format import codecs

if TYPE_CHECKING:
    from eoslog.client.producer.transactions.two_phase import TwoPhase, Xid
    from eoslog.options import ProducerOptions

__all__ = ["Delivery", "Producer", "Transaction"]

logger = get_logger("eoslog.client.producer")

_COMMITTING = ClientState.COMMITTING  # bound once: enum attribute lookup costs time per commit
_ABORTABLE = PREDECESSORS[ClientState.ABORTING] - {ClientState.PREPARED}
_OPEN, _CLOSED, _FORKED, _NO_TRANSACTION = GATES


@explained_calls("send", "poll")
class Producer(RecordAccumulator):
    """A client that writes records to topics, optionally in transactions.

    Use `Log.producer`, or create a producer from Kafka's configuration keys::

        with Producer({"log.dir": "shop", "transactional.id": "till-1"}) as producer:
            producer.init_transactions()
            with producer.transaction() as tx:
                tx.produce("orders", value="3 apples", key="ada")

    Thread-safe, but use a transaction only in the thread that began it. Delivery callbacks run in
    `poll`, `flush`, `close` and the calls that end a transaction. After a fork, every method raises
    IllegalState in the child, except `close`, which does nothing.

    Always close a producer. If the program exits without `close`, buffered records are sent for at
    most 5 s in total and an open transaction is aborted. A warning reports records that were lost.

    Args:
        config: Kafka's producer keys, plus `log.dir` (required), the log's directory. The directory
            is created if it is missing, unless `log.create` is False.
        options: the same keys in snake_case, for example `transactional_id="till-1"`. They override
            `config`.

    Raises:
        ConfigError: if a key is unknown, a value is invalid, or keys conflict.
        InvalidTransactionTimeout: if `transaction.timeout.ms` is below 1, or above
            `transaction.max.timeout.ms` of the log for a transactional producer.
        StorageError: if the directory cannot be opened.

    Durability:
        Outside a transaction, a record is as durable as `acks` says once its delivery is reported
        or `flush` returns: 0, no promise; 1, survives a crash of the process; "all", survives power
        loss. In a transaction, records become durable together when `commit_transaction` returns.
    """

    def __init__(
        self, config: Mapping[str, Any] | None = None, /, **options: Unpack[ProducerOptions]
    ) -> None:
        """Check the configuration and open the directory; nothing is written."""
        settings = self._settings_of(config, options)
        if settings.log_dir is None:
            raise ConfigError("log.dir: a producer needs a log directory; set log.dir to its path")
        check_test_keys(settings)
        largest = settings.max_request_size
        if settings.compression_type != "none":  # readers decompress no more
            largest = min(largest, codecs.MAX_DECOMPRESSED)
        super().__init__(
            batch_size=settings.batch_size,
            linger_ms=settings.linger_ms,
            buffer_memory=settings.buffer_memory,
            max_request_size=largest,
            compression=settings.compression_type,
            level=settings.codec_level,
            key_serializer=settings.key_serializer,
            value_serializer=settings.value_serializer,
            partitioner=settings.partitioner_class,
            ignore_keys=settings.partitioner_ignore_keys,
        )
        codecs.require(settings.compression_type)
        self._config = settings
        self._engine = Engine.open(settings.log_dir, create=settings.log_create)
        if settings.transactional_id is not None:
            try:
                self._engine.transactions.check_timeout(settings.transaction_timeout_ms)
            except BaseException:
                self._engine.close()
                raise
        self._transactions: TransactionManager | None = None
        self._calls = threading.RLock()  # one transactional call at a time
        self._committing = False  # set during a commit, whose callbacks may call this producer
        self._second: SecondProducer | None = None  # of records with `deliver_at`
        self._two_phase: TwoPhase | None = None  # created by the first call of PEP 249
        plain = settings.enable_idempotence and settings.transactional_id is None
        self._identity = Identity(self._engine.producer_ids.next_producer_id if plain else None)
        consumers = registry_of(self._engine)
        if settings.transactional_id is not None:
            self._transactions = TransactionManager(
                self._engine, settings.transactional_id, settings.transaction_timeout_ms,
                self._identity, consumers,
            )  # fmt: skip
            self._gate = _NO_TRANSACTION
        self._link = TransactionLink(self._transactions, consumers, self._calls, self._engine.path)
        self._sender = Sender(self, self._engine, settings, self._identity, self._transactions)
        self._ingest = SegmentIngest(
            self._engine, self._identity, self._sender, self._transactions,
            settings.request_timeout_ms,
        )  # fmt: skip
        remember(self)
        # At exit, `shutdown.py` closes the producers that are left.
        self._guard = weakref.finalize(self, self._engine.dropped.note, "", "", True)
        self._guard.atexit = False

    def _settings_of(
        self, config: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> ProducerConfig:
        """Parse the configuration; `NamedProducer` overrides it."""
        settings = ProducerConfig.of(config, **options)
        if settings.name is not None:
            raise ConfigError(
                f"name={settings.name!r}: a Producer has no name; create the producer with "
                "log.producer(name=...) or eoslog.NamedProducer(...)"
            )
        return settings

    # -- hooks of the accumulator -------------------------------------------------------------

    def _describe_topic(self, topic: str) -> tuple[int, int]:
        if topic in INTERNAL_TOPICS:
            raise InvalidTopic(
                f"topic {topic!r}: the topic is internal; produce to a topic of your own"
            )
        info = self._engine.topic(topic)
        return len(info.partitions), info.settings.max_message_bytes

    def _wake(self) -> None:
        self._sender.wake()

    def _wait_for_space(self, size: int) -> None:
        self._sender.make_room(size, self._check_gate)

    def _refuse(self) -> None:
        if self._gate == _NO_TRANSACTION and self._transactions is not None:
            self._transactions.check_open("produce")
        self._check_gate()

    def _check_gate(self) -> None:
        self._check_alive()
        if self._transactions is not None and self._transactions.error is not None:
            raise self._transactions.error

    # -- records ------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        publishing_id: int | None = None,
        deliver_at: int | None = None,
    ) -> Delivery:
        """Buffer a record like `produce`, and return its pending delivery.

        With `deliver_at`, the record is a staged transaction of its own, which the clock commits:
        no reader sees it before that time. `Log.resolve(delivery.token, Outcome.ABORT)` cancels
        it. The call waits until the record is durable. Its delivery is then done, with offset -1.

        Args:
            topic: the topic.
            value: the value, bytes or str, or what the value serializer takes; None is a tombstone.
            key: the key, bytes or str, or what the key serializer takes; None means no key.
            headers: pairs of name and bytes, or a mapping; None means no headers.
            partition: the partition; None lets the partitioner choose.
            timestamp: milliseconds since the epoch; None means now.
            publishing_id: None; a producer with a name takes ids (`NamedProducer`).
            deliver_at: the time in ms since the epoch before which the record does not appear;
                None means now. After a time in the past it appears immediately. It needs no
                `transactional.id`. With one, no transaction may be open.

        Returns:
            The delivery. With `acks=0` it succeeds immediately, with offset -1.

        Raises:
            EoslogError: as `produce`.
            IllegalState: if there is a `deliver_at`, and a transaction is open.
            PolicyViolation: if there is a `deliver_at`, and too many transactions are undecided.
            CommitOutcomeUnknown: if there is a `deliver_at`, and the record may be prepared.

        Durability:
            A record with `deliver_at` survives power loss once the call returns, whatever `acks`
            is.
        """
        if deliver_at is not None:
            record = {"topic": topic, "value": value, "key": key, "headers": headers,
                      "partition": partition, "timestamp": timestamp,
                      "publishing_id": publishing_id}  # fmt: skip
            return self._send_at(record, deliver_at)
        delivery = Delivery()
        self.produce(
            topic,
            value,
            key,
            headers=headers,
            partition=partition,
            timestamp=timestamp,
            on_delivery=delivery if self._config.acks != 0 else None,
            publishing_id=publishing_id,
        )
        if self._config.acks == 0:
            delivery(None, RecordMetadata(topic, -1 if partition is None else partition, -1, -1))
        return delivery

    def _send_at(self, record: dict[str, Any], deliver_at: int) -> Delivery:
        self._check_alive()
        with self._calls:
            if self._transactions is not None:
                return send_at(self, record, deliver_at)
            if self._second is None:
                self._second = SecondProducer(self._engine, self._config, Producer)
            return self._second.send(record, deliver_at)

    def produce_arrow(self, topic: str, data: Any) -> int:
        """Buffer the rows of Arrow data as records.

        Args:
            topic: the topic.
            data: a pyarrow table, record batch or reader, or any object with an Arrow stream. It
                must have the column `value`. It can have the columns `key`, `partition`,
                `timestamp` (ms, or an Arrow timestamp) and `headers` (a list of structs of key and
                value), and no others.

        Returns:
            The number of records that were buffered.

        Raises:
            EoslogError: as `produce`. Rows before the invalid one stay buffered.
        """
        from eoslog.client.arrow.produce import produce_stream

        return produce_stream(self, topic, data)

    def produce_batches(
        self, topic: str, partition: int, batches: Iterable[Any], *, trusted: bool = False
    ) -> int:
        """Append encoded batches, after the records that are buffered for the partition.

        The call returns when all batches are as durable as `acks` says. Producer id, epoch and
        sequence are written into a writable buffer, or else into a copy. The rest of a batch stays
        as it is.

        Args:
            topic: the topic.
            partition: the partition.
            batches: buffers with one or more complete, consecutive v2 batches each. Batches of one
                buffer are appended together, in groups of at most 1 MiB.
            trusted: skip the check of the records; set it only for batches that eoslog encoded.

        Returns:
            The number of records in the batches.

        Raises:
            CorruptRecord: if a buffer has anything but complete batches, or a CRC is wrong.
                Earlier batches may be appended.
            InvalidRecord: if no consumer could read the records (also UnsupportedFormat, and
                KafkaError with INVALID_TIMESTAMP). Earlier batches may be appended.
            EoslogError: if the log rejects a batch. Other batches may be appended; in a
                transaction, abort it.
        """
        count = 0
        for chunk in chunks(topic, partition, batches, GROUP_BYTES, trusted=trusted):
            if self._gate:
                self._refuse()
            self._sender.send_encoded(chunk)
            count += sum(batch.count for batch in chunk)
        return count

    def flush(self, timeout: float | None = None) -> int:
        """Send all buffered records, wait for their delivery, and run delivery callbacks.

        Args:
            timeout: the longest wait in seconds; None waits until every record is delivered or
                has failed.

        Returns:
            The number of records that are still buffered.

        Raises:
            EoslogError: if a record failed that has no callback and no Delivery; the first such
                error.
            Exception: if a delivery callback raised. The next call runs those after it.

        Durability:
            Outside a transaction, the delivered records are as durable as `acks` says.
        """
        self._check_alive()
        deadline = None if timeout is None else time.monotonic() + as_seconds("flush", timeout)
        done = self._sender.flush(deadline)
        if done and self._transactions is not None and self._config.acks == -1:
            self._engine.flush_many(self._transactions.partitions.written())
        self._sender.acks.callbacks.serve()
        error, self._sender.acks.untold = self._sender.acks.untold, None
        if error is not None:
            raise error
        return int(self.buffered)

    def poll(self, timeout: float = 0) -> int:
        """Run delivery callbacks that are due.

        Args:
            timeout: the longest wait for the first callback, in seconds.

        Returns:
            The number of callbacks that ran.

        Raises:
            Exception: if a callback raised. The next call runs those after it.
        """
        self._check_alive()
        timeout = as_seconds("poll", timeout)
        served = self._sender.acks.callbacks.serve()
        if served == 0 and timeout > 0:
            self._sender.acks.callbacks.wait(timeout)
            served = self._sender.acks.callbacks.serve()
        return served

    def partitions_for(self, topic: str) -> list[int]:
        """Return the partition numbers of a topic, in order.

        Raises:
            UnknownTopicOrPartition: if the topic does not exist.
        """
        self._check_alive()
        return sorted(self._engine.topic(topic).partitions)

    def stats(self) -> dict[str, int]:
        """Return counts since the producer was created, and what is buffered now."""
        return {
            "produced": self.produced,
            "buffered": self.buffered,
            "buffered_bytes": self._used,
            **asdict(self._sender.stats),
        }

    # -- transactions -------------------------------------------------------------------------

    @property
    def transactional_id(self) -> str | None:
        """The configured `transactional.id`, or None."""
        return self._config.transactional_id

    @property
    def producer_id(self) -> int:
        """The current producer id; -1 before the first batch or `init_transactions`."""
        return self._identity.producer_id

    @property
    def producer_epoch(self) -> int:
        """The current epoch; -1 before the first batch or `init_transactions`."""
        return self._identity.producer_epoch

    @property
    def transaction_state(self) -> str | None:
        """Kafka's name for the transaction state; None without a `transactional.id`."""
        return None if self._transactions is None else self._transactions.state.value

    @overload
    def init_transactions(
        self, timeout: float | None = None, *, keep_prepared: Literal[False] = False
    ) -> TransactionOutcome | None: ...

    @overload
    def init_transactions(
        self, timeout: float | None = None, *, keep_prepared: Literal[True]
    ) -> list[PreparedTransaction]: ...

    def init_transactions(
        self, timeout: float | None = None, *, keep_prepared: bool = False
    ) -> TransactionOutcome | list[PreparedTransaction] | None:
        """Fence earlier producers of this transactional id and end their transaction.

        Call it once, before the first transaction.

        Args:
            timeout: the longest wait in seconds; None means `max.block.ms`. After a timeout, call
                it again.
            keep_prepared: leave a prepared transaction of this id undecided, and fence the
                producers that prepared or kept it before. Then `begin_transaction` raises
                PreparedTransactionPending until it is decided.

        Returns:
            The outcome of the last transaction of this id that reached the log, or None if there
            is none. A transaction that sent nothing does not reach the log. With `keep_prepared`,
            the undecided transactions of this id, the oldest first.

        Raises:
            PreparedTransactionPending: if a prepared transaction is undecided; not with
                `keep_prepared`.
            RequestTimedOut: if the previous transaction has not ended within the timeout.
            IllegalState: if it was called before, or there is no `transactional.id`.

        Durability:
            The new epoch is durable when the call returns.
        """
        with self._calls:
            manager, deadline = self._manager("init_transactions"), self._deadline(timeout)
            if not keep_prepared:
                return manager.initialize(deadline)
            if not manager.take_over():
                manager.initialize(deadline)
            return prepared_of(self._engine, manager.transactional_id)

    def begin_transaction(self, mode: str = "inline") -> None:
        """Begin a transaction; nothing is written yet.

        Args:
            mode: "inline" writes the records to their topics as they are sent. "staged" leaves
                their topics untouched until the transaction is decided to commit.

        Raises:
            IllegalState: if a transaction is open, or `init_transactions` was not called.
            PreparedTransactionPending: if the prepared transaction of this id is undecided.
            ConfigError: if `mode` is unknown.
            EoslogError: if the producer had a fatal error, such as ProducerFenced.
        """
        staged = staged_of("begin_transaction", mode)
        with self._calls:
            manager = self._manager("begin_transaction")
            manager.begin(self._deadline(None), staged=staged)
            self._gate = _OPEN

    def prepare_transaction(
        self,
        meta: Any = None,
        resolver: str | None = None,
        deliver_at: int | None = None,
        *,
        timeout: float | None = None,
    ) -> PreparedTransaction:
        """Send what is buffered and prepare the transaction, which its token decides.

        No timeout, no crash and no `init_transactions` aborts a prepared transaction. Decide it
        with `commit_transaction`, `abort_transaction`, or from any process with `Log.resolve`. A
        staged transaction is detached: the producer can begin the next one immediately.

        Args:
            meta: a value for the resolver: bytes, or what JSON can encode; at most 4,096 bytes.
            resolver: the name of the resolver that eoslog asks for the outcome.
            deliver_at: the time in ms since the epoch before which no record appears; staged only.
                Without a resolver, the clock commits the transaction at that time.
            timeout: the longest wait in seconds; None means `max.block.ms`.

        Returns:
            The prepared transaction; `str()` of it is its token.

        Raises:
            RequestTimedOut: if the transaction is not prepared within the timeout. Call it again.
            ConfigError: if an argument is invalid.
            PolicyViolation: if it is staged, and too many transactions are undecided
                (`pending.max.count`, `pending.max.bytes`), or its groups have too many partitions
                of offsets. Abort it.
            PreparedTransactionPending: if an undecided staged transaction has an offset of the same
                group and partition. Abort this one, and decide the first.
            CommitFailed: if the group rebalanced, or an earlier staged transaction with offsets of
                the group was aborted. Abort it; the consumer reads the records again.
            IllegalState: if no transaction is open, or the call that timed out had other arguments.
            EoslogError: if a record failed, or the transaction cannot be prepared. Abort it.

        Durability:
            The records, and that they are prepared, survive power loss once the call returns.

        Source: KIP-939 `prepareTransaction`, after which nothing is durable in Kafka.
        """
        with self._calls:
            if self._two_phase is not None:
                self._two_phase.refuse("prepare_transaction")
            manager = self._manager("prepare_transaction")
            manager.check_open("prepare_transaction")
            if self._committing:
                raise IllegalState(
                    "prepare_transaction: called from a delivery callback of a commit; remove the "
                    "call from the callback"
                )
            found = prepare_arguments(meta, resolver, deliver_at, manager.staging is not None)
            deadline = self._deadline(timeout)
            gate, self._gate, self._committing = self._gate, _NO_TRANSACTION, True
            try:
                self._send_all(deadline, "prepare_transaction")
                self._sender.acks.untold = None
                if manager.error is not None:
                    raise manager.error
                token = manager.prepare(deadline, *found)
            except BaseException:
                if manager.error is None and not manager.preparing:
                    self._gate = gate
                raise
            finally:
                self._committing = False
            return described(self._engine, token)

    def complete_transaction(self, state: PreparedTransaction | str) -> None:
        """Commit the prepared transaction of this id if `state` names it; else abort it.

        KIP-939's meaning: `state` is what another system has stored with its own commit.

        Args:
            state: a prepared transaction, or its token.

        Raises:
            UnknownToken: if this log knows no such transaction; nothing was decided.
            IllegalState: if this producer has no prepared transaction.
            OutcomeConflict: if it was decided the other way.
        """
        with self._calls:
            manager = self._manager("complete_transaction")
            token = token_of("complete_transaction", state)
            described(self._engine, token)
            if manager.token is None:
                raise IllegalState(
                    "complete_transaction: this producer has no prepared transaction; call "
                    "prepare_transaction(), or init_transactions(keep_prepared=True)"
                )
            self.end_transaction(token == manager.token)

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Send what is buffered and commit the transaction.

        All of its records and offsets become visible together.

        Args:
            timeout: the longest wait in seconds; None means `max.block.ms`.

        Raises:
            RequestTimedOut: if the outcome is not known within the timeout. Call
                `commit_transaction` again, and no other method.
            IllegalState: if no transaction is open, or a delivery callback of the commit calls it.
            CommitOutcomeUnknown: if the decision was written, but may not be durable. Do not abort
                or rewind: close the producer. The next `init_transactions` of this id returns the
                outcome.
            ProducerFenced: if another producer with this id took over. The transaction is aborted.
            TransactionTimedOut: if the transaction exceeded `transaction.timeout.ms`. It is
                aborted.
            EoslogError: if a record failed, or the transaction cannot commit. Abort it.
            Exception: if a delivery callback raised. The transaction is open: commit again, or
                abort.

        Durability:
            The transaction survives power loss once the call returns.
        """
        with self._calls:
            if self._two_phase is not None:
                self._two_phase.refuse("commit_transaction")
            manager = self._manager("commit_transaction")
            deadline = self._deadline(timeout)
            if manager.error is not None:
                raise manager.error
            if self._committing:
                raise IllegalState(
                    "commit_transaction: called from a delivery callback of the same commit; "
                    "remove the call from the callback"
                )
            gate = self._gate
            manager.transition(_COMMITTING, "commit_transaction")
            self._gate = _NO_TRANSACTION
            self._committing = True
            try:
                self._send_all(deadline, "commit_transaction")
                self._sender.acks.untold = None
                if manager.error is not None:
                    raise manager.error
            except BaseException:
                # The coordinator has not received the commit: the transaction stays open.
                if manager.withdraw_commit() and self._gate == _NO_TRANSACTION:
                    self._gate = gate
                raise
            finally:
                self._committing = False
            manager.end(True, deadline)

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort the transaction.

        Buffered records are dropped. Records that are in the log stay invisible to readers with
        `isolation.level=read_committed`.

        Args:
            timeout: the longest wait in seconds; None means `max.block.ms`.

        Raises:
            RequestTimedOut: if the abort has not ended within the timeout. Call
                `abort_transaction` again, and no other method.
            OutcomeConflict: if `prepare_transaction` failed after it had prepared a staged
                transaction, and a resolver has committed it. The next one can begin.
            ProducerFenced: if another producer with this id took over and aborted the transaction.
                Close this producer.
        """
        with self._calls:
            if self._two_phase is not None:
                self._two_phase.refuse("abort_transaction")
            self._abort(timeout)
            self._sender.acks.callbacks.serve()

    def _abort(self, timeout: float | None) -> None:
        with self._calls:
            manager = self._manager("abort_transaction")
            deadline = self._deadline(timeout)
            manager.transition(ClientState.ABORTING, "abort_transaction")
            self._gate = _NO_TRANSACTION
            dropped = TransactionAborted(
                f"transactional id {manager.transactional_id!r}: the transaction was aborted "
                "before this record was sent; produce it again in a new transaction"
            )
            try:
                self._sender.discard(dropped)
                self._sender.acks.untold = None
                manager.end(False, deadline)
            finally:
                self._link.aborted()

    def end_transaction(self, commit: bool = True, timeout: float | None = None) -> None:
        """Call `commit_transaction` or `abort_transaction`.

        Args:
            commit: True commits, False aborts.
            timeout: the longest wait in seconds; None means `max.block.ms`.

        Raises:
            EoslogError: as the method that is called.
        """
        (self.commit_transaction if commit else self.abort_transaction)(timeout)

    def send_offsets_to_transaction(
        self, offsets: Offsets, group_metadata: Group, timeout: float | None = None
    ) -> None:
        """Commit offsets of a consumer group as part of the transaction.

        The offsets take effect when the transaction commits.

        Args:
            offsets: `[TopicPartition(t, p, next_offset)]`, or a mapping of partitions to next
                offsets or `OffsetAndMetadata`.
            group_metadata: `Consumer.group_metadata()`, or the consumer itself, or the group's id.
                With only an id, members of the group are not fenced. The consumer must not commit
                automatically and must read with `isolation.level=read_committed`.
            timeout: the longest wait in seconds; None means `max.block.ms`.

        Raises:
            CommitFailed: if the group has assigned these partitions to another member. Abort.
            TransactionAbortable: if the timeout passed, or a topic does not exist. Abort.
            ProducerFenced: if another producer with this id took over.
            TransactionTimedOut: if the transaction exceeded `transaction.timeout.ms`.
        """
        with self._calls:
            manager = self._manager("send_offsets_to_transaction")
            manager.check_open("send_offsets_to_transaction")
            named, group = offsets_of(offsets), group_metadata_of(group_metadata, self._link)
            try:
                manager.add_offsets(named, group, self._deadline(timeout), self._buffered_places())
            finally:
                if manager.error is not None:
                    self._gate = _NO_TRANSACTION

    def _set_position(self, change: PositionChange) -> None:
        with self._calls:
            manager = self._manager("set_position")
            try:
                manager.set_position(change, self._deadline(None))
            finally:
                if manager.error is not None:
                    self._gate = _NO_TRANSACTION

    def transaction(self, mode: str = "inline") -> Transaction:
        """Create a context manager that commits at its end and aborts on an exception.

        Args:
            mode: as for `begin_transaction`.

        Raises:
            IllegalState: if there is no `transactional.id`.
            ConfigError: if `mode` is unknown.
        """
        self._manager("transaction")
        staged_of("transaction", mode)
        return Transaction(self, mode)

    # -- two-phase commit by another coordinator, with the names of PEP 249 --------------------

    def xid(self, format_id: int, global_transaction_id: str, branch_qualifier: str) -> Xid:
        """Return the id of a transaction, for `tpc_begin`.

        Args:
            format_id: a number that the coordinator chooses, from 0 to 2^31-1.
            global_transaction_id: the id of the transaction, 1 to 64 bytes as UTF-8.
            branch_qualifier: the part of the transaction, at most 64 bytes.

        Raises:
            ConfigError: if an argument has another type, or no legal length.
        """
        from eoslog.client.producer.transactions.two_phase import Xid

        return Xid.of(format_id, global_transaction_id, branch_qualifier)

    def tpc_begin(self, xid: Any, mode: str = "inline") -> None:
        """Begin a transaction that another system coordinates.

        The calls `tpc_begin`, `tpc_prepare` and `tpc_commit` are those of PEP 249, so that a
        coordinator treats the producer as one more database connection::

            producer.tpc_begin(producer.xid(7, "order-42", "log"))
            producer.produce("orders", "3 apples")
            producer.tpc_prepare()
            producer.tpc_commit()

        Args:
            xid: an id of `xid`, or of another driver.
            mode: as for `begin_transaction`.

        Raises:
            IllegalState: if a transaction is open, or one with this id is prepared.
            PreparedTransactionPending: if a prepared transaction of this producer is undecided.
            ConfigError: if `xid` is not an id, or `mode` is unknown.
            EoslogError: as `begin_transaction`.
        """
        with self._calls:
            self._manager("tpc_begin")
            self._tpc().begin(xid, mode)

    def tpc_prepare(self) -> None:
        """Prepare the transaction of `tpc_begin`.

        After that, only `tpc_commit` or `tpc_rollback` end it, from any process.

        Raises:
            IllegalState: if there is no such transaction, or it is prepared already.
            EoslogError: as `prepare_transaction`. Call `tpc_rollback`.

        Durability:
            The records, and that they are prepared, survive power loss once the call returns.
        """
        with self._calls:
            self._check_alive()
            self._tpc().prepare()

    def tpc_commit(self, xid: Any = None) -> None:
        """Commit a transaction.

        Args:
            xid: the id of a prepared transaction of any process, as `tpc_recover` returns it. None
                means the transaction of `tpc_begin`, which need not be prepared.

        Raises:
            IllegalState: if there is no such transaction, or one is open although `xid` is given.
            UnknownToken: if no prepared transaction has the id `xid`.
            OutcomeConflict: if it was rolled back.
            EoslogError: as `commit_transaction`.

        Durability:
            The transaction survives power loss once the call returns.
        """
        with self._calls:
            self._check_alive()
            self._tpc().end(xid, True)

    def tpc_rollback(self, xid: Any = None) -> None:
        """Roll back a transaction.

        Args:
            xid: as for `tpc_commit`.

        Raises:
            IllegalState: if there is no such transaction, or one is open although `xid` is given.
            UnknownToken: if no prepared transaction has the id `xid`.
            OutcomeConflict: if it was committed.
            EoslogError: as `abort_transaction`.
        """
        with self._calls:
            self._check_alive()
            self._tpc().end(xid, False)

    def tpc_recover(self) -> list[Xid]:
        """Return the ids of the prepared transactions of the log that are undecided.

        They are those of all producers and processes that called `tpc_prepare`, the oldest first.
        """
        with self._calls:
            self._check_alive()
            return self._tpc().recover()

    def _tpc(self) -> TwoPhase:
        if self._two_phase is None:
            from eoslog.client.producer.transactions.two_phase import TwoPhase

            self._two_phase = TwoPhase(self, self._engine)
        return self._two_phase

    def _manager(self, what: str) -> TransactionManager:
        self._check_alive()
        if self._transactions is None:
            raise IllegalState(
                f"{what}: the producer has no transactional.id; create a producer with one"
            )
        if self._transactions.error is not None:
            self._gate = _NO_TRANSACTION  # the sender set the error: records are rejected too
        return self._transactions

    def _deadline(self, timeout: float | None) -> float:
        if timeout is None:
            return time.monotonic() + self._config.max_block_ms / 1000
        return time.monotonic() + as_seconds("timeout", timeout)

    def _send_all(self, deadline: float, what: str) -> None:
        done = self._sender.flush(deadline)
        self._sender.acks.callbacks.serve()
        if not done:
            raise RequestTimedOut(
                f"{what}: {self.buffered} records are not sent yet; call {what} again"
            )

    # -- the end ------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self._gate == _CLOSED:
            raise IllegalState("the producer is closed; create a new one")
        if self._gate == _FORKED:
            raise IllegalState(
                "the producer was inherited through fork; create a new one in this process"
            )

    @property
    def _inherited(self) -> bool:
        """Whether this process got the producer through fork, so that its parent uses it."""
        return self._gate == _FORKED

    def close(self, timeout: float | None = None) -> None:
        """Send buffered records, abort an open transaction, and close the producer.

        A second call does nothing.

        Args:
            timeout: the longest wait for buffered records, in seconds; the rest then fail. None
                waits until every record is delivered or has failed.

        Raises:
            EoslogError: as `flush`. The producer is closed in any case.
            Exception: if a delivery callback raised; the first such exception, after all callbacks
                ran.
        """
        if self._gate in (_CLOSED, _FORKED):
            return
        error: EoslogError | None = None
        deadline = None if timeout is None else time.monotonic() + as_seconds("close", timeout)
        manager = self._transactions
        # Other threads' calls that wait for a coordinator or for callbacks end early.
        self._sender.acks.callbacks.end()
        if manager is not None:
            manager.calls.closing = True
        with self._calls:
            if manager is not None:
                manager.calls.closing = False
            try:
                if self._second is not None:
                    self._second.close()
                if manager is not None and manager.state in _ABORTABLE:
                    # If the abort fails, the next init_transactions or a blocked reader aborts it.
                    with contextlib.suppress(EoslogError):
                        self._abort(timeout)
                self._gate = _CLOSED
                self._link.end()
                self._sender.flush(deadline)
                self._sender.discard(
                    IllegalState(
                        "the producer was closed before this record was sent; call flush() or "
                        "close() without a timeout"
                    )
                )
                error, self._sender.acks.untold = self._sender.acks.untold, None
            finally:
                self._gate = _CLOSED
                self._link.end()
                self._sender.stop()
                producers.discard(self)
                self._guard.detach()
                self._engine.close()
        self._sender.acks.callbacks.serve_all()
        if error is not None:
            raise error

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except EoslogError:
            pass  # the error of the `with` block is the first cause
        except Exception:
            logger.exception("%r: a delivery callback failed, closing the producer", self)

    def __bool__(self) -> bool:
        """Return True, although the length of a producer without buffered records is 0."""
        return True

    def __repr__(self) -> str:
        name = self._config.transactional_id or "idempotent"
        state = ", closed" if self._gate == _CLOSED else ""
        return f"<Producer {name} id={self.producer_id} epoch={self.producer_epoch}{state}>"
