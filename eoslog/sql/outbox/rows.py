"""Rows of an outbox, and the records that they become."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from eoslog._util.arguments import shown
from eoslog.errors import SerializationError

__all__ = ["OutboxRow"]


class OutboxRow(NamedTuple):
    """The content of one row, as the driver returns it."""

    id: Any
    topic: Any
    value: Any
    key: Any = None
    headers: Any = None
    partition: Any = None
    unreadable: str | None = None
    """Why the driver could not read the content; the id is known then."""

    def same(self, other: OutboxRow | None) -> bool:
        """Whether both have the same content; NaN is the same as NaN, as in PostgreSQL."""
        return other is not None and all(
            mine == its or (mine != mine and its != its)
            for mine, its in zip(self, other, strict=True)
        )

    def record(self) -> tuple[Any, dict[str, Any]]:
        """The topic, and the other arguments of `produce`.

        Raises:
            SerializationError: if the row cannot be a record.
        """
        if self.unreadable is not None:
            raise SerializationError(f"the driver cannot read the row ({self.unreadable})")
        if self.partition is not None and type(self.partition) is not int:
            raise SerializationError(
                f"partition: expected an integer or NULL, got {shown(self.partition)}"
            )
        return self.topic, {
            "value": _content("value", self.value),
            "key": _content("key", self.key),
            "headers": _headers(self.headers),
            "partition": self.partition,
        }


def _content(what: str, value: Any) -> bytes | str | None:
    if value is None or isinstance(value, bytes | str):
        return value
    if isinstance(value, int | Decimal | UUID) and not isinstance(value, bool):
        return str(value)
    raise SerializationError(
        f"{what}: expected a text, bytes, an integer or NULL, got {shown(value)}"
    )


def _headers(value: Any) -> list[tuple[str, bytes | None]] | None:
    if isinstance(value, str | bytes):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise SerializationError(
                f"headers: expected JSON, got {shown(value)} ({error})"
            ) from None
    if value is None:
        return None
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
        raise SerializationError(
            "headers: expected a JSON object of names and texts, or a JSON list of such pairs, got "
            f"{shown(value)}"
        )
    try:
        return [
            (name.encode().decode(), None if text is None else text.encode())
            for name, text in pairs
        ]
    except UnicodeEncodeError as error:
        raise SerializationError(f"headers: a name or text is not valid UTF-8 ({error})") from None


def _is_pair(pair: Any) -> bool:
    return (
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and (pair[1] is None or isinstance(pair[1], str))
    )
