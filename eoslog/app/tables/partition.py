"""The changes of a transaction in one partition of a table, over a store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

__all__ = ["Changes", "Store", "TablePartition"]

Changes = dict[bytes, "bytes | None"]
"""The new value of each changed key; None deletes the key."""


class Store(Protocol):
    """The committed rows of one partition of a table."""

    applied: int
    """The offset in the table's topic up to which the rows contain the changes."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None for a missing one."""
        ...

    def __iter__(self) -> Iterator[bytes]: ...

    def __len__(self) -> int: ...

    def apply(self, changes: Changes, applied: int, last: bytes | None) -> bool:
        """Take over changes that have committed.

        Args:
            changes: the changes.
            applied: the offset after them in the table's topic.
            last: the key of the last one in the topic.

        Returns:
            False if another owner has taken over the rows; they are as it has left them.
        """
        ...

    def check_owner(self) -> None:
        """Check that no other owner has taken over the rows.

        Called before a transaction commits, because its tasks may have read other rows.

        Raises:
            TransactionAbortable: if another owner has taken over the rows.
        """
        ...

    def settle(self) -> None:
        """Note that the owner has applied all its changes, and ends."""
        ...

    def close(self) -> None:
        """Release the rows."""
        ...


class TablePartition:
    """One partition of a table, as one transaction sees it; used by one thread.

    A call of a task writes into `changes`. They become a part of the transaction when the call has
    succeeded, and a part of the store when the transaction has committed.

    Attributes:
        number: the number of the partition.
        count: the number of partitions of the table.
        largest: the `max.message.bytes` of the table's topic.
        changes: the changes of the current call.
        checked: keys that belong to this partition.
        end: the offset after the changes that were sent; None before they are.
    """

    def __init__(self, topic: str, number: int, count: int, largest: int, store: Store) -> None:
        """Begin without changes."""
        self.topic = topic
        self.number = number
        self.count = count
        self.largest = largest
        self.changes: Changes = {}
        self.checked: set[bytes] = set()
        self.end: int | None = None
        self.pending: Changes = {}
        self.store = store

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None for a missing one."""
        for changes in (self.changes, self.pending):
            if key in changes:
                return changes[key]
        return self.store.get(key)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the keys, as they are now."""
        changed = self.pending | self.changes
        kept = [key for key in self.store if key not in changed]
        yield from kept
        yield from (key for key, value in changed.items() if value is not None)

    def __len__(self) -> int:
        """Return the number of keys."""
        changed = self.pending | self.changes
        stored = sum(self.store.get(key) is not None for key in changed)
        return len(self.store) - stored + sum(value is not None for value in changed.values())

    def keep(self) -> None:
        """See `OwnedTables.keep`."""
        if self.changes:
            self.pending.update(self.changes)
            self.changes = {}

    def forget(self) -> None:
        """See `OwnedTables.forget`."""
        self.changes = {}

    def roll_back(self) -> None:
        """Drop the changes of the transaction."""
        self.changes, self.pending, self.end = {}, {}, None
        self.checked.clear()

    def apply(self) -> bool:
        """Take the changes of the committed transaction over into the store.

        Returns:
            False if another owner has taken over the rows.
        """
        pending, end = self.pending, self.end
        self.roll_back()
        if not pending or end is None:
            return not pending
        return self.store.apply(pending, end, next(reversed(pending)))
