"""Producer: records in, exactly once where it is asked for.

`produce` itself is the compiled accumulator's: this class adds the sender, the waiting, and the
transactions around it.

Source: KIP-98, KIP-91, KIP-360, KIP-447, KIP-679, KIP-890; names are confluent-kafka's.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from eoslog._core import RecordAccumulator
from eoslog.arguments import as_seconds
from eoslog.client.bound_consumers import BoundConsumers
from eoslog.client.delivery import Delivery
from eoslog.client.encoded_batch import chunks
from eoslog.client.identity import Identity
from eoslog.client.offsets import Offsets, offsets_of
from eoslog.client.segment_adoption import SegmentAdoption
from eoslog.client.sender import GROUP_BYTES, Sender
from eoslog.client.transaction_scope import Group, Transaction, group_metadata_of
from eoslog.client.transactions import PREDECESSORS, ClientState, TransactionManager
from eoslog.client.unclosed import GATES, producers, remember
from eoslog.config import ProducerConfig
from eoslog.engine import Engine
from eoslog.errors import (
    ConfigError,
    EoslogError,
    IllegalState,
    InvalidTopic,
    RequestTimedOut,
    TransactionAborted,
)
from eoslog.model import INTERNAL_TOPICS, RecordMetadata, TransactionOutcome
from eoslog.storage import codecs

__all__ = ["Delivery", "Producer", "Transaction"]

logger = logging.getLogger("eoslog.client.producer")

_COMMITTING = ClientState.COMMITTING  # looked up at each commit
_ABORTABLE = PREDECESSORS[ClientState.ABORTING]
_OPEN, _CLOSED, _FORKED, _NO_TRANSACTION = GATES


class Producer(SegmentAdoption, BoundConsumers, RecordAccumulator):
    """Writes records to the topics of a directory.

    Thread-safe; a transaction belongs to one thread. Dead in a forked child: every call raises
    IllegalState there, and closing it does nothing. A program that ends without `close` sends what
    it holds, for 5 s at most, and aborts an open transaction (`unclosed.py`).

    Args:
        config: Kafka's keys; `log.dir` says which directory, which is made unless `create=False`.
        options: more keys in snake_case, as `transactional_id="etl-1"`.

    Raises:
        ConfigError: an unknown key, a wrong value, or keys that conflict.
        StorageError: the directory cannot be opened.

    **Durability**: a record has what `acks` promises when its delivery says so, or when `flush`
    returned: 0 nothing, 1 survives the death of the process, all survives power loss. Inside a
    transaction deliveries say that the record is in the log; `commit_transaction` makes it durable.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **options: Any) -> None:
        """Open the directory; no id is taken and nothing is written yet."""
        settings = ProducerConfig.of(config, **options)
        if settings.log_dir is None:
            raise ConfigError("log.dir: a producer needs the directory of a log")
        super().__init__(
            batch_size=settings.batch_size,
            linger_ms=settings.linger_ms,
            buffer_memory=settings.buffer_memory,
            max_request_size=settings.max_request_size,
            compression=settings.compression_type,
            level=settings.codec_level,
            key_serializer=settings.key_serializer,
            value_serializer=settings.value_serializer,
            partitioner=settings.partitioner_class,
            ignore_keys=settings.partitioner_ignore_keys,
        )
        codecs.require(settings.compression_type)
        self.config = settings
        self._engine = Engine.open(settings.log_dir, create=settings.log_create)
        self._transactions: TransactionManager | None = None
        self._consumers = weakref.WeakValueDictionary()
        self._calls = threading.RLock()  # transactional calls, one at a time
        self._committing = False  # a delivery callback may call in between
        plain = settings.enable_idempotence and settings.transactional_id is None
        self._identity = Identity(self._engine.producer_ids.next_producer_id if plain else None)
        if settings.transactional_id is not None:
            self._transactions = TransactionManager(
                self._engine, settings.transactional_id, settings.transaction_timeout_ms,
                self._identity,
            )  # fmt: skip
            self.gate = _NO_TRANSACTION
        self._sender = Sender(self, self._engine, settings, self._identity, self._transactions)
        remember(self)

    # -- hooks of the accumulator -------------------------------------------------------------

    def _describe_topic(self, topic: str) -> tuple[int, int]:
        if topic in INTERNAL_TOPICS:
            raise InvalidTopic(f"{topic!r} is an internal topic")
        info = self._engine.topic(topic)
        return len(info.partitions), info.settings.max_message_bytes

    def _wake(self) -> None:
        self._sender.wake()

    def _wait_for_space(self, size: int) -> None:
        self._sender.make_room(size, self._check_gate)

    def _refuse(self) -> None:
        if self.gate == _NO_TRANSACTION and self._transactions is not None:
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
    ) -> Delivery:
        """As `produce`, with a future: `.result(timeout)` is the record's place.

        With `acks=0` it is resolved at once, with offset -1.
        """
        delivery = Delivery()
        self.produce(
            topic,
            value,
            key,
            headers=headers,
            partition=partition,
            timestamp=timestamp,
            on_delivery=delivery if self.config.acks != 0 else None,
        )
        if self.config.acks == 0:
            delivery(None, RecordMetadata(topic, -1 if partition is None else partition, -1, -1))
        return delivery

    def produce_arrow(self, topic: str, data: Any) -> int:
        """Buffer the rows of a pyarrow table, record batch, reader, or any Arrow stream.

        Columns: `value`; if there, `key`, `partition`, `timestamp` (ms, or an Arrow timestamp) and
        `headers` (list of struct of key and value). Others are refused.

        Returns:
            How many records were buffered.

        Raises:
            As `produce`; rows before the one at fault stay buffered.
        """
        from eoslog.client.arrow_produce import produce_stream

        return produce_stream(self, topic, data)

    def produce_batches(
        self, topic: str, partition: int, batches: Iterable[Any], *, trusted: bool = False
    ) -> int:
        """Append batches that are encoded already, behind what is buffered for the partition.

        Each item is one whole v2 batch, or several one behind the other, which then are appended as
        one as far as 1 MiB holds them. Producer id, epoch and sequence are stamped into it where it
        is writable, else into a copy; everything else stays as it is. Returns when all of them have
        what `acks` promises. Their records are walked first, unless `trusted`: eoslog encoded them.

        Returns:
            How many records they hold.

        Raises:
            CorruptRecord: not whole batches, or a CRC is wrong; those before may be appended.
            InvalidRecord, UnsupportedFormat, KafkaError (INVALID_TIMESTAMP): no consumer could read
                the records; those before may be appended.
            EoslogError: why one was refused; others may be appended (a transaction: abort it).
        """
        count = 0
        for chunk in chunks(topic, partition, batches, GROUP_BYTES, trusted=trusted):
            if self.gate:
                self._refuse()
            self._sender.drain_for_batches(chunk)
            while not all(batch.delivery.done() for batch in chunk):
                self._sender.flush(None)
            self._sender.acks.demand_delivered(chunk)
            count += sum(batch.count for batch in chunk)
        return count

    def flush(self, timeout: float | None = None) -> int:
        """Wait until each buffered record has what `acks` promises; callbacks are served.

        Args:
            timeout: seconds; None to wait until all have met their fate.

        Returns:
            How many records are still buffered.

        Raises:
            EoslogError: the first delivery error that no callback and no Delivery has taken.
        """
        self._check_alive()
        deadline = None if timeout is None else time.monotonic() + as_seconds("flush", timeout)
        done = self._sender.flush(deadline)
        if done and self._transactions is not None and self.config.acks == -1:
            self._flush_transaction()
        self._sender.acks.callbacks.serve()
        error, self._sender.acks.untold = self._sender.acks.untold, None
        if error is not None:
            raise error
        return int(self.buffered)

    def _flush_transaction(self) -> None:
        assert self._transactions is not None
        self._engine.flush_many(self._transactions.written())

    def poll(self, timeout: float = 0) -> int:
        """Serve callbacks, waiting up to `timeout` seconds for the first; how many were served."""
        self._check_alive()
        timeout = as_seconds("poll", timeout)
        served = self._sender.acks.callbacks.serve()
        if served == 0 and timeout > 0:
            self._sender.acks.callbacks.wait(timeout)
            served = self._sender.acks.callbacks.serve()
        return served

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic, as the metadata says now."""
        self._check_alive()
        return sorted(self._engine.topic(topic).partitions)

    def stats(self) -> dict[str, int]:
        """Counts since the producer was made, and what is buffered now."""
        return {
            "produced": self.produced,
            "buffered": self.buffered,
            "buffered_bytes": self.used,
            **asdict(self._sender.stats),
        }

    # -- transactions -------------------------------------------------------------------------

    @property
    def transactional_id(self) -> str | None:
        """The id of `transactional.id`."""
        return self.config.transactional_id

    @property
    def producer_id(self) -> int:
        """The current producer id; -1 before the first batch or `init_transactions`."""
        return self._identity.producer_id

    @property
    def producer_epoch(self) -> int:
        """The current epoch; -1 before the first batch or `init_transactions`."""
        return self._identity.producer_epoch

    @property
    def transactions(self) -> TransactionManager | None:
        """Its transactions, as long as there may be more of them."""
        manager = self._transactions
        ended = manager is None or manager.state is ClientState.FATAL_ERROR
        return None if ended or self.gate in (_CLOSED, _FORKED) else manager

    @property
    def transaction_state(self) -> str | None:
        """Kafka's name of the client's state; None for a producer without a transactional id."""
        return None if self._transactions is None else self._transactions.state.value

    def init_transactions(self, timeout: float | None = None) -> TransactionOutcome | None:
        """Fence earlier instances of the transactional id and settle what they left; call it once.

        Args:
            timeout: seconds; None for max.block.ms. After a timeout it may be called again.

        Returns:
            How the last transaction that reached the log ended, None if there was none; one that
            had flushed nothing leaves no trace.

        Raises:
            RequestTimedOut: the previous transaction cannot be settled yet.
            IllegalState: called twice, or there is no transactional.id.

        **Durability**: the new epoch is durable on return.
        """
        with self._calls:
            return self._manager("init_transactions").initialize(self._deadline(timeout))

    def begin_transaction(self) -> None:
        """Open a transaction; nothing is written yet. Raises IllegalState, or what was fatal."""
        with self._calls:
            self._manager("begin_transaction").begin()
            self.gate = _OPEN

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Commit: everything of the transaction becomes visible, or this raises.

        Args:
            timeout: seconds; None for max.block.ms.

        Raises:
            RequestTimedOut: not known within the timeout: call commit again, and nothing else.
            IllegalState: none is open; or a delivery callback of a commit calls it.
            CommitOutcomeUnknown: decided, not known to be durable: close, and let the next
                `init_transactions` of this id tell. Neither abort nor rewind.
            ProducerFenced: another instance took over; nothing of this transaction counts.
            EoslogError: a record failed, or the transaction cannot commit: abort it.

        **Durability**: the transaction survives power loss on return.
        """
        with self._calls:
            manager = self._manager("commit_transaction")
            deadline = self._deadline(timeout)
            if manager.error is not None:
                raise manager.error
            if self._committing:
                raise IllegalState(
                    "commit_transaction: a commit is under way, this is its callback"
                )
            gate = self.gate
            manager.transition(_COMMITTING, "commit_transaction")
            self.gate = _NO_TRANSACTION
            self._committing = True
            try:
                self._send_all(deadline, "commit_transaction")
                self._sender.acks.untold = None
                if manager.error is not None:
                    raise manager.error
            except BaseException:
                # Nobody was asked for the commit: the transaction is as open as before.
                if manager.withdraw_commit() and self.gate == _NO_TRANSACTION:
                    self.gate = gate
                raise
            finally:
                self._committing = False
            manager.end(True, deadline)

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort: what is buffered is dropped, what is in the log is never shown to read_committed.

        Args:
            timeout: seconds; None for max.block.ms.

        Raises:
            RequestTimedOut: call abort again, and nothing else.
            ProducerFenced: another instance took over, and has aborted this transaction: close.
        """
        with self._calls:
            self._abort(timeout)
            self._sender.acks.callbacks.serve()

    def _abort(self, timeout: float | None) -> None:
        with self._calls:
            manager = self._manager("abort_transaction")
            deadline = self._deadline(timeout)
            manager.transition(ClientState.ABORTING, "abort_transaction")
            self.gate = _NO_TRANSACTION
            dropped = TransactionAborted(f"{manager.transactional_id!r}: aborted before being sent")
            try:
                self._sender.discard(dropped)
                self._sender.acks.untold = None
                manager.end(False, deadline)
            finally:
                manager.note_abort()

    def end_transaction(self, commit: bool = True, timeout: float | None = None) -> None:
        """`commit_transaction` or `abort_transaction`."""
        if commit:
            self.commit_transaction(timeout)
        else:
            self.abort_transaction(timeout)

    def send_offsets_to_transaction(
        self, offsets: Offsets, group_metadata: Group, timeout: float | None = None
    ) -> None:
        """Commit a group's offsets with the transaction: they count if and when it commits.

        Args:
            offsets: `[TopicPartition(t, p, next_offset)]`, or a mapping of partitions to next
                offsets or `OffsetAndMetadata`.
            group_metadata: `Consumer.group_metadata()`, the consumer itself (one that commits by
                itself or reads uncommitted is refused), or the group's id (without fencing).
            timeout: seconds; None for max.block.ms.

        Raises:
            CommitFailed: the group gave these partitions to somebody else: abort.
            TransactionAbortable: not done within the timeout, or there is no such topic: abort.
            ProducerFenced: another instance took over.
        """
        with self._calls:
            manager = self._manager("send_offsets_to_transaction")
            manager.check_open("send_offsets_to_transaction")
            named, group = offsets_of(offsets), group_metadata_of(group_metadata)
            try:
                manager.add_offsets(named, group, self._deadline(timeout))
            finally:
                if manager.error is not None:
                    self.gate = _NO_TRANSACTION

    def transaction(self) -> Transaction:
        """A transaction as a context: commits at the end, aborts on an exception."""
        self._manager("transaction")
        return Transaction(self)

    def _manager(self, what: str) -> TransactionManager:
        self._check_alive()
        if self._transactions is None:
            raise IllegalState(f"{what}: the producer has no transactional.id")
        if self._transactions.error is not None:
            self.gate = _NO_TRANSACTION  # the sender found it: no more records either
        return self._transactions

    def _deadline(self, timeout: float | None) -> float:
        wait = self.config.max_block_ms / 1000 if timeout is None else timeout
        return time.monotonic() + as_seconds("timeout", wait)

    def _send_all(self, deadline: float, what: str) -> None:
        done = self._sender.flush(deadline)
        self._sender.acks.callbacks.serve()
        if not done:
            raise RequestTimedOut(f"{what}: {self.buffered} records are not sent yet; call again")

    # -- the end ------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self.gate == _CLOSED:
            raise IllegalState("the producer is closed")
        if self.gate == _FORKED:
            raise IllegalState("the producer was inherited through fork: make a new one here")

    def close(self, timeout: float | None = None) -> None:
        """Send what is buffered, abort an open transaction, let go of the directory. Idempotent.

        Args:
            timeout: seconds to wait for buffered records; what is left then fails. None to wait.

        Raises:
            EoslogError: as `flush`; the producer is closed all the same.
            Exception: the first that a callback raised; all of them are served.
        """
        if self.gate in (_CLOSED, _FORKED):
            return
        error: EoslogError | None = None
        deadline = None if timeout is None else time.monotonic() + as_seconds("close", timeout)
        with self._calls:
            manager = self._transactions
            try:
                if manager is not None and manager.state in _ABORTABLE:
                    # Else the next init aborts it, or whoever it blocks once this process is gone.
                    with contextlib.suppress(EoslogError):
                        self._abort(timeout)
                self.gate = _CLOSED
                self._sender.flush(deadline)
                self._sender.discard(IllegalState("the producer was closed before this was sent"))
                error, self._sender.acks.untold = self._sender.acks.untold, None
            finally:
                self.gate = _CLOSED
                self._sender.stop()
                producers.discard(self)
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
            pass  # the first error is the one to see
        except Exception:
            logger.exception("a delivery callback failed while its producer was closed")

    def __repr__(self) -> str:
        name = self.config.transactional_id or "idempotent"
        return f"<Producer {name} id={self.producer_id} epoch={self.producer_epoch}>"
