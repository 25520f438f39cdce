"""`with producer.transaction() as tx`: all or nothing, with the consumer's position in it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from eoslog.errors import (
    CommitFailed,
    CommitOutcomeUnknown,
    ConfigError,
    EoslogError,
    IllegalState,
)
from eoslog.model import GroupMetadata, IsolationLevel

if TYPE_CHECKING:
    from eoslog.client.consumer import Consumer
    from eoslog.client.offsets import Offsets
    from eoslog.client.producer import Producer

__all__ = ["Group", "Transaction", "group_metadata_of"]

Group: TypeAlias = "GroupMetadata | Consumer | str"
"""Whose offsets they are; a mere id fences nobody."""

_NEEDED = ("bind_to", "group_metadata", "must_rewind", "progress", "rewind")

logger = logging.getLogger("eoslog.client.transaction")


class Transaction:
    """One transaction of a producer, as a context manager.

    Leaving it commits. An exception aborts and goes on; `abort` aborts without one. Both rewind the
    consumers that take part (the bound ones, and those given to `commit_offsets`, which binds them)
    to their committed offsets.
    A commit whose outcome is unknown does neither: what was read may have been committed. After
    RequestTimedOut of one that was asked for, call the producer's `commit_transaction` again.

    A consumer that could not be rewound, or has handed out records that its positions do not tell
    of any more, is refused by `commit_offsets`: the abort that follows rewinds it.
    """

    def __init__(self, producer: Producer) -> None:
        """Take a producer; `__enter__` begins."""
        self._producer = producer
        self._consumers: set[Any] = set()
        self._aborted = False
        self._state = "not begun"

    def __repr__(self) -> str:
        return f"<Transaction of {self._producer.transactional_id!r}, {self._state}>"

    def __enter__(self) -> Transaction:
        self._producer.begin_transaction()
        self._state = "open"
        self.produce = self._producer.produce
        self.send = self._producer.send
        self.produce_many = self._producer.produce_many
        self.produce_arrow = self._producer.produce_arrow
        self.produce_batches = self._producer.produce_batches
        self._consumers.update(self._producer.bound_consumers())
        return self

    def commit_offsets(self, consumer: Consumer) -> None:
        """Add a consumer's positions to the transaction, fenced by its group membership.

        From here on the consumer is bound to the producer, as by `Consumer(config, producer=p)`.

        Raises:
            ConfigError: no consumer; or it commits by itself, which would not wait for this
                transaction, or reads what may be aborted.
            CommitFailed: the group moved on; or the positions are not all that was read since the
                last commit or rewind: a partition was given away meanwhile, or a transaction was
                aborted that did not rewind this consumer. The transaction can only be aborted.
            IllegalState: the consumer is closed, or reads nothing.
        """
        if not all(hasattr(consumer, name) for name in _NEEDED):
            named = repr(consumer) if isinstance(consumer, str) else "group"
            raise ConfigError(
                f"commit_offsets: expected a consumer, got {consumer!r}; "
                f"for a group id use send_offsets(offsets, {named})"
            )
        _check_kind(consumer)
        self._consumers.add(consumer)
        offsets = consumer.progress()
        if not offsets and not consumer.assignment() and not consumer.subscription():
            raise IllegalState("commit_offsets: the consumer is neither subscribed nor assigned")
        group = consumer.group_metadata()
        self._check_settled(consumer)
        if offsets:
            self._producer.send_offsets_to_transaction(offsets, group)

    def _check_settled(self, consumer: Any) -> None:
        consumer.bind_to(self._producer)
        if consumer.unsettled is not None:
            why = f"the consumer has to be rewound: {consumer.unsettled}"
            error = CommitFailed(why, abortable=True)
            self._producer.fail_transaction(error)
            raise error

    def send_offsets(self, offsets: Offsets, group_metadata: Group) -> None:
        """As `Producer.send_offsets_to_transaction`."""
        self._producer.send_offsets_to_transaction(offsets, group_metadata)

    def abort(self) -> None:
        """Abort on purpose: nothing of it counts, the consumers that take part are rewound.

        The block goes on, and its end does nothing more. What it still produces is refused. A
        transaction that is begun by hand there is ended by hand, or aborted and told (IllegalState)
        at the block's end.

        Raises:
            RequestTimedOut: call it again, and nothing else.
            ProducerFenced: another instance took over, and has aborted this transaction: close.
        """
        with self._rewinding():
            try:
                self._producer.abort_transaction()
            finally:  # a delivery callback may have raised, behind the abort
                self._aborted = self._producer.transaction_state == "READY"
                if self._aborted:
                    self._state = "aborted"

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None:
            if self._aborted and not self._begun_by_hand():
                return
            try:
                if self._aborted:
                    raise IllegalState(
                        "a transaction that was begun by hand behind tx.abort() was left open at "
                        "the end of the `with` block: it is aborted"
                    )
                if self._producer.transaction_state == "READY":
                    raise IllegalState(
                        "the transaction was already ended inside the `with` block, "
                        "which ends it itself; tx.abort() is the way to abort it there"
                    )
                self._producer.commit_transaction()
            except CommitOutcomeUnknown:
                self._state = "outcome unknown"
                raise
            except BaseException:
                self._undo()
                raise
            self._state = "committed"
        elif not isinstance(error, CommitOutcomeUnknown):
            self._undo()

    def _begun_by_hand(self) -> bool:
        """Whether there is a transaction behind the one that this block has ended."""
        manager = self._producer.transactions
        return manager is not None and manager.open

    def _undo(self) -> None:
        if self._producer.transaction_state == "COMMITTING_TRANSACTION":
            self._state = "outcome unknown"  # it was asked for: it can only be asked for again
            return
        self._state = "aborted"
        with self._rewinding():
            try:
                # What fails here must not hide why; the state says what the producer may still do.
                with contextlib.suppress(EoslogError):
                    self._producer.abort_transaction()
            except Exception:
                logger.exception("a delivery callback failed while a transaction was aborted")

    @contextlib.contextmanager
    def _rewinding(self) -> Iterator[None]:
        """Whatever comes in the block, what the consumers have read is read again."""
        self._consumers.update(self._producer.bound_consumers())  # some were bound under way
        for consumer in self._consumers:
            # Until it is rewound: another thread may be using it, an interrupt may come first.
            consumer.must_rewind("it was in use when the transaction was aborted")
        try:
            yield
        finally:
            for consumer in self._consumers:
                with contextlib.suppress(EoslogError):
                    consumer.rewind()
            # Also where the producer could not abort any more: it is fenced, or closed.
            self._producer.note_abort()


def _check_kind(consumer: Any) -> None:
    """Whether a consumer's offsets may go into transactions; anything else than one may."""
    if getattr(consumer, "auto_commits", False):
        raise ConfigError(
            "enable.auto.commit=True: the consumer commits outside of the transaction"
        )
    if getattr(consumer, "isolation_level", None) == IsolationLevel.READ_UNCOMMITTED:
        raise ConfigError(
            "isolation.level=read_uncommitted: what the consumer has read may be aborted yet"
        )


def group_metadata_of(group: Any) -> GroupMetadata:
    """Group metadata, also from a group's id or from a consumer.

    Raises:
        ConfigError: neither of them, or a consumer as `Transaction.commit_offsets` refuses it.
        IllegalState: a generation without its member.
    """
    if isinstance(group, str) and group:
        return GroupMetadata(group)
    if hasattr(group, "group_metadata"):
        _check_kind(group)
        group = group.group_metadata()
    if not isinstance(group, GroupMetadata):
        raise ConfigError(f"group_metadata: expected GroupMetadata or a group id, got {group!r}")
    if group.generation_id > 0 and not group.member_id:
        raise IllegalState(f"group_metadata: generation {group.generation_id} without a member id")
    return group
