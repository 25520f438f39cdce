"""Closing a consumer while one of its calls waits.

The call waits in another thread, or under a signal handler that closes the consumer.

The waiting call checks `OneThread.interrupted` at least every 50 ms, and ends. The closing thread
waits until no call is running. A signal handler cannot wait for the call that it interrupted, so
that call closes the consumer when it ends.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

from eoslog import _core
from eoslog.client.consumer.membership import Membership
from eoslog.client.consumer.offset_commits import OffsetCommits
from eoslog.client.consumer.poll_loop import PollLoop
from eoslog.errors import EoslogError, IllegalState
from eoslog.shown_paths import get_logger

__all__ = ["ConsumerClosing"]

logger = get_logger("eoslog.consumer")

_CLOSE_WAIT_S = 30.0  # for another thread's call to end
_CLOSE_SLICE_S = 0.001


class ConsumerClosing:
    """Closes one consumer. Thread-safe."""

    def __init__(
        self,
        use: _core.OneThread,
        commits: OffsetCommits,
        membership: Membership,
        loop: PollLoop,
        guard: weakref.finalize[..., Any],
        let_go: Callable[[], object] | None,
    ) -> None:
        """Keep the consumer's parts.

        Args:
            use: the consumer's guard against use by two threads.
            commits: commits offsets at the end.
            membership: the consumer's membership in its group.
            loop: knows whether the interrupted call has returned records.
            guard: the finalizer of a dropped consumer; it is detached on close.
            let_go: closes the directory; None if the directory outlives the consumer.
        """
        self._use = use
        self._commits = commits
        self._membership = membership
        self._loop = loop
        self._guard = guard
        self._let_go = let_go

    def close(self) -> None:
        """See `Consumer.close`."""
        use = self._use
        if use.closed or use.forked:
            use.closed = True
            return
        if use.in_use_here:
            self._membership.refuse_in_listener("close")
            use.closing, use.at_exit = True, weakref.WeakMethod(self._close_at_exit)
            return
        try:
            waited = self._take()
            self._close_taken(commit=not (waited and self._loop.handed_out))
        finally:
            if use.in_use_here:
                use.__exit__()

    def _take(self) -> bool:
        """Become the consumer's user; return whether another thread's call had to end."""
        use = self._use
        deadline = time.monotonic() + _CLOSE_WAIT_S
        waited = False
        while not use.take_to_close():
            use.closing = waited = True
            if time.monotonic() >= deadline:
                use.at_exit = weakref.WeakMethod(self._close_at_exit)
                raise IllegalState(
                    f"close: a call in thread {use.last_user} has not ended within "
                    f"{_CLOSE_WAIT_S:g} s; the consumer will be closed when that call ends"
                )
            time.sleep(_CLOSE_SLICE_S)
        return waited

    def _close_at_exit(self) -> None:
        """Close in the thread of the call that `close` interrupted, when that call ends."""
        if self._use.closed or self._use.forked or not self._use.take_to_close():
            return
        try:
            self._close_taken(commit=not self._loop.handed_out)
        except EoslogError as error:
            logger.warning("consumer closed with an error: %s", error)
        finally:
            self._use.__exit__()

    def _close_taken(self, *, commit: bool) -> None:
        """Close the consumer; `take_to_close` has made this thread its user.

        Args:
            commit: False if the interrupted call has returned records. They are not processed yet,
                so auto-commit must not commit them.
        """
        use = self._use
        if use.closed:
            return
        if not commit:
            self._commits.stop_auto_commit()
        try:
            self._membership.leave()
        finally:
            self._membership.hand_over()
            use.closed = True
            self._guard.detach()
            if self._let_go is not None:
                self._let_go()
