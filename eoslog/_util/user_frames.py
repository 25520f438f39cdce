"""Where the user's code begins in a traceback."""

from __future__ import annotations

from types import TracebackType

__all__ = ["user_frames"]

_CALLERS = frozenset({"eoslog", "asyncio", "importlib"})
"""The packages whose frames come before those of the user's code."""


def user_frames(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error from the first frame of the user's code.

    Args:
        error: raised by code that eoslog calls itself, in an event loop, or by an import.

    Returns:
        The rest of the traceback, with its frames of eoslog; None if no frame is the user's.
    """
    frames = error.__traceback__
    while frames is not None:
        module = str(frames.tb_frame.f_globals.get("__name__"))
        if module.partition(".")[0] not in _CALLERS:
            break
        frames = frames.tb_next
    return frames
