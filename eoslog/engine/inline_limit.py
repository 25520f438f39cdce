"""Sets prepared inline transactions aside that block readers for too long.

The records of an inline transaction are in their topics, and readers with `read_committed` wait for
its decision. After `prepared.inline.max.ms`, its records are copied to `__staged_transactions`. One
batch in `__transaction_state` then aborts the inline records, and makes the transaction a staged
one under the same token. So a crash at any point leaves one of both.

This is the only case in which the payload of a prepared transaction is written twice.

A transaction that has set a named position is not set aside. The abort of its inline records would
release the name before the decision, and two transactions could then replace the same position
(`coordinator/positions/positions.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from eoslog import _core
from eoslog.coordinator.groups.offset_records import OffsetKey, decode_offset_value
from eoslog.coordinator.groups.records import decode_key
from eoslog.coordinator.transactions.log import TransactionLog
from eoslog.coordinator.transactions.prepared_index import ended_elsewhere
from eoslog.coordinator.transactions.prepared_records import (
    INLINE,
    PendingOffset,
    PreparedEntry,
    entry_row,
)
from eoslog.coordinator.transactions.staged_records import StagedBatches
from eoslog.coordinator.transactions.state import Cause, TransactionMetadata
from eoslog.engine.staged_transactions import StagedTransactions, StagingHost
from eoslog.errors import (
    EoslogError,
    IllegalState,
    InvalidTxnState,
    PolicyViolation,
    UnknownTopicOrPartition,
)
from eoslog.model import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS, POSITIONS_TOPIC, TopicPartition
from eoslog.shown_paths import get_logger
from eoslog.storage.fs.files import failpoint
from eoslog.storage.metadata.image import TopicInfo

logger = get_logger("eoslog.prepared")


class InlineHost(StagingHost, Protocol):
    """The part of an open directory that this module uses."""

    staged: StagedTransactions

    def topic(self, name: str) -> TopicInfo:
        """Return a topic from the current metadata."""


class InlineLimit:
    """Sets inline transactions aside after `prepared.inline.max.ms`. Thread-safe."""

    def __init__(self, host: InlineHost) -> None:
        """Keep the engine; nothing is read."""
        self._host = host
        self._seen: dict[str, float] = {}
        """When `look` first saw each pending transaction, on the monotonic clock."""

    def look(self) -> int:
        """Set aside what is overdue; return how many. A failed one is tried again."""
        limit = self._host.config.prepared_inline_max_ms
        if limit < 0:
            return 0
        now, before, count = time.monotonic(), self._seen, 0
        found = [
            (token, entry)
            for token, entry in self._host.transactions.prepared.index.pending()
            if entry.mode == INLINE
        ]
        self._seen = {token: before.get(token, now) for token, _ in found}
        for token, entry in found:
            if self._blocked_ms(token, entry) < limit:
                continue
            try:
                count += self.set_aside(token)
            except IllegalState:
                raise
            except EoslogError as error:
                logger.warning(
                    "token %r: its prepared transaction blocks readers of %s for %d s, and cannot "
                    "be set aside: %s; decide it with `eoslog txn resolve`",
                    token, _places(entry), self._blocked_ms(token, entry) // 1000, error,
                )  # fmt: skip
        return count

    def set_aside(self, token: str) -> bool:
        """Make an undecided inline transaction a staged one.

        Returns:
            False if it was decided or set aside by another process.

        Raises:
            PolicyViolation: if it sets a named position.

        Durability:
            Durable on return; readers are free.
        """
        host = self._host
        prepared = host.transactions.prepared
        clog, entry = prepared.index.find(token)
        if not self._is_inline(clog, entry):
            return False
        if any(tp.topic == POSITIONS_TOPIC for tp, _ in entry.spans):
            raise PolicyViolation(
                f"token {token!r}: its transaction sets a named position and holds it until the "
                "decision, so it stays inline"
            )
        parts = list(self._parts(entry))
        written = host.staged.write(
            entry.transactional_id, parts, list(self._offsets(entry)), resolver=entry.resolver,
            meta=entry.meta, due_at_ms=entry.due_at_ms, key=entry.key,
        )  # fmt: skip
        staged = replace(
            written, state=entry.state, prepared_at_ms=entry.prepared_at_ms, checks=entry.checks,
            owner=entry.owner, takeovers=entry.takeovers,
        )  # fmt: skip
        failpoint("inline.copied")

        def still(current: TransactionMetadata) -> bool:
            now = clog.prepared(entry.key)
            return now == entry and current.state.undecided and self._is_inline(clog, entry)

        try:
            record = host.transactions.endings.end(
                clog, entry.transactional_id, False, may=still, cause=Cause.OPERATOR,
                also=lambda _: [entry_row(staged)],
            )  # fmt: skip
        except InvalidTxnState:
            record = None
        if record is None:
            host.staged.forget(staged)
            return False
        failpoint("inline.set_aside")
        logger.warning(
            "token %r: its prepared transaction blocked readers of %s for %d s and is set aside; "
            "its records appear in new places when it is committed",
            token, _places(entry), self._blocked_ms(token, entry) // 1000,
        )  # fmt: skip
        return True

    def _blocked_ms(self, token: str, entry: PreparedEntry) -> int:
        """The longer of two times, because the wall clock may have been set back since."""
        now = time.monotonic()
        seen_ms = int(1000 * (now - self._seen.get(token, now)))
        return max(self._host.clock_ms() - entry.prepared_at_ms, seen_ms)

    @staticmethod
    def _is_inline(clog: TransactionLog, entry: PreparedEntry) -> bool:
        current = clog.get(entry.transactional_id)
        return entry.mode == INLINE and ended_elsewhere(entry, current).pending

    def _batches(self, entry: PreparedEntry) -> Iterator[tuple[TopicPartition, bytes, _core.Batch]]:
        """Yield (partition, topic id, batch) of what the transaction wrote."""
        for tp, span in entry.spans:
            try:
                log = self._host.partition(tp.topic, tp.partition)
            except UnknownTopicOrPartition:
                continue  # deleted with its records
            # A topic that was re-created has no batch of this key. The id says nothing: a directory
            # that a broker has used has the broker's ids.
            for batch in log.batches(max(span.first, log.log_start), span.last + 1):
                if (batch.producer_id, batch.producer_epoch) == entry.key and not batch.control:
                    yield tp, log.topic_id, batch

    def _parts(self, entry: PreparedEntry) -> Iterator[StagedBatches]:
        for tp, topic_id, batch in self._batches(entry):
            if tp.topic != CONSUMER_OFFSETS_TOPIC:
                yield StagedBatches(tp, topic_id, batch.tobytes(), batch.count)

    def _offsets(self, entry: PreparedEntry) -> Iterator[PendingOffset]:
        for tp, _, batch in self._batches(entry):
            if tp.topic != CONSUMER_OFFSETS_TOPIC:
                continue
            for _, _, key, value, _ in batch.records():
                named = decode_key(key)
                if not isinstance(named, OffsetKey) or value is None:
                    continue
                found = decode_offset_value(value)
                try:
                    topic_id = self._host.topic(named.topic).topic_id
                except UnknownTopicOrPartition:
                    continue
                # After the look at the id: a topic's deletion deletes the offset before another
                # topic can have the name.
                if not self._host.groups.is_pending(
                    named.group_id, named.topic_partition, batch.producer_id
                ):
                    continue
                yield PendingOffset(
                    named.group_id, named.topic, topic_id, named.partition, found.offset,
                    found.leader_epoch, found.metadata,
                )  # fmt: skip


def _places(entry: PreparedEntry) -> str:
    return ", ".join(str(tp) for tp, _ in entry.spans if tp.topic not in INTERNAL_TOPICS)
