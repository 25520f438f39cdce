"""The consumer: reads partitions in order, alone or in a group, and remembers how far it got.

    at-least-once   commit after processing (auto-commit does so at the next poll)
    at-most-once    processing.guarantee=at_most_once: committed before records are handed out
    exactly-once    offsets go into the transaction of the producer that writes the results

Source: Kafka KafkaConsumer, KIP-62, KIP-98, KIP-447, KIP-848.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from eoslog import _core
from eoslog.arguments import as_int, as_seconds
from eoslog.client.consumer_arrow import empty_batch, next_batch
from eoslog.client.consumer_offsets import ConsumerOffsets
from eoslog.client.offsets import as_list
from eoslog.client.subscription import Listener, Topics, normalise_topics
from eoslog.closing import Closing
from eoslog.config import ConsumerConfig
from eoslog.errors import (
    ConfigError,
    EoslogError,
    ErrorCode,
    IllegalState,
    UnknownTopicOrPartition,
    error_for,
)
from eoslog.model import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from eoslog._core import Record

logger = logging.getLogger("eoslog.consumer")

_WAIT_SLICE_S = 0.05
# The producer's states in which records that were read belong to an undecided transaction.
_TRANSACTION_STATES = frozenset(
    {"IN_TRANSACTION", "COMMITTING_TRANSACTION", "ABORTING_TRANSACTION", "ABORTABLE_ERROR"}
)
Partitions = TopicPartition | Iterable[TopicPartition]


class Consumer(_core.RecordPolling, ConsumerOffsets, Closing):
    """Reads records; see the module for the three guarantees.

    Args:
        config: Kafka's keys; `log.dir` says which directory, which is made unless `create=False`.
        producer: a transactional producer whose transactions will carry the offsets.
        engine: the directory, where it is open already; it then outlives the consumer.
        keywords: more keys, as `group_id=`.

    Raises:
        ConfigError: an unknown key, a wrong value, or exactly-once without a producer.

    Thread-safety: one thread at a time, `wakeup` excepted; a second one gets IllegalState.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        producer: Any = None,
        *,
        engine: Any = None,
        **keywords: Any,
    ) -> None:
        """Open the directory; nothing is read or joined before the first poll."""
        settings = ConsumerConfig.of(config, **keywords)
        auto_commit = _check_producer(settings, producer)
        self._owns_engine = engine is None
        if engine is None:
            engine = _open_engine(settings)
        super().__init__(settings, engine, auto_commit=auto_commit)
        self._producer = producer
        if producer is not None:
            producer.bind(self)
        engine.consumers[id(self)] = self

    def __repr__(self) -> str:
        group = "no group" if self._config.group_id is None else f"group {self._config.group_id!r}"
        state = "closed" if self.closed else f"{len(self._subscription.states)} partitions"
        return f"<Consumer {group}, {state}>"

    # What to read.

    def subscribe(
        self,
        topics: Topics,
        on_assign: Listener | None = None,
        on_revoke: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Share the partitions of topics with the other members of the group.

        Takes effect at the next poll. Without a group.id all partitions of the topics are
        assigned to this consumer.

        Args:
            topics: names, or a pattern that must match whole names (a compiled one, or a string
                that is no legal name); internal topics never match. Topics may come later.
            on_assign: called with the consumer and the partitions that were added.
            on_revoke: the same before partitions go; progress may be committed there.
            on_lost: the same for partitions that are another's already; default: `on_revoke`.

        A listener runs inside a poll: it may commit and seek there, not close or unsubscribe.

        Raises:
            IllegalState: partitions were assigned by `assign`; or the log is read-only.
        """
        with self._use:
            self._next_duty = 0.0
            wanted = normalise_topics(topics)
            if not isinstance(wanted, list) or wanted:
                self._subscribe(wanted, on_assign, on_revoke, on_lost)
            else:
                self.unsubscribe()

    def _subscribe(self, topics: Topics, *listeners: Listener | None) -> None:
        if self._config.group_id is not None:
            if self._engine.read_only:
                raise IllegalState("a member of a group writes, the log was opened read_only")
            self._subscription.subscribe(topics, *listeners)
            self._membership.subscription_changed()
            self._warn_of_missing(topics)
            return
        if not isinstance(topics, list):
            raise error_for(ErrorCode.INVALID_GROUP_ID, "a pattern needs a group.id")
        partitions = [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in sorted(self._engine.topic(topic).partitions)
        ]
        self._assign(partitions)

    def _warn_of_missing(self, topics: Topics) -> None:
        for topic in topics if isinstance(topics, list) else []:
            try:
                if not topic.startswith("^"):
                    self._engine.topic(topic)
            except UnknownTopicOrPartition:
                logger.warning("subscribed topic %r does not exist (yet)", topic)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without a group's help.

        A partition with an offset, "earliest" or "latest", starts there; another one at its
        committed offset, else as auto.offset.reset says. Partitions that stay assigned go on where
        they are. Auto-commit commits first, so that what goes has its last records committed.

        Raises:
            ConfigError: an offset is none, or negative.
            IllegalState: topics were subscribed to.
            UnknownTopicOrPartition: a partition does not exist.
        """
        with self._use:
            self._assign(as_list(partitions))

    def _assign(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            info = self._engine.topic(partition.topic)
            if partition.partition not in info.partitions:
                raise UnknownTopicOrPartition(
                    f"{partition}: {partition.topic} has {len(info.partitions)} partitions"
                )
        if self._subscription.manual:  # no rebalance follows that would
            self._commit_before_loss(self._subscription.states)
        moved = self._subscription.assign(partitions)
        if self._config.auto_offset_reset == "none":
            moved = [state for state in moved if state.reset is not None]
        # "latest" means now, not the time of the first poll.
        self._fetcher.locate(moved)

    def unsubscribe(self) -> None:
        """Commit as on close, leave the group, and read nothing.

        Raises:
            IllegalState: called by a listener of a rebalance.
        """
        with self._use:
            self._refuse_in_listener("unsubscribe")
            self._leave()

    def _refuse_in_listener(self, call: str) -> None:
        if self._membership.telling:
            raise IllegalState(f"{call}() inside a rebalance listener: call it after the poll")

    def _leave(self) -> None:
        try:
            if self._subscription.subscribed:
                self._membership.leave()
            elif self._subscription.manual:
                self._commit_before_loss(list(self._subscription.states))
        finally:
            self._subscription.clear()

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read at present."""
        return sorted(self._subscription.states)

    def subscription(self) -> Topics:
        """The topics subscribed to, or the pattern; an empty list without a subscription."""
        return self._subscription.topics if self._subscription.topics is not None else []

    def pause(self, partitions: Partitions) -> None:
        """Hand out nothing of these partitions until `resume`; what was fetched is kept."""
        with self._use:
            for state in self._subscription.select(partitions):
                state.paused = True

    def resume(self, partitions: Partitions) -> None:
        """Go on handing out records of these partitions."""
        with self._use:
            for state in self._subscription.select(partitions):
                state.paused = False

    def paused(self) -> list[TopicPartition]:
        """The paused partitions."""
        return sorted(p for p, state in self._subscription.states.items() if state.paused)

    # Records.

    def _poll_one(self, timeout: float | None) -> Record | None:
        with self._use:
            records = self._poll(1, timeout)
            self._current = self._fetcher.current
            return records[0] if records else None

    def consume(
        self, num_messages: int | None = None, timeout: float | None = None
    ) -> list[Record]:
        """Whatever is there, at least one record unless `timeout` seconds pass or on a wakeup.

        Args:
            num_messages: most records to return; default max.poll.records, which also caps it
                where it was set.
            timeout: seconds, None waits for the first record.

        Raises:
            As for `poll`; records that precede the trouble are returned first.
        """
        limit = self._config.max_poll_records
        if num_messages is not None:
            if as_int("num_messages", num_messages, "1 or more") < 1:
                raise ConfigError(f"num_messages: expected 1 or more, got {num_messages}")
            capped = "max.poll.records" in self._config.given
            limit = min(num_messages, limit) if capped else num_messages
        with self._use:
            return self._poll(limit, timeout)

    def consume_arrow(
        self, num_messages: int = 65_536, timeout: float | None = None
    ) -> pa.RecordBatch:
        """As `consume`, as a pyarrow.RecordBatch of the columns of `Log.scan`.

        A batch holds records of one partition; it is empty after `timeout` or a wakeup.

        Raises:
            ConfigError: deserializers are set, whose results have no Arrow type.
        """
        config = self._config
        if config.key_deserializer is not None or config.value_deserializer is not None:
            raise ConfigError("consume_arrow hands out bytes: set no deserializer")
        if as_int("num_messages", num_messages, "1 or more") < 1:
            raise ConfigError(f"num_messages: expected 1 or more, got {num_messages}")

        def collect() -> Any:
            return next_batch(self._fetcher, num_messages, check_crc=config.check_crcs)

        with self._use:
            found = self._wait_for(collect, timeout)
            return empty_batch() if found is None else found

    def __iter__(self) -> Iterator[Record]:
        """Every record as it comes, until `close` or `wakeup`."""
        while not self.closed:
            record = self.poll(None)
            if record is None:
                return
            yield record

    def wakeup(self) -> None:
        """Make the current or next poll, consume or iteration return at once; any thread."""
        self._woken = True

    def _poll(self, limit: int, timeout: float | None) -> list[Record]:
        return self._wait_for(lambda: self._fetcher.collect(limit), timeout) or []

    def _wait_for(self, collect: Callable[[], Any], timeout: float | None) -> Any:
        """What `collect` finds as soon as it finds something, else None."""
        if not self._subscription.subscribed and not self._subscription.states:
            raise IllegalState("nothing to read: call subscribe() or assign() first")
        deadline = None
        if timeout is not None:
            deadline = time.monotonic() + as_seconds("timeout", timeout)
        while True:
            now = time.monotonic()
            self._keep_up(now)
            if self._woken:
                self._woken = False
                return None
            found = self._commit_then(collect) if self._commit_first else collect()
            if found:
                return found
            self._engine.refuse_outdated()
            left = _WAIT_SLICE_S if deadline is None else deadline - now
            if left <= 0:
                return None
            self._fetcher.wait(left)

    def _commit_then(self, collect: Callable[[], Any]) -> Any:
        """At most once: what is found is committed before anybody sees it."""
        states = self._subscription.states.values()
        before = [(state, state.place()) for state in states]
        found = collect()
        if found:
            try:
                self._commit_positions(self._subscription.states)
            except BaseException:
                # Nobody has seen it: where nothing was committed it may be handed out later.
                for state, place in before:
                    state.put_back(*place)
                raise
        return found

    def _keep_up(self, now: float) -> None:
        subscribed = self._subscription.subscribed
        auto_commit = self._auto_commit and not self._commit_first
        if auto_commit and now >= self._next_auto_commit:
            self._auto_commit_now(self._subscription.states)
        if subscribed and self._membership.due(now):
            # Who polls in transactions only has all committed when the next one begins.
            free = not self._in_transaction() or not self._subscription.unfinished
            self._membership.step(may_revoke=free)
        if self._commit_first:
            return
        self._next_duty = min(
            self._next_auto_commit if auto_commit else math.inf,
            self._membership.next_step if subscribed else math.inf,
        )

    def _in_transaction(self) -> bool:
        if self._producer is None:
            return False
        return self._producer.transaction_state in _TRANSACTION_STATES

    def fail_transaction(self, error: EoslogError) -> bool:
        """Let the bound producer's open transaction only be aborted; whether there is one."""
        return self._producer is not None and bool(self._producer.fail_transaction(error))

    # The end.

    @property
    def isolation_level(self) -> str:
        """`read_committed` or `read_uncommitted`."""
        return self._config.isolation_level

    @property
    def auto_commits(self) -> bool:
        """Whether this consumer commits by itself, outside of any transaction."""
        return self._auto_commit

    def close(self) -> None:
        """Commit as auto-commit would, leave the group, let go of the directory.

        A static member keeps its place in the group. Closing twice, or in a forked child, does
        nothing. A `with` block that ends with an exception commits nothing: what was being
        processed then is read again.

        Raises:
            IllegalState: called by a listener of a rebalance.
        """
        if self._use.closed or self._use.forked:
            self._use.closed = True
            return
        with self._use:
            self._refuse_in_listener("close")
            try:
                self._leave()
            finally:
                self._use.closed = True
                if self._owns_engine:
                    self._engine.close()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
            return
        self._auto_commit = False
        with contextlib.suppress(EoslogError):  # the first error is the one to see
            self.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._use.closed


def _check_producer(settings: ConsumerConfig, producer: Any) -> bool:
    """Whether auto-commit is on, given who commits the offsets."""
    transactional = getattr(producer, "transactional_id", None) is not None
    guarantee = settings.processing_guarantee
    if guarantee in ("at_most_once", "exactly_once") and settings.group_id is None:
        raise ConfigError(f"processing.guarantee={guarantee} commits offsets: it needs a group.id")
    if producer is not None and not hasattr(producer, "bind"):
        raise ConfigError(f"producer: expected a Producer of this log, got {producer!r}")
    if settings.exactly_once:
        if not transactional:
            raise ConfigError(
                "processing.guarantee=exactly_once needs Consumer(config, producer=p) with a "
                "transactional producer: the offsets are committed in its transactions"
            )
        if settings.isolation_level != "read_committed":
            raise ConfigError(
                "processing.guarantee=exactly_once needs isolation.level=read_committed, "
                f"but it is {settings.isolation_level}"
            )
    if not transactional:
        return settings.enable_auto_commit
    if settings.enable_auto_commit and "enable.auto.commit" in settings.given:
        raise ConfigError(
            "a consumer bound to a transactional producer commits in its transactions, "
            "but enable.auto.commit=True"
        )
    return False


def _open_engine(settings: ConsumerConfig) -> Any:
    from eoslog.engine import Engine

    if settings.log_dir is None:
        raise ConfigError("log.dir is missing: which directory is the log?")
    return Engine.open(settings.log_dir, create=settings.log_create)
