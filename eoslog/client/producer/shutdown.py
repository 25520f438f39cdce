"""Producers that were not closed, at the exit of a program and after a fork.

At exit, this module sends what the producers have buffered, for at most 5 s, and aborts open
transactions. It does so before the engine closes the directory. It also runs at the end of children
of `multiprocessing`, although forked ones end with `os._exit`. Other processes that end with
`os._exit` lose what is buffered.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from typing import Any

from eoslog.engine import registry
from eoslog.errors import EoslogError

# Imported first, so that its own hook runs last.
from eoslog.shown_paths import get_logger

__all__ = ["GATES", "producers", "remember"]

logger = get_logger("eoslog.client.producer")

GATES = _OPEN, _CLOSED, _FORKED, _NO_TRANSACTION = range(4)
"""The values of a producer's `_gate`; records are accepted only at 0."""
_WITHIN_S = 5.0
"""The time limit for all producers together."""

producers: weakref.WeakSet[Any] = weakref.WeakSet()
"""The producers of this process that are not closed."""
_ends_with = 0  # pid of the `multiprocessing` child that has this module's exit hook


def remember(producer: Any) -> None:
    """Close the producer at exit, unless it is closed before."""
    global _ends_with
    producers.add(producer)
    processes = sys.modules.get("multiprocessing.process")
    if processes is None or processes.parent_process() is None or _ends_with == os.getpid():
        return
    from multiprocessing.util import Finalize

    _ends_with = os.getpid()
    # Below 0: runs after its own children ended.
    Finalize(None, registry.close_all, exitpriority=-1)


def _after_fork() -> None:
    for producer in list(producers):
        producer._gate = _FORKED
        producer._link.end()


def _close_all() -> None:
    deadline = time.monotonic() + _WITHIN_S
    for producer in list(producers):
        if producer._gate in (_CLOSED, _FORKED):
            continue  # after a fork: another thread of the parent may have held its locks
        wait = min(producer._config.delivery_timeout_ms / 1000, deadline - time.monotonic())
        _close(producer, max(wait, 0.0))


def _close(producer: Any, wait: float) -> None:
    """Close a producer within `wait` seconds, and log what was lost."""
    deadline = time.monotonic() + wait
    if not producer._calls.acquire(timeout=wait):
        logger.warning(
            "%r: not closed at exit, because a thread is in a transactional call: %d buffered "
            "records may be lost",
            producer,
            producer.buffered,
        )
        return
    acks, error, opened = producer._sender.acks, None, False
    before = acks.failed
    try:
        opened = producer.transaction_state in ("IN_TRANSACTION", "ABORTABLE_ERROR")
        producer.close(max(deadline - time.monotonic(), 0.0))
    except EoslogError as failure:
        error = failure
    except Exception:
        logger.exception("%r: closed at exit with an error", producer)
    finally:
        producer._calls.release()
    if opened:
        logger.warning("%r: transaction still open at exit, aborted", producer)
    elif acks.failed > before:
        logger.warning(
            "%r: %d records not delivered at exit%s",
            producer,
            acks.failed - before,
            f": {error}" if error else "",
        )


registry.before_closing.append(_close_all)
os.register_at_fork(after_in_child=_after_fork)
