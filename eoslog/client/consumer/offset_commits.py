"""A consumer's offset commits, auto-commit included.

Source: Kafka ConsumerCoordinator, KIP-447.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from eoslog.client.consumer.member_identity import MemberIdentity
from eoslog.client.consumer.offset_store import OffsetChange, OffsetStore, check_offset_store
from eoslog.client.consumer.subscription import SubscriptionState
from eoslog.client.consumer.warned import Warned
from eoslog.client.offset_arguments import offsets_of
from eoslog.client.transaction_link import ConsumerLink, TransactionLink
from eoslog.config.keys import ConsumerConfig
from eoslog.errors import (
    CommitFailed,
    ConfigError,
    EoslogError,
    ErrorCode,
    FencedInstanceId,
    IllegalGeneration,
    IllegalState,
    StaleMemberEpoch,
    UnknownMember,
    error_for,
)
from eoslog.model import OffsetAndMetadata, TopicPartition
from eoslog.shown_paths import get_logger

if TYPE_CHECKING:
    from eoslog.engine.engine import Engine

__all__ = ["OffsetCommits", "commits_by_itself"]

logger = get_logger("eoslog.consumer")


class OffsetCommits:
    """Commits offsets for one consumer; used by one thread at a time."""

    def __init__(
        self,
        engine: Engine,
        config: ConsumerConfig,
        subscription: SubscriptionState,
        member: MemberIdentity,
        link: ConsumerLink,
        *,
        auto_commit: bool,
    ) -> None:
        """Commit to an open directory as `member`; nothing is committed yet."""
        self._engine = engine
        self._groups = engine.groups
        self.offset_store: OffsetStore | None = None
        self._config = config
        self._subscription = subscription
        self._member = member
        self._link = link
        self._warned = Warned(logger)
        # At most once: commit before records are returned, so that none is returned twice.
        self.first = auto_commit and config.auto_commit_when == "before"
        self._auto_commit = auto_commit and not self.first
        self._next_auto_commit = time.monotonic() + config.auto_commit_interval_ms / 1000

    @property
    def group_id(self) -> str:
        """The group.

        Raises:
            KafkaError: INVALID_GROUP_ID, if there is none.
        """
        if self._config.group_id is None:
            raise error_for(
                ErrorCode.INVALID_GROUP_ID,
                "committed offsets need a group.id; configure one for this consumer",
            )
        return self._config.group_id

    def commit(self, offsets: Any | None) -> None:
        """Commit these offsets, or the positions if None; see `Consumer.commit`."""
        if self.offset_store is not None:
            raise IllegalState(
                "commit: the offsets are stored in the database, in one transaction with the "
                "effects; call database.store_offsets(connection, consumer), or use log.sink"
            )
        if self._config.exactly_once:
            raise IllegalState(
                "commit: processing.guarantee=exactly_once commits offsets in the transaction; use "
                "producer.send_offsets_to_transaction or transaction.commit_offsets"
            )
        if offsets is None:
            self._commit(self._link.positions())
        else:
            self._commit(self._checked(offsets))

    def _checked(self, offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
        result = offsets_of(offsets)
        for partition, committed in result.items():
            state = self._subscription.states.get(partition)
            if state is not None and state.last_returned == committed.offset:
                warnings.warn(
                    f"{partition}: committed offset {committed.offset}, the last returned record, "
                    f"which will be read again; commit {committed.offset + 1} to resume after it",
                    RuntimeWarning,
                    stacklevel=5,
                )
        return result

    def commit_positions(
        self, partitions: Iterable[TopicPartition], moved: Iterable[TopicPartition] = ()
    ) -> None:
        """Commit the positions of some partitions that are not committed already.

        Those of `moved` are committed in any case, because another process may have set the group's
        offset back.
        """
        offsets = self._subscription.positions(list(partitions), changed_only=True)
        self._commit(offsets | self._subscription.positions(moved))

    def _commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        group_id = self.group_id
        if not offsets:
            return
        who = self._member.metadata()
        if self._subscription.subscribed and not self._member.joined:
            if self._member.fenced is not None:
                raise FencedInstanceId(self._member.fenced)
            why = (
                f"is no longer a member ({self._member.lost_why}); call poll() to rejoin"
                if self._member.lost
                else "has not joined yet; call poll() first"
            )
            raise CommitFailed(f"group {group_id!r}: this consumer {why}")
        try:
            self._groups.commit_offsets(
                group_id,
                who.member_id,
                who.generation_id,
                offsets,
                instance_id=who.instance_id if who.member_id else None,
            )
        except (UnknownMember, StaleMemberEpoch, IllegalGeneration) as error:
            raise CommitFailed(
                f"group {group_id!r}: offsets were not committed ({error}); call poll() to rejoin"
            ) from error
        self._link.committed(group_id, offsets)

    def committed(
        self, partitions: list[TopicPartition], timeout: float, closing: Callable[[], bool]
    ) -> list[int | None]:
        """The group's committed offsets, or None; see `Consumer.committed`."""
        if self.offset_store is not None:
            ids = {p: self._engine.topic(p.topic).topic_id for p in partitions}
            stored = self.offset_store.committed_offsets(self.group_id, ids)
            return [stored.get(p) for p in partitions]
        found = self._groups.fetch_offsets(
            self.group_id, partitions, timeout=timeout, closing=closing
        )
        return [found[p].offset if p in found else None for p in partitions]

    # Offsets in an offset store.

    def store_in(self, store: OffsetStore) -> None:
        """Store the offsets there from now on.

        Raises:
            ConfigError: if this consumer cannot, or has another offset store.
        """
        if self.offset_store is store:
            return
        if self.offset_store is not None:
            raise ConfigError(
                "offset_store: the consumer has another offset store; pass the same database"
            )
        if self._link.bound_to_producer:
            raise ConfigError(
                "offset_store: the consumer is bound to a producer; create a consumer without one"
            )
        check_offset_store(store, self._config, None)
        self.offset_store = store
        self._link.stored_elsewhere = True
        self.first = self._auto_commit = False

    def changes(self) -> list[OffsetChange]:
        """Return the changes that store the positions.

        Raises:
            CommitFailed: if records were returned that the positions do not cover.
        """
        if self._subscription.unsettled is not None:
            raise CommitFailed(
                f"group {self.group_id!r}: offsets were not stored: "
                f"{self._subscription.unsettled}; roll back, call consumer.rewind(), then poll "
                "again"
            )
        generation = self._member.metadata().generation_id
        states = self._subscription.states
        return [
            OffsetChange(
                partition, at.topic_id, states[partition].committed, at.offset, at.leader_epoch,
                generation,
            )
            for partition, at in self._subscription.positions(changed_only=True).items()
            if at.topic_id is not None
        ]  # fmt: skip

    def stored(self, changes: Iterable[OffsetChange]) -> None:
        """Expect these offsets in the offset store from now on.

        If the transaction is rolled back instead, the next change fails, until a rewind.
        """
        for change in changes:
            state = self._subscription.states.get(change.partition)
            if state is not None and state.topic_id == change.topic_id:
                state.committed = change.offset

    # Auto-commit.

    @property
    def next_due(self) -> float:
        """When auto-commit is due (monotonic, s); infinity if it is off."""
        return self._next_auto_commit if self._auto_commit else math.inf

    def auto_commit(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit the positions of some partitions, and log an error once while it lasts."""
        self._next_auto_commit = time.monotonic() + self._config.auto_commit_interval_ms / 1000
        try:
            self.commit_positions(partitions)
        except EoslogError as error:
            # The next step of the membership rejoins or raises.
            group_id = self._config.group_id
            text = f"group {group_id}: auto-commit failed, retrying after the next poll: {error}"
            self._warned.warn("auto-commit", text)
        else:
            self._warned.settle("auto-commit")

    def before_loss(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit the positions of partitions that will be released, if auto-commit is on."""
        if self._auto_commit:
            with contextlib.suppress(EoslogError):  # of a partition that cannot be read
                self._link.positions()  # a pending seek is a position too
            self.auto_commit(partitions)

    def stop_auto_commit(self) -> None:
        """Turn auto-commit off, because the returned records are not processed."""
        self._auto_commit = False


def commits_by_itself(config: ConsumerConfig, producer: Any, offset_store: Any = None) -> bool:
    """Whether auto-commit is on for a consumer with this producer or offset store.

    Raises:
        ConfigError: if settings conflict with each other or with the producer.
    """
    transactional = getattr(producer, "transactional_id", None) is not None
    guarantee = config.processing_guarantee
    if guarantee in ("at_most_once", "exactly_once") and config.group_id is None:
        raise ConfigError(
            f"processing.guarantee={guarantee}: committing offsets needs a group.id; configure one"
        )
    if producer is not None and not isinstance(getattr(producer, "_link", None), TransactionLink):
        raise ConfigError(f"producer: expected a Producer of this log, got {producer!r}")
    if offset_store is not None:
        check_offset_store(offset_store, config, producer)
        return False
    if config.exactly_once:
        if not transactional:
            raise ConfigError(
                "processing.guarantee=exactly_once: offsets are committed in a producer's "
                "transactions or in a database; pass a transactional producer, as in "
                "Consumer(config, producer=p), or Consumer(config, offset_store=database)"
            )
        if config.isolation_level != "read_committed":
            raise ConfigError(
                "processing.guarantee=exactly_once: expected isolation.level=read_committed, got "
                f"{config.isolation_level}"
            )
    if not transactional:
        return config.enable_auto_commit
    if config.enable_auto_commit and "enable.auto.commit" in config.given:
        raise ConfigError(
            "enable.auto.commit=True: a consumer that is bound to a transactional producer commits "
            "in its transactions; remove the key"
        )
    return False
