"""Staged transactions, whose records wait in an internal topic for the decision.

    write      append the batches to `__staged_transactions` and flush it; `PreparedTransactions`
               then writes the transaction's record
    deliver    after the decision to commit: append the batches to their topics, in one internal
               transaction; its decision and the record's completion are one batch, so a crash at
               any point leaves exactly one copy or a delivery that starts again
    forget     after that, or after an abort: write tombstones, so that the cleaner frees the space

The format of the records is in `coordinator/transactions/staged_records.py`.

A record of a transaction that was never prepared has no owner. `sweep` writes its tombstone, once
its process is dead.

**Deleted topics.** Records of a topic that was deleted, or deleted and re-created, are dropped at
the delivery: they would have been deleted with it.

**Checks.** `PartitionLog.checked` accepts the records as they are produced. The delivery checks
their size again, and nothing else. A check of their age would reject each record that waits longer
than `message.timestamp.before.max.ms`.

Source: RocketMQ keeps half messages in a topic of its own, too, and restores their topic from their
properties.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Protocol

from eoslog import _core
from eoslog.config.keys import LogConfig
from eoslog.coordinator.groups.coordinator import GroupCoordinator
from eoslog.coordinator.host import HostLog, TransactionHost
from eoslog.coordinator.retry import again
from eoslog.coordinator.transactions.coordinator import TransactionCoordinator
from eoslog.coordinator.transactions.log import TransactionLog
from eoslog.coordinator.transactions.prepared_records import (
    NEVER,
    STAGED,
    PendingOffset,
    PreparedEntry,
    TransactionKey,
    entry_row,
    staged_id,
)
from eoslog.coordinator.transactions.requests import InitResult
from eoslog.coordinator.transactions.staged_records import (
    StagedBatches,
    decode_key,
    decode_owner,
    decode_part,
    encode_headers,
    encode_key,
)
from eoslog.coordinator.transactions.state import (
    ONGOING,
    PREPARED,
    OffsetSpan,
    TransactionMetadata,
    TransactionState,
)
from eoslog.engine.shards import shard_of
from eoslog.errors import (
    ConcurrentTransactions,
    CorruptRecord,
    EoslogError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    PolicyViolation,
    ProducerFenced,
    TransactionAbortable,
    UnknownTopicOrPartition,
)
from eoslog.model import (
    STAGED_TRANSACTIONS_TOPIC,
    AppendOrigin,
    OffsetAndMetadata,
    TopicPartition,
)
from eoslog.storage.format.checkpoints import MetaProperties
from eoslog.storage.fs.files import failpoint

_BATCH_BYTES = 4 << 20
"""About the most bytes of one append, which holds the lock of the topic."""
_TIMEOUT_MS = 900_000
_TOMBSTONES_AT_ONCE = 1000
_LOCKS = 64
_LOST = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping, TransactionAbortable)
"""Errors that say that another process delivers the transaction."""


class StagingHost(TransactionHost, Protocol):
    """The part of an open directory that staged transactions use."""

    config: LogConfig
    properties: MetaProperties
    transactions: TransactionCoordinator

    @property
    def groups(self) -> GroupCoordinator:
        """The coordinator that commits offsets of groups."""


class StagedTransactions:
    """Writes the payload of staged transactions, and delivers it. Thread-safe."""

    def __init__(self, engine: StagingHost) -> None:
        """Keep the engine; nothing is opened."""
        self._engine = engine
        self._delivery_locks = [threading.Lock() for _ in range(_LOCKS)]

    def _room(self) -> HostLog:
        return self._engine.internal_topic(STAGED_TRANSACTIONS_TOPIC)

    # -- writing

    def write(
        self,
        transactional_id: str,
        parts: Sequence[StagedBatches],
        offsets: Sequence[PendingOffset],
        *,
        resolver: str | None = None,
        meta: bytes | None = None,
        due_at_ms: int = NEVER,
        deliver_at_ms: int = NEVER,
        key: TransactionKey | None = None,
    ) -> PreparedEntry:
        """Write the payload of a transaction, and return the record that prepares it.

        Args:
            transactional_id: the id that prepares it.
            parts: the batches, in the order of production.
            offsets: offsets that the delivery commits for groups.
            resolver: the name of its resolver.
            meta: the application's value.
            due_at_ms: the time of the first check; -1: as the resolver was registered.
            deliver_at_ms: the time before which no record appears; -1: none.
            key: producer id and epoch that name it; None: new ones. With a key, the payload gets
                a producer id of its own, because several processes may set it aside.

        Raises:
            PolicyViolation: if too many transactions, or too many bytes, are undecided.
            DiskFull, StorageError: if the payload cannot be written; nothing is prepared.

        Durability:
            The payload is durable on return.
        """
        engine = self._engine
        self._check_limits(sum(len(part.data) for part in parts), 0 if key is None else 1)
        own = (engine.producer_ids.next_producer_id(), 0)
        key = key or own
        now = engine.clock_ms()
        spans: list[tuple[TopicPartition, OffsetSpan]] = []
        size = 0
        if offsets:
            self._room()  # so that readers of the offsets look for staged transactions
        if parts:
            log = self._room()
            first, last = -1, -1
            for batch, held in self._batches(own, parts, now):
                result = log.append(batch, origin=AppendOrigin.COORDINATOR)
                assert result is not None  # nothing was expected
                failpoint("stage.written")
                first = result.base_offset if first < 0 else first
                last, size = result.last_offset, size + held
            log.flush(last + 1)
            span = OffsetSpan(first, last, log.topic_id)
            spans.append((TopicPartition(log.topic, log.partition), span))
        return PreparedEntry(
            key, STAGED, PREPARED, transactional_id, resolver, meta, now, due_at_ms,
            deliver_at_ms=deliver_at_ms, owner=(engine.process_number, engine.process_nonce),
            payload=own, records=sum(part.records for part in parts), size=size, spans=tuple(spans),
            offsets=tuple(offsets),
        )  # fmt: skip

    def _check_limits(self, size: int, counted: int) -> None:
        count, held = self._engine.transactions.prepared.index.totals()
        config = self._engine.config
        if count - counted >= config.pending_max_count:
            raise PolicyViolation(
                f"pending.max.count: {count} prepared transactions are undecided, at most "
                f"{config.pending_max_count} are allowed; decide some (log.pending() lists them), "
                "or raise the key"
            )
        if size and held + size > config.pending_max_bytes:
            raise PolicyViolation(
                f"pending.max.bytes: undecided transactions hold {held} bytes, {size} more exceed "
                f"{config.pending_max_bytes}; decide some (log.pending() lists them), or raise the "
                "key"
            )

    def _batches(
        self, key: TransactionKey, parts: Sequence[StagedBatches], now: int
    ) -> Iterator[tuple[bytes, int]]:
        """Yield batches of records, and the payload bytes in each."""
        owner = (self._engine.process_number, self._engine.process_nonce)
        rows: list[Any] = []
        held = 0
        for number, part in enumerate(parts):
            headers = encode_headers(part, owner)
            rows.append((now, encode_key(key, number), bytes(part.data), headers))
            held += len(part.data)
            if held >= _BATCH_BYTES:
                yield _core.build_batch(rows), held
                rows, held = [], 0
        if rows:
            yield _core.build_batch(rows), held

    # -- reading

    def parts(self, entry: PreparedEntry) -> Iterator[tuple[bytes, StagedBatches]]:
        """Yield (key, batches) of a staged transaction, in the order of production.

        Raises:
            CorruptRecord: if a part is missing or damaged.
        """
        found = 0
        for _, span in entry.spans:
            log = self._engine.existing_internal_topic(STAGED_TRANSACTIONS_TOPIC)
            if log is None:
                break
            for batch in log.batches(span.first, span.last + 1):
                for _, _, key, value, headers in batch.records():
                    # The offsets alone prove nothing: an import starts the topic again.
                    if value is None or decode_key(key).attempt != entry.payload:
                        continue
                    part = decode_part(value, headers)
                    found += part.records
                    yield key, part
        if found != entry.records:
            raise CorruptRecord(
                f"{STAGED_TRANSACTIONS_TOPIC}: records of the staged transaction of producer "
                f"{entry.key[0]}, epoch {entry.key[1]}, are missing; run `eoslog check`",
                expected=f"{entry.records} records",
                found=f"{found}",
            )

    def check(self, entry: PreparedEntry) -> None:
        """Check that all records of a staged transaction are there.

        Raises:
            CorruptRecord: if a part is missing or damaged.
        """
        for _ in self.parts(entry):
            pass

    # -- delivery

    def deliver(self, entry: PreparedEntry, number: int) -> None:
        """Append the records of a committed staged transaction to their topics.

        Args:
            entry: its record.
            number: the number of the C partition that has it.

        Raises:
            ConcurrentTransactions: if another process delivers it; retriable.
            EoslogError: if a topic rejects the records. The decision stands; call again.

        Durability:
            The records are durable on return.
        """
        transactions = self._engine.transactions
        clog = transactions.logs.at(number)
        name = self._delivery_id(entry.key, number)
        attempts = None
        with self._delivery_locks[hash(entry.key) % _LOCKS]:
            while True:
                clog.refresh()
                now = clog.prepared(entry.key)
                if now is None or now.state is not TransactionState.PREPARE_COMMIT:
                    return
                self._leave_to_another(clog.get(name), name)
                identity = transactions.init(name, _TIMEOUT_MS)
                try:
                    self._deliver(clog, name, identity, now)
                except _LOST:
                    attempts = again(attempts, "delivery of", name)
                except BaseException:
                    # Readers of the topics that took their part would wait for the timeout.
                    with contextlib.suppress(EoslogError):
                        transactions.end_txn(
                            name, identity.producer_id, identity.producer_epoch, False
                        )
                    raise

    def _delivery_id(self, key: TransactionKey, number: int) -> str:
        """Return the id of the delivery, whose C partition must be that of the record."""
        name = base = staged_id(key)
        count = self._engine.properties.transaction_partitions
        suffix = 0
        while shard_of(name, count) != number:
            suffix += 1
            name = f"{base}.{suffix}"
        return name

    def _leave_to_another(self, current: TransactionMetadata | None, name: str) -> None:
        """Raise ConcurrentTransactions if a living process delivers the transaction now."""
        if current is None or current.state is not ONGOING or current.owner is None:
            return
        me = (self._engine.process_number, self._engine.process_nonce)
        if current.owner != me and self._engine.process_alive(*current.owner):
            raise ConcurrentTransactions(
                f"{name}: {self._engine.process_text(current.owner)} delivers the transaction; "
                "retry"
            )

    def _deliver(
        self, clog: TransactionLog, name: str, identity: InitResult, entry: PreparedEntry
    ) -> None:
        transactions, engine = self._engine.transactions, self._engine
        mine = (identity.producer_id, identity.producer_epoch)
        spans: dict[TopicPartition, tuple[int, int, bytes]] = {}
        sequences: dict[TopicPartition, int] = {}
        keys = []
        for key, part in self.parts(entry):
            keys.append(key)
            tp = part.partition
            log = self._log_of(tp, part.topic_id)
            if log is None:
                continue
            data = bytearray(part.data)
            first = sequences.get(tp, 0)
            sequences[tp] = first + _core.stamp_batches(
                data, producer_id=mine[0], producer_epoch=mine[1], base_sequence=first,
                transactional=True,
            )  # fmt: skip
            result = None
            while result is None:
                expected = transactions.add(name, *mine, frozenset({tp}))
                result = log.append(data, expect=[expected], origin=AppendOrigin.DELIVERY)
            failpoint("deliver.appended")
            begin, last, _ = spans.get(tp, (result.base_offset, 0, b""))
            spans[tp] = (begin, max(last, result.last_offset), log.topic_id)
        offsets = self._offsets_of(entry)
        for group_id, wanted in offsets.items():
            engine.groups.txn_offset_commit(
                group_id, name, *mine, "", -1, None, wanted, forward_only=True
            )
            failpoint("deliver.offsets")
        done = [entry_row(entry.delivered())]
        if spans or offsets:

            def still(current: TransactionMetadata) -> bool:
                now = clog.prepared(entry.key)
                return (
                    (current.producer_id, current.producer_epoch) == mine
                    and current.state is ONGOING
                    and now is not None
                    and now.state is TransactionState.PREPARE_COMMIT
                )

            if transactions.endings.end(
                clog, name, True, may=still, claimed=spans, also=lambda _: done, goes_on=False
            ) is None:  # fmt: skip
                raise ProducerFenced(f"{name}: another process delivers the transaction; retry")
        else:
            end = clog.refresh()
            failpoint("deliver.nothing")
            if clog.prepared(entry.key) != entry:
                return
            offset = clog.append_rows(done, end, engine.clock_ms())
            if offset is None:
                return  # C has changed: the caller starts again, and needs the payload
            clog.make_durable(offset)
        failpoint("deliver.decided")
        self._forget(keys)

    def _log_of(self, tp: TopicPartition, topic_id: bytes) -> HostLog | None:
        """The partition, if it is still of the topic to which the records were produced."""
        try:
            log = self._engine.partition(tp.topic, tp.partition)
        except UnknownTopicOrPartition:
            return None
        return log if log.topic_id == topic_id else None

    def _offsets_of(
        self, entry: PreparedEntry
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        found: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        for one in entry.offsets:
            tp = TopicPartition(one.topic, one.partition)
            if self._log_of(tp, one.topic_id) is not None:
                # With the id, because the topic may be re-created before the commit.
                value = OffsetAndMetadata(one.offset, one.leader_epoch, one.metadata, one.topic_id)
                found.setdefault(one.group_id, {})[tp] = value
        return found

    # -- the end

    def forget(self, entry: PreparedEntry) -> None:
        """Free the payload of an aborted transaction.

        The decision is durable already. What cannot be read or freed is left to `sweep`.
        """
        with contextlib.suppress(EoslogError):
            self._forget([key for key, _ in self.parts(entry)])

    def sweep(self) -> int:
        """Free the payload of ended transactions, and of dead processes.

        Returns:
            The number of records that were removed.

        Raises:
            CorruptRecord: if a record is not in the format of a part; nothing is removed.
        """
        engine = self._engine
        log = engine.existing_internal_topic(STAGED_TRANSACTIONS_TOPIC)
        if log is None:
            return 0
        live: dict[bytes, tuple[int, tuple[int, int]]] = {}
        for batch in log.batches(log.log_start, log.high_watermark):
            for offset, _, key, value, headers in batch.records():
                decode_key(key)
                if value is None:
                    live.pop(key, None)
                else:
                    live[key] = (offset, decode_owner(headers))
        # A process that was dead before its transactions are read prepares none after that.
        dead = {
            owner: not engine.process_alive(*owner) for owner in {one[1] for one in live.values()}
        }
        failpoint("sweep.asked")
        logs = engine.transactions.logs.all()
        needed = sorted(
            (span.first, span.last)
            for clog in logs
            for entry in clog.prepared_entries(pending=True)
            if entry.mode == STAGED
            for _, span in entry.spans
        )
        starts = [first for first, _ in needed]
        ends = list(accumulate((last for _, last in needed), max))
        gone = []
        for key, (offset, owner) in live.items():
            at = bisect_right(starts, offset) - 1
            if at >= 0 and offset <= ends[at]:
                continue  # of a span, perhaps between the records of another transaction
            known = [clog.prepared(decode_key(key).attempt) for clog in logs]
            if dead[owner] or any(one is not None and one.state.complete for one in known):
                gone.append(key)
        for at in range(0, len(gone), _TOMBSTONES_AT_ONCE):
            self._forget(gone[at : at + _TOMBSTONES_AT_ONCE])
        return len(gone)

    def _forget(self, keys: Sequence[bytes]) -> None:
        """Write tombstones; a lost one leaves garbage that `sweep` finds."""
        if keys:
            now = self._engine.clock_ms()
            rows = [(now, key, None, ()) for key in keys]
            self._room().append(_core.build_batch(rows), origin=AppendOrigin.COORDINATOR)
