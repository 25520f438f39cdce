"""What the documentation says of each configuration key."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from eoslog.config.keys import ConsumerConfig, LogConfig, ProducerConfig, TopicConfig
from eoslog.config.parsing import INT_MAX, LONG_MAX, Settings

__all__ = ["KINDS", "DocumentedKey", "keys_of"]

KINDS: dict[str, type[Settings]] = {
    kind.KIND: kind for kind in (ProducerConfig, ConsumerConfig, TopicConfig, LogConfig)
}
"""The configuration classes, by the name of their kind."""


@dataclass(frozen=True, slots=True)
class DocumentedKey:
    """A configuration key.

    Attributes:
        kind: producer, consumer, topic or log.
        name: its name, with dots.
        meaning: what it does, as Markdown.
        values: what it accepts.
        unit: of its number; empty: none.
        default: its default, as a user writes it.
        aliases: other names.
        kafka: the difference to Kafka's key; empty: none.
    """

    kind: str
    name: str
    meaning: str
    values: str
    unit: str
    default: str
    aliases: tuple[str, ...]
    kafka: str


def keys_of(kind: str) -> list[DocumentedKey]:
    """Return the keys of a kind, in the order of the reference page."""
    cls = KINDS[kind]
    aliases: dict[str, list[str]] = {}
    for alias, key in {**cls.ALIASES, **cls.DEPRECATED}.items():
        aliases.setdefault(key, []).append(alias)
    found = []
    for item in fields(cls):
        if "parser" not in item.metadata:
            continue
        name, meta = item.name.replace("_", "."), item.metadata
        default = "all" if (cls, name) == (ProducerConfig, "acks") else _default(item.default)
        found.append(
            DocumentedKey(
                kind, name, meta["doc"], _values(meta["parser"].expects), meta["unit"], default,
                tuple(sorted(aliases.get(name, ()))), meta["kafka"],
            )
        )  # fmt: skip
    return found


def _default(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return {None: "none", "": "empty"}.get(value, str(value))  # type: ignore[call-overload,no-any-return]


def _values(expects: str) -> str:
    text = re.sub(r"^(an?|one of) ", "", expects).removesuffix(", or None")
    text = re.sub(r"\bin (-?[\d.]+)\.\.(-?[\d.]+)", r", \1 to \2", text).replace(" ,", ",")
    text = text.replace(f"to {LONG_MAX}", "or more").replace(f"to {INT_MAX}", "or more")
    return re.sub(r", (-?\d+) or more", r", \1 or more", text)
