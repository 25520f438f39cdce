"""Records whose task failed, as they are stored in the topics of an app.

An app has two topics of its own. `APP.retries` has the records that wait for their next attempt,
and `APP.dead` the dead letters. A record is stored there with its key, value and headers, followed
by the headers of `OWN`, in this order. They come last and are never removed one by one, so headers
of the record with the same names stay as they are.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from eoslog.shown_values import printable

__all__ = ["OWN", "FailedRecord", "Headers", "cause_of", "dead_topic", "retry_topic"]

Headers = Sequence[tuple[str, bytes | None]]

OWN = (
    "eoslog.app", "eoslog.task", "eoslog.topic", "eoslog.partition", "eoslog.offset",
    "eoslog.timestamp", "eoslog.attempts", "eoslog.cause", "eoslog.traceback",
)  # fmt: skip
"""The headers that follow those of the record."""
_NUMBERS = frozenset({"partition", "offset", "timestamp", "attempts"})
_LENGTHS = 10
"""The most bytes of the lengths of a field."""
_LONGEST_CAUSE = 1000
_LONGEST_TRACEBACK = 4000


def dead_topic(app: str) -> str:
    """Return the topic of an app's dead letters."""
    return f"{app}.dead"


def retry_topic(app: str) -> str:
    """Return the topic of an app's records that wait for their next attempt."""
    return f"{app}.retries"


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """A record of a task's input, unparsed, with what became of it."""

    app: str
    task: str
    topic: str
    partition: int
    offset: int
    timestamp: int
    attempts: int
    """The attempts that ended, by an error or by the exit of the process."""
    cause: str
    """The class and text of the last error; empty if there was none yet."""
    traceback: str = ""
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @classmethod
    def of(cls, app: str, task: str, record: Any, attempts: int, error: Any) -> FailedRecord:
        """Return a record of a task's input with the error of its last attempt.

        Args:
            app: the id of the app.
            task: the name of the task.
            record: an unparsed `Record`, or a `FailedRecord`.
            attempts: the number of attempts, this one included.
            error: the exception, or the cause as text.
        """
        cause, trace = cause_of(error)
        return cls(
            app, task, record.topic, record.partition, record.offset, record.timestamp,
            attempts, cause, trace, record.key, record.value, tuple(record.headers),
        )  # fmt: skip

    @classmethod
    def stored(cls, key: bytes | None, value: bytes | None, headers: Headers) -> FailedRecord:
        """Return the failed record of a stored one.

        Raises:
            ValueError: if the headers do not end with those of `OWN`.
        """
        own = headers[-len(OWN) :]
        if tuple(name for name, _ in own) != OWN:
            raise ValueError("the record has no headers of a failed record")
        fields: dict[str, Any] = {}
        for name, data in own:
            text = (data or b"").decode("utf-8", "replace")
            short = name.removeprefix("eoslog.")
            fields[short] = int(text) if short in _NUMBERS else text
        return cls(**fields, key=key, value=value, headers=tuple(headers[: -len(OWN)]))

    def all_headers(self) -> list[tuple[str, bytes | None]]:
        """Return the record's headers and those of `OWN`."""
        own = [(name, str(getattr(self, name.removeprefix("eoslog."))).encode()) for name in OWN]
        return [*self.headers, *own]

    @property
    def place(self) -> tuple[str, int, int, str]:
        """Topic, partition, offset and task, which name this failure in an app."""
        return (self.topic, self.partition, self.offset, self.task)

    @property
    def size(self) -> int:
        """The most bytes that the key, the value and the headers need in a batch."""
        sizes = [len(self.key or b""), len(self.value or b"")]
        sizes += [4 * len(name) + len(data or b"") for name, data in self.headers]
        return sum(sizes) + _LENGTHS * len(sizes)

    def again(self, **changes: Any) -> FailedRecord:
        """Return the record with some fields changed."""
        return replace(self, **changes)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} at offset {self.offset}"


def place_key(kind: str, of: object, place: tuple[str, int, int, str]) -> bytes:
    """Return a key of the retry topic that names a place.

    Args:
        kind: what the record of the retry topic is.
        of: the id of the input topic, or the number of a replay.
        place: the place.
    """
    return json.dumps([kind, of, *place], separators=(",", ":")).encode()


def cause_of(error: Any) -> tuple[str, str]:
    """Return the class and text of an error, and its traceback, both shortened.

    The traceback ends with the innermost calls, so its beginning is left out.
    """
    if not isinstance(error, BaseException):
        return printable(str(error))[:_LONGEST_CAUSE], ""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "eoslog.errors"):
        name = f"{kind.__module__}.{name}"
    try:
        text = str(error)
    except Exception:
        text = "<its text cannot be made>"
    try:
        trace = "".join(traceback.format_exception(error))
    except Exception:
        trace = ""
    cause = printable(f"{name}: {text}" if text else name)
    return cause[:_LONGEST_CAUSE], printable(trace)[-_LONGEST_TRACEBACK:]
