"""What a consumer reads: its partitions, where it is in each, what is fetched but not handed out.

Source: Kafka SubscriptionState.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from eoslog import _core
from eoslog.client.offsets import as_list, place_of
from eoslog.errors import ConfigError, IllegalState
from eoslog.model import TopicPartition

Topics = Sequence[str] | str | re.Pattern[str]
Listener = Callable[[Any, list[TopicPartition]], object]

_LEGAL_NAME = re.compile(r"[A-Za-z0-9._-]+")


class PartitionState(_core.FetchedRecords):
    """One partition of an assignment: where reading goes on, and what was fetched."""

    __slots__ = ("blocked_at", "committed", "log", "next_drive", "partition", "reset", "start")

    def __init__(self, partition: TopicPartition) -> None:
        """Start without a position."""
        self.partition = TopicPartition(partition.topic, partition.partition)
        self.log: Any = None
        # Where reading began: what a rewind goes back to where nothing was ever committed.
        self.start: int | None = None
        # "earliest" or "latest" once asked for; None: the committed offset, else the policy.
        self.reset: str | None = None
        # The offset last committed from here, or found committed at the start.
        self.committed: int | None = None
        # The last stable offset that holds the reader up, and when to act on it (monotonic).
        self.blocked_at = -1
        self.next_drive = 0.0

    @property
    def unfinished(self) -> bool:
        """Whether records were handed out that are not known to be committed."""
        last = self.last_returned
        if last is None or self.of_deleted:
            return False
        return self.committed is None or last >= self.committed

    @property
    def of_deleted(self) -> bool:
        """Whether the position is one of a topic that is deleted; its name may be another's."""
        return self.log is not None and self.log.core.deleted

    @property
    def topic_id(self) -> bytes | None:
        """The topic that the position counts in; None until its log was looked at."""
        return None if self.log is None else self.log.topic_id

    def move_to(self, offset: int) -> None:
        """Go on reading at an offset; what was fetched is dropped."""
        self.drop_fetched()
        if self.of_deleted:
            self.log = None  # an offset of the topic that has the name now
        self.position = offset
        self.reset = None
        if self.start is None:
            self.start = offset

    def place(self) -> tuple[Any, ...]:
        """Where it stands, for `put_back`."""
        return self.position, self.reset, self.log, self.last_returned

    def put_back(
        self, position: int | None, reset: str | None, log: Any, last_returned: int | None
    ) -> None:
        """Nobody has seen what was taken since: go on as before, in the same topic."""
        if log is not None and (self.log is None or self.log.topic_id != log.topic_id):
            self.forget()
            return
        self.drop_fetched()
        self.position = position
        self.reset = reset
        self.last_returned = last_returned

    def rewind(self) -> None:
        """Find the committed offset anew, or go back to where reading began."""
        self.drop_fetched()
        self.position = None
        self.reset = None
        self.last_returned = None

    def forget(self) -> None:
        """The topic is another one, made again under its name: nothing known of it holds."""
        self.rewind()
        self.start = self.committed = None

    def go_to(self, place: int | str) -> None:
        """Go on reading at an offset, or at the end of the log that `place_of` knows by name."""
        if isinstance(place, str):
            self.ask_reset(place)
        else:
            self.move_to(place)

    def ask_reset(self, policy: str) -> None:
        """Go to one end of the log when the position is next needed."""
        self.drop_fetched()
        self.position = None
        self.reset = policy


class SubscriptionState:
    """The partitions of a consumer, by assignment or by subscription, never both."""

    def __init__(self) -> None:
        """Nothing subscribed, nothing assigned."""
        self.topics: Topics | None = None
        self.on_assign: Listener | None = None
        self.on_revoke: Listener | None = None
        self.on_lost: Listener | None = None
        self.manual = False
        self.states: dict[TopicPartition, PartitionState] = {}
        # Why no transaction may take the positions before a rewind: records were handed out that
        # would neither be committed with them nor be read again.
        self.unsettled: str | None = None

    @property
    def subscribed(self) -> bool:
        """Whether the group chooses the partitions."""
        return self.topics is not None

    def subscribe(
        self,
        topics: Topics,
        on_assign: Listener | None,
        on_revoke: Listener | None,
        on_lost: Listener | None,
    ) -> None:
        """Let the group choose among the partitions of topics."""
        if self.manual:
            raise IllegalState("subscribe() after assign(): call unsubscribe() first")
        self.topics = topics
        self.on_assign, self.on_revoke, self.on_lost = on_assign, on_revoke, on_lost

    def assign(self, partitions: Iterable[TopicPartition]) -> list[PartitionState]:
        """Read exactly these partitions; those kept stay where they are, if told nothing else.

        Returns:
            The new ones, and those that are told to go to one end of their log.
        """
        if self.subscribed:
            raise IllegalState("assign() after subscribe(): call unsubscribe() first")
        wanted = [(p, None if p.offset is None else place_of(str(p), p.offset)) for p in partitions]
        states = {}
        moved = []
        for partition, place in wanted:
            state = self.states.get(partition)
            if state is None or isinstance(place, str):
                state = state or PartitionState(partition)
                moved.append(state)
            states[state.partition] = state
            if place is not None:
                state.go_to(place)
        self.remove([p for p in self.states if p not in states])
        self.states = states
        self.manual = bool(states)
        return moved

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions that the group granted."""
        for partition in partitions:
            self.states[partition] = PartitionState(partition)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions that are no longer this consumer's."""
        for partition in partitions:
            state = self.states.pop(partition, None)
            if state is not None:
                if state.unfinished:
                    self.unsettled = (
                        f"{partition} was given away after records up to offset "
                        f"{state.last_returned} were handed out and not committed"
                    )
                state.drop_fetched()

    def rewind(self) -> None:
        """All partitions go back to what is committed; what was handed out is nobody's now."""
        for state in self.states.values():
            state.rewind()
        self.unsettled = None

    @property
    def unfinished(self) -> bool:
        """Whether records of any partition were handed out that are not known to be committed."""
        return any(state.unfinished for state in list(self.states.values()))

    def clear(self) -> None:
        """Neither subscribed nor assigned."""
        self.topics = None
        self.on_assign = self.on_revoke = self.on_lost = None
        self.manual = False
        self.remove(list(self.states))

    def of(self, partition: TopicPartition) -> PartitionState:
        """The state of an assigned partition.

        Raises:
            IllegalState: it is not assigned.
        """
        state = self.states.get(partition)
        if state is None:
            raise IllegalState(f"{partition} is not assigned to this consumer")
        return state

    def select(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None
    ) -> Iterator[PartitionState]:
        """The states of some partitions, or of all."""
        if partitions is None:
            yield from list(self.states.values())
        else:
            for partition in as_list(partitions):
                yield self.of(partition)


def normalise_topics(topics: Topics) -> Topics:
    """A list of names, or a pattern; a plain string that is a legal name is that topic.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(topics, re.Pattern):
        return topics
    if isinstance(topics, str):
        return [topics] if _LEGAL_NAME.fullmatch(topics) else compiled("subscribe", topics)
    names = list(topics) if isinstance(topics, Iterable) else [topics]
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"subscribe: expected topic names or a pattern, got {name!r}")
        if name.startswith("^"):
            compiled("subscribe", name)
    return names


def compiled(what: str, pattern: str) -> re.Pattern[str]:
    """A regular expression; ConfigError, naming the call and the pattern, if it is none."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{what}: {pattern!r} is no regular expression: {error}") from None
