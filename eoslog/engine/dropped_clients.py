"""Clients that were dropped without `close`.

Members leave their groups, and references to the directory are released. The finalizers only add an
entry, without a lock (`client/consumer/abandoned.py`). The background thread handles the entries
about once per second, and closing the directory handles them first.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable

from eoslog import _core
from eoslog.errors import EoslogError
from eoslog.shown_paths import get_logger

logger = get_logger("eoslog.consumer")


class DroppedClients:
    """The dropped clients of one open directory.

    Thread-safe. `note` takes no lock, because a finalizer may interrupt any code.

    Args:
        leave: removes a member from a group, by their ids.
        close: releases references to the directory.
    """

    def __init__(self, leave: Callable[[str, str], object], close: Callable[[int], object]) -> None:
        """Start without entries."""
        self._leave = leave
        self._close = close
        self._generation = _core.fork_generation()
        # (group, member id or "", whether it held a reference to the directory)
        self._noted: deque[tuple[str, str, bool]] = deque()

    def note(self, group_id: str, member_id: str, holds_reference: bool) -> None:
        """Add an entry for a client that was garbage collected; a producer has no group."""
        self._noted.append((group_id, member_id, holds_reference))

    def end(self) -> int:
        """Leave the groups, and return the number of directory references to release."""
        references = 0
        while self._noted and self._generation == _core.fork_generation():
            try:
                group_id, member_id, holds_reference = self._noted.popleft()
            except IndexError:  # another thread took it
                break
            references += holds_reference
            try:
                if member_id:
                    self._leave(group_id, member_id)
            except EoslogError as error:
                # The group's task tries again each second.
                logger.warning(
                    "group %s: dropped member %s could not leave, retrying: %s",
                    group_id,
                    member_id,
                    error,
                )
        return references

    def look(self) -> None:
        """Handle the entries in a thread of its own.

        Leaving waits for locks, which must not delay heartbeats. Releasing the last reference
        closes the directory, which waits for the background thread.
        """
        if self._noted:
            with contextlib.suppress(RuntimeError):  # no threads can start at interpreter shutdown
                threading.Thread(target=self._run, name="eoslog-dropped", daemon=True).start()

    def _run(self) -> None:
        references = self.end()
        if references:
            try:
                self._close(references)
            except Exception:
                logger.exception("dropped client: its directory was closed with an error")
