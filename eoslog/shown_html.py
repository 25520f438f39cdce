"""Small HTML tables, which notebooks show for a log and its parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

__all__ = ["MOST_ROWS", "html_table"]

MOST_ROWS = 20
_LONGEST = 500


def html_table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[object]], count: int
) -> str:
    """Return a table of the first rows, with all texts escaped.

    Args:
        caption: the text above it.
        head: the names of the columns.
        rows: the rows. Only the first `MOST_ROWS` are taken; integers are aligned at their end.
        count: the number of all rows.
    """
    lines = [f"<table><caption style='text-align:left'>{_text(caption)}</caption>"]
    if count:
        lines.append(f"<tr>{''.join(f'<th>{_text(name)}</th>' for name in head)}</tr>")
    lines += [f"<tr>{''.join(map(_cell, row))}</tr>" for row in islice(rows, MOST_ROWS)]
    if count > MOST_ROWS:
        more = f"... {count - MOST_ROWS:,} more"
        lines.append(f"<tr><td colspan='{len(head)}'>{more}</td></tr>")
    return "\n".join([*lines, "</table>"])


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"<td style='text-align:right'>{value:,}</td>"
    return f"<td style='text-align:left'>{_text('' if value is None else str(value))}</td>"


def _text(text: str) -> str:
    from html import escape

    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}... ({len(text):,} characters)"
    return escape(text.encode("utf-8", "backslashreplace").decode())
