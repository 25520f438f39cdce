"""Looking at transactional ids, forgetting idle ones, dropping decisions nobody needs any more.

Source: KIP-664; Kafka `TransactionStateManager`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator

from eoslog.coordinator.attempts import Attempts
from eoslog.coordinator.host import Host
from eoslog.coordinator.request_checks import check_id
from eoslog.coordinator.snapshot_cut import settled
from eoslog.coordinator.transaction_log import RECOVERY_PREFIX, TransactionLog, TransactionLogs
from eoslog.coordinator.transaction_state import TransactionMetadata, TransactionState
from eoslog.error_codes import ErrorCode
from eoslog.errors import KafkaError, TransactionalIdNotFound
from eoslog.model import TransactionDescription

_TOMBSTONES_AT_ONCE = 1000
"""Ids in one batch: far below any limit of a batch's size, however many expire."""
_ENDS_BETWEEN_PRUNES = 512


class TransactionAdmin:
    """What operators and time do to transactional ids. Thread-safe."""

    def __init__(self, host: Host, logs: TransactionLogs, id_expiration_ms: int) -> None:
        """Wire the parts."""
        self._host = host
        self._logs = logs
        self._id_expiration_ms = id_expiration_ms
        self._ends = 0
        self._pruning = threading.Lock()

    # -- looking

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
                raise TransactionalIdNotFound(f"no transactional id {name!r}")
            found.append(self._describe(metadata))
        return found

    def list(
        self, states: Iterable[str], producer_ids: Iterable[int], duration_ms: int,
        id_pattern: str | None,
    ) -> list[TransactionDescription]:  # fmt: skip
        """See `TransactionCoordinator.list_transactions`; unknown state names match nothing."""
        wanted_states, wanted_ids = set(states), set(producer_ids)
        try:
            pattern = re.compile(id_pattern) if id_pattern else None
        except re.error as error:
            raise KafkaError(
                ErrorCode.INVALID_REGULAR_EXPRESSION, f"{id_pattern!r}: {error}"
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

    # -- forgetting

    def expire(self) -> int:
        """Write tombstones for idle ids, and for recovery's own once they are complete."""
        if self._id_expiration_ms < 0:
            return 0
        return sum(self._expire_in(clog) for clog in self._logs.all())

    def _expire_in(self, clog: TransactionLog) -> int:
        count, attempts = 0, Attempts("expiry of transactional ids")
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
                    or m.transactional_id.startswith(RECOVERY_PREFIX)
                )
            ][:_TOMBSTONES_AT_ONCE]
            if not idle:
                return count
            if clog.append_tombstones(idle, end, now) is None:
                attempts.again()
            else:
                count += len(idle)

    def prune_now_and_then(self) -> None:
        """Prune after some hundred ends, so that memory does not grow with them."""
        self._ends += 1
        if self._ends >= _ENDS_BETWEEN_PRUNES:
            self._ends = 0
            self.prune()

    def prune(self) -> int:
        """Drop decisions whose markers are durable and that no later snapshot needs; how many."""
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
                end = clog.refresh()  # first: a decision that is not folded lies behind it
                return min((d.offset for d in clog.decisions()), default=end)
        return 0
