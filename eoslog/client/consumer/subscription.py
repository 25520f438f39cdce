"""A consumer's subscription or assignment, and the state of its partitions.

Source: Kafka SubscriptionState.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from eoslog._util.arguments import shown
from eoslog.client.consumer.partition_state import TopicPartitionState
from eoslog.client.offset_arguments import as_list, place_of
from eoslog.errors import ConfigError, IllegalState
from eoslog.model import OffsetAndMetadata, TopicPartition

Topics = Sequence[str] | str | re.Pattern[str]
Listener = Callable[[Any, list[TopicPartition]], object]

_LEGAL_NAME = re.compile(r"[A-Za-z0-9._-]+")


class SubscriptionState:
    """The partitions of a consumer, from a subscription or an assignment, never both."""

    def __init__(self) -> None:
        """Start without a subscription or assignment."""
        self.topics: Topics | None = None
        self.on_assign: Listener | None = None
        self.on_revoke: Listener | None = None
        self.on_lost: Listener | None = None
        self.manual = False
        self.states: dict[TopicPartition, TopicPartitionState] = {}
        # Why no transaction may commit the positions before a rewind: records were returned that
        # the positions do not cover, and that would not be read again.
        self.unsettled: str | None = None
        self.rewinds = 0
        """How often the program or a sink has rewound the partitions."""

    @property
    def subscribed(self) -> bool:
        """Whether the group assigns the partitions."""
        return self.topics is not None

    def subscribe(
        self,
        topics: Topics,
        on_assign: Listener | None,
        on_revoke: Listener | None,
        on_lost: Listener | None,
    ) -> None:
        """Have the group assign partitions of the topics."""
        if self.manual:
            raise IllegalState("subscribe: partitions are assigned; call unsubscribe() first")
        self.topics = topics
        self.on_assign, self.on_revoke, self.on_lost = on_assign, on_revoke, on_lost

    def assign(self, partitions: Iterable[TopicPartition]) -> list[TopicPartitionState]:
        """Assign exactly these partitions.

        Partitions that stay assigned keep their positions, unless they have an offset.

        Returns:
            The partitions that are new, or that must move to the start or end of their log.
        """
        if self.subscribed:
            raise IllegalState("assign: topics are subscribed; call unsubscribe() first")
        wanted = [(p, None if p.offset is None else place_of(str(p), p.offset)) for p in partitions]
        states = {}
        moved = []
        for partition, place in wanted:
            state = self.states.get(partition)
            if state is None or isinstance(place, str):
                state = state or TopicPartitionState(partition)
                moved.append(state)
            states[state.partition] = state
            if place is not None:
                state.go_to(place)
        self.remove([p for p in self.states if p not in states])
        self.states = states
        self.manual = bool(states)
        return moved

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions that the group has granted."""
        for partition in partitions:
            self.states[partition] = TopicPartitionState(partition)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions that this consumer no longer owns."""
        for partition in partitions:
            state = self.states.pop(partition, None)
            if state is not None:
                if state.unfinished:
                    self.unsettled = (
                        f"{partition} was reassigned after records up to offset "
                        f"{state.last_returned} were returned but not committed"
                    )
                state.drop_fetched()

    def positions(
        self, partitions: Iterable[TopicPartition] | None = None, *, changed_only: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions to commit, each with the id of its topic.

        Args:
            partitions: some assigned partitions; None means all.
            changed_only: leave out positions that are known to be committed.
        """
        found = {}
        for partition in list(self.states) if partitions is None else partitions:
            state = self.states.get(partition)
            if state is None or state.position is None or state.of_deleted:
                continue
            if not changed_only or state.position != state.committed:
                found[state.partition] = OffsetAndMetadata(state.position, topic_id=state.topic_id)
        return found

    def rewind(self) -> None:
        """Rewind all partitions to their committed offsets."""
        for state in self.states.values():
            state.rewind()
        self.unsettled = None
        self.rewinds += 1

    @property
    def unfinished(self) -> bool:
        """Whether records were returned that are not known to be committed."""
        return any(state.unfinished for state in list(self.states.values()))

    def clear(self) -> None:
        """End the subscription or assignment."""
        self.topics = None
        self.on_assign = self.on_revoke = self.on_lost = None
        self.manual = False
        self.remove(list(self.states))

    def of(self, partition: TopicPartition) -> TopicPartitionState:
        """Return the state of an assigned partition.

        Raises:
            IllegalState: if the partition is not assigned.
        """
        state = self.states.get(partition)
        if state is None:
            raise IllegalState(
                f"{partition}: the partition is not assigned to this consumer; see assignment()"
            )
        return state

    def select(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None
    ) -> Iterator[TopicPartitionState]:
        """The states of some partitions; None means all."""
        if partitions is None:
            yield from list(self.states.values())
        else:
            for partition in as_list(partitions):
                yield self.of(partition)


def normalise_topics(topics: Topics) -> Topics:
    """Return a list of names, or a pattern; a legal name is one topic.

    Raises:
        ConfigError: if `topics` is neither.
    """
    if isinstance(topics, re.Pattern):
        if not isinstance(topics.pattern, str):
            raise ConfigError(f"subscribe: expected a pattern of str, got {shown(topics)}")
        return topics
    if isinstance(topics, str):
        return [topics] if _LEGAL_NAME.fullmatch(topics) else compiled("subscribe", topics)
    names = []
    for name in topics if isinstance(topics, Iterable) else [topics]:
        names.append(name)
        if not isinstance(name, str) or not name:
            raise ConfigError(f"subscribe: expected topic names or a pattern, got {shown(name)}")
        if name.startswith("^"):
            compiled("subscribe", name)
    return names


def compiled(what: str, pattern: str) -> re.Pattern[str]:
    """Compile a regular expression.

    Raises:
        ConfigError: if the pattern is invalid; the message names the call.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"{what}: {shown(pattern)} is not a valid regular expression: {error}"
        ) from None
