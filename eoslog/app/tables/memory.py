"""A store in memory, which is read from the table's topic."""

from __future__ import annotations

from collections.abc import Iterator

from eoslog.app.tables.partition import Changes

__all__ = ["MemoryStore"]


class MemoryStore:
    """The committed rows of one partition, in a dict."""

    def __init__(self) -> None:
        """Start empty; nothing is applied."""
        self._rows: dict[bytes, bytes] = {}
        self.applied = -1
        self.get = self._rows.get

    def __iter__(self) -> Iterator[bytes]:
        return iter(list(self._rows))

    def __len__(self) -> int:
        return len(self._rows)

    def apply(self, changes: Changes, applied: int, last: bytes | None) -> bool:
        """See `Store.apply`."""
        rows = self._rows
        rows.update(changes)  # type: ignore[arg-type]
        for key in [key for key, value in changes.items() if value is None]:
            del rows[key]
        self.applied = applied
        return True

    def check_owner(self) -> None:
        """See `Store.check_owner`; a process has its own memory."""

    def settle(self) -> None:
        """See `Store.settle`; the rows end with their owner."""

    def close(self) -> None:
        """See `Store.close`."""
        self._rows.clear()
