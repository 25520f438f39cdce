"""Administration of transactional ids: descriptions, expiry, pruning.

Source: KIP-664; Kafka `TransactionStateManager`.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable, Iterator

from eoslog.coordinator.host import TransactionHost
from eoslog.coordinator.retry import again
from eoslog.coordinator.transactions.log import TransactionLog, TransactionLogs
from eoslog.coordinator.transactions.log_fold import RECOVERY_PREFIX
from eoslog.coordinator.transactions.lost_producers import lost
from eoslog.coordinator.transactions.prepared_records import STAGED_PREFIX
from eoslog.coordinator.transactions.snapshot import settled
from eoslog.coordinator.transactions.state import TransactionMetadata, TransactionState
from eoslog.coordinator.transactions.validation import check_id
from eoslog.descriptions import TransactionDescription
from eoslog.error_codes import ErrorCode
from eoslog.errors import EoslogError, KafkaError, TransactionalIdNotFound

_TOMBSTONES_AT_ONCE = 1000
"""The most tombstones in one batch, so that it stays far below the limits of a batch."""
_ENDS_BETWEEN_PRUNES = 512


class TransactionAdmin:
    """Describes and expires transactional ids, and prunes decisions. Thread-safe."""

    def __init__(self, host: TransactionHost, logs: TransactionLogs, id_expiration_ms: int) -> None:
        """Keep the coordinator's parts."""
        self._host = host
        self._logs = logs
        self._id_expiration_ms = id_expiration_ms
        self._ends = 0
        self._pruning = threading.Lock()

    # -- descriptions

    def describe(self, ids: Iterable[str] | None) -> list[TransactionDescription]:
        """See `TransactionCoordinator.describe_transactions`."""
        if ids is None:
            return [self._describe(m) for m in self._all()]
        found = []
        for name in ids:
            check_id(name)
            clog = self._logs.of(name)
            clog.refresh()
            metadata = clog.get(name)
            if metadata is None or metadata.state is TransactionState.DEAD:
                raise TransactionalIdNotFound(
                    f"transactional id {name!r} does not exist; "
                    "log.transactions(open_only=False) lists all ids"
                )
            found.append(self._describe(metadata))
        return found

    def list(
        self, states: Iterable[str], producer_ids: Iterable[int], duration_ms: int,
        id_pattern: str | None,
    ) -> list[TransactionDescription]:  # fmt: skip
        """See `TransactionCoordinator.list_transactions`.

        Unknown state names match nothing.
        """
        wanted_states, wanted_ids = set(states), set(producer_ids)
        try:
            pattern = re.compile(id_pattern) if id_pattern else None
        except re.error as error:
            raise KafkaError(
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                f"id pattern {id_pattern!r} is not a valid regular expression: {error}",
            ) from None
        now = self._host.clock_ms()

        def matches(m: TransactionMetadata) -> bool:
            if wanted_states and m.state.wire_name not in wanted_states:
                return False
            if wanted_ids and m.producer_id not in wanted_ids:
                return False
            if duration_ms >= 0 and (
                m.start_timestamp < 0 or now - m.start_timestamp <= duration_ms
            ):
                return False
            return pattern is None or pattern.fullmatch(m.transactional_id) is not None

        return [self._describe(m) for m in self._all() if matches(m)]

    def _all(self) -> Iterator[TransactionMetadata]:
        for clog in self._logs.all():
            yield from sorted(clog.values(), key=lambda m: m.transactional_id)

    def _describe(self, metadata: TransactionMetadata) -> TransactionDescription:
        return TransactionDescription(
            metadata.transactional_id, metadata.state.wire_name, metadata.producer_id,
            metadata.producer_epoch, metadata.timeout_ms, metadata.start_timestamp,
            metadata.last_update_timestamp, tuple(sorted(metadata.partitions)),
        )  # fmt: skip

    def owners(self) -> dict[str, tuple[int, int] | None]:
        """Number and nonce of the process that last initialised each id."""
        return {metadata.transactional_id: metadata.owner for metadata in self._all()}

    def holder(self, metadata: TransactionMetadata) -> str:
        """The process that last initialised an id, for messages; empty if unknown."""
        return "" if metadata.owner is None else self._host.process_text(metadata.owner)

    def explain(
        self, name: str, producer_id: int, epoch: int, code: ErrorCode
    ) -> KafkaError | None:
        """The error that says why a producer's epoch is not current; None if it is."""
        clog = self._logs.of(name)
        clog.refresh()
        current = clog.get(name)
        if current is None or (producer_id, epoch) == (current.producer_id, current.producer_epoch):
            return None
        return lost(name, current, producer_id, epoch, code=code, describe=self.holder)

    # -- expiry

    def expire(self) -> int:
        """Write tombstones for idle ids and for eoslog's own; return how many.

        eoslog's own ids, of recovery and of staged transactions, expire when they are complete.
        """
        if self._id_expiration_ms < 0:
            return 0
        return sum(self._expire_in(clog) for clog in self._logs.all())

    def _expire_in(self, clog: TransactionLog) -> int:
        count, attempts = 0, None
        while True:
            end = clog.refresh()
            now = self._host.clock_ms()
            horizon = now - self._id_expiration_ms
            idle = [
                m.transactional_id
                for m in clog.values()
                if m.state.expirable
                and (
                    m.last_update_timestamp <= horizon
                    or m.transactional_id.startswith((RECOVERY_PREFIX, STAGED_PREFIX))
                )
            ][:_TOMBSTONES_AT_ONCE]
            if not idle:
                return count
            if clog.append_tombstones(idle, end, now) is None:
                attempts = again(attempts, "expiry of transactional ids")
            else:
                count += len(idle)

    def prune_now_and_then(self) -> None:
        """Prune once every few hundred ended transactions, to bound the memory."""
        self._ends += 1
        if self._ends >= _ENDS_BETWEEN_PRUNES:
            self._ends = 0
            # The transaction that has just ended is decided, whatever is wrong elsewhere.
            with contextlib.suppress(EoslogError):
                self.prune()

    def prune(self) -> int:
        """Drop decisions that no marker or snapshot needs; return how many."""
        if not self._pruning.acquire(blocking=False):
            return 0
        try:
            return self._logs.forget(settled(self._host, self._logs))
        finally:
            self._pruning.release()

    def uncleanable_offset(self, partition: int) -> int:
        """See `TransactionCoordinator.uncleanable_offset`."""
        self.prune()
        for clog in self._logs.all():
            if clog.log.partition == partition:
                end = clog.refresh()  # first: any decision that is not folded yet is beyond it
                return min((d.offset for d in clog.decisions()), default=end)
        return 0
