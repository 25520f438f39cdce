"""Producers that nobody has closed: what becomes of them in a forked child and when a program ends.

A program that ends without `close` sends what its producers hold, for some seconds; an open
transaction is aborted. That comes before the engine lets go of the directory. So it is in children
of `multiprocessing`, though they end by `os._exit` where they are forked; not where others end so.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
import weakref
from typing import Any

# Imported first, so that its own hook runs last.
import eoslog.engine
from eoslog.errors import EoslogError

__all__ = ["GATES", "producers", "remember"]

logger = logging.getLogger("eoslog.client.producer")

GATES = _OPEN, _CLOSED, _FORKED, _NO_TRANSACTION = range(4)
"""What a producer's `gate` says; 0 lets records in."""
_WITHIN_S = 5.0
"""All of them together; a disk that answers takes far less."""

producers: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those of this process that are not closed."""
_ends_with = 0  # the child of `multiprocessing` (its pid) that was asked to call us at its end


def remember(producer: Any) -> None:
    """Until it is closed."""
    global _ends_with
    producers.add(producer)
    processes = sys.modules.get("multiprocessing.process")
    if processes is None or processes.parent_process() is None or _ends_with == os.getpid():
        return
    from multiprocessing.util import Finalize

    _ends_with = os.getpid()
    Finalize(None, _close_child, exitpriority=-1)  # below 0: its own children have ended


def _close_child() -> None:
    _close_all()
    eoslog.engine._close_all()


def _after_fork() -> None:
    for producer in list(producers):
        producer.gate = _FORKED


@atexit.register
def _close_all() -> None:
    deadline = time.monotonic() + _WITHIN_S
    for producer in list(producers):
        if producer.gate in (_CLOSED, _FORKED):
            continue  # a child may not even ask for its locks: a thread of the parent had them
        wait = min(producer.config.delivery_timeout_ms / 1000, deadline - time.monotonic())
        _close(producer, max(wait, 0.0))


def _close(producer: Any, wait: float) -> None:
    """Close it within `wait` seconds, and tell what came to nothing."""
    deadline = time.monotonic() + wait
    if not producer._calls.acquire(timeout=wait):
        logger.warning(
            "%r: a thread was in a transactional call when the program ended; %d records that are "
            "buffered may be lost",
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
        logger.exception("%r: closed with an error when the program ended", producer)
    finally:
        producer._calls.release()
    if opened:
        logger.warning("%r: its transaction was open when the program ended: aborted", producer)
    elif acks.failed > before:
        logger.warning(
            "%r: %d records were not delivered when the program ended%s",
            producer,
            acks.failed - before,
            f": {error}" if error else "",
        )


os.register_at_fork(after_in_child=_after_fork)
