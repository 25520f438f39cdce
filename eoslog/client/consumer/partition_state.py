"""The state of one partition of a consumer: its position, and fetched records.

Source: Kafka SubscriptionState.TopicPartitionState.
"""

from __future__ import annotations

from typing import Any

from eoslog import _core
from eoslog.client.consumer.read_ahead import ReadAhead
from eoslog.model import EARLIEST, TopicPartition

__all__ = ["TopicPartitionState"]


class TopicPartitionState(_core.FetchedRecords):
    """One assigned partition: its position, and fetched records."""

    __slots__ = (
        "ahead", "blocked_at", "committed", "log", "next_drive", "partition", "reset", "start",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition) -> None:
        """Start without a position."""
        self.partition = TopicPartition(partition.topic, partition.partition)
        self.log: Any = None
        # Records that were decoded before they were durable.
        self.ahead: ReadAhead | None = None
        # Where reading began: a rewind returns to it if no offset was committed.
        self.start: int | None = None
        # "earliest" or "latest" after a seek there; None: the committed offset, or the policy.
        self.reset: str | None = None
        # The last known committed offset.
        self.committed: int | None = None
        # The last stable offset that blocks the reader, and when to act on it (monotonic).
        self.blocked_at = -1
        self.next_drive = 0.0

    @property
    def unfinished(self) -> bool:
        """Whether records were returned that are not known to be committed.

        A seek to the committed offset, or to where reading began, makes this False: the records are
        read again, by this consumer or by the next owner of the partition.
        """
        last = self.last_returned
        if last is None or self.of_deleted:
            return False
        first = self.start if self.committed is None else self.committed
        if self.position is None:
            taken_back = self.reset == EARLIEST
        else:
            taken_back = first is not None and self.position <= first
        return not taken_back and (self.committed is None or last >= self.committed)

    @property
    def of_deleted(self) -> bool:
        """Whether the position belongs to a deleted topic; a new topic may have its name."""
        return self.log is not None and self.log.core.deleted

    @property
    def topic_id(self) -> bytes | None:
        """The id of the topic of the position; None before the first read."""
        return None if self.log is None else self.log.topic_id

    def move_to(self, offset: int) -> None:
        """Move the position, and drop fetched records."""
        self.drop_fetched()
        if self.of_deleted:
            self.log = None  # the offset belongs to the topic that has the name now
        self.position = offset
        self.reset = None
        if self.start is None:
            self.start = offset

    def place(self) -> tuple[Any, ...]:
        """The state that `put_back` restores."""
        return self.position, self.reset, self.log, self.last_returned

    def put_back(
        self, position: int | None, reset: str | None, log: Any, last_returned: int | None
    ) -> None:
        """Restore the state of `place`, because the caller did not get the records.

        If the topic was re-created since, all state is dropped.
        """
        if log is not None and (self.log is None or self.log.topic_id != log.topic_id):
            self.forget()
            return
        self.drop_fetched()
        self.position = position
        self.reset = reset
        self.last_returned = last_returned

    def rewind(self) -> None:
        """Drop the position; the next read starts at the committed offset or at `start`."""
        self.drop_fetched()
        self.position = None
        self.reset = None
        self.last_returned = None

    def forget(self) -> None:
        """Drop all state, because the topic was deleted and re-created."""
        self.rewind()
        self.start = self.committed = None

    def go_to(self, place: int | str) -> None:
        """Move to an offset, or to "earliest" or "latest"."""
        if isinstance(place, str):
            self.ask_reset(place)
        else:
            self.move_to(place)

    def ask_reset(self, policy: str) -> None:
        """Move to the log's start or end when the position is needed next."""
        self.drop_fetched()
        self.position = None
        self.reset = policy
