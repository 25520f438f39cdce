"""What a notebook shows for an open log: its topics, with their records."""

from __future__ import annotations

from eoslog.admin import health
from eoslog.engine.engine import Engine
from eoslog.errors import EoslogError
from eoslog.shown_html import MOST_ROWS, html_table

__all__ = ["overview"]

_MOST_PARTITIONS = 100
"""The most partitions of a topic that are opened to count its records."""


def overview(engine: Engine, *, closed: bool) -> str:
    """Return an HTML table of the topics.

    Args:
        engine: the open directory.
        closed: whether the caller's handle is closed; nothing is read then.
    """
    words = [f"durability {engine.durability}", *(["read-only"] if engine.read_only else [])]
    caption = f"Log {engine.path} ({', '.join(words)})"
    if closed:
        return html_table(f"{caption}: closed", (), (), 0)
    try:
        engine.check()
        engine.session.refuse_outdated()
        engine.metadata.refresh()
    except EoslogError as error:
        return html_table(f"{caption}: {error}", (), (), 0)
    topics = engine.metadata.topics
    rows = []
    for name in sorted(topics)[:MOST_ROWS]:
        partitions = sorted(topics[name].partitions)
        rows.append((name, len(partitions), _records(engine, name, partitions)))
    return html_table(caption, ("topic", "partitions", "offsets in use"), rows, len(topics))


def _records(engine: Engine, topic: str, partitions: list[int]) -> int | str:
    if len(partitions) > _MOST_PARTITIONS:
        return ""
    total = 0
    for number in partitions:
        try:
            found = health.offsets_of_log(engine.partition(topic, number))
        except EoslogError as error:
            return f"{topic}-{number}: {type(error).__name__}"
        total += found.high_watermark - found.log_start
    return total
