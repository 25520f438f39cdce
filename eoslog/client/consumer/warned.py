"""Warnings that are logged once per cause, although a loop repeats them."""

from __future__ import annotations

import logging

_MOST = 1000
"""The most subjects that are kept; a dropped subject is logged again."""


class Warned:
    """Logs a warning about a subject only if its text differs from the last one.

    Use it in one thread at a time.
    """

    def __init__(self, logger: logging.Logger) -> None:
        """Start without warnings."""
        self._logger = logger
        self._last: dict[object, str] = {}

    def warn(self, subject: object, text: str) -> None:
        """Log `text`, unless it equals the last text about the subject."""
        if self._last.get(subject) == text:
            return
        if len(self._last) >= _MOST:
            del self._last[next(iter(self._last))]
        self._last[subject] = text
        self._logger.warning("%s", text)

    def settle(self, subject: object) -> None:
        """Note that the cause has ended: the same text will be logged again."""
        self._last.pop(subject, None)
