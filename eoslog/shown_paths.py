"""Translation of internal file names into the paths that callers know.

A session opens its directory once, and names every file through that descriptor, as in
`/proc/self/fd/7/topic-0` (`storage/fs/opened_directory.py`). Such a name has no meaning in other
processes. Errors, log records and reports translate it into the caller's path.
"""

from __future__ import annotations

import logging
import re

DESCRIPTORS = "/proc/self/fd/"
_NAME = re.compile(re.escape(DESCRIPTORS) + r"([0-9]+)(?![0-9])")
_directories: dict[int, str] = {}


def register(fd: int, path: str) -> None:
    """Show names below this descriptor as names below `path` from now on.

    The entry stays after the descriptor is closed, for errors that are created later. The next
    directory with the same descriptor replaces it.
    """
    _directories[fd] = path


def shown(text: str) -> str:
    """Return the text with callers' paths in place of descriptor names."""
    if DESCRIPTORS not in text:
        return text
    return _NAME.sub(lambda found: _directories.get(int(found[1]), found[0]), text)


class _Shown(logging.Filter):
    """A filter that translates log records before a handler formats them."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if DESCRIPTORS in message:
            record.msg, record.args = shown(message), ()
        return True


_filter = _Shown()


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module, whose records show callers' paths."""
    logger = logging.getLogger(name)
    logger.addFilter(_filter)  # `addFilter` does not add a filter twice
    return logger
