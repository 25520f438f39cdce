"""Tables for people, as wide as the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

_GAP = 2
"""Spaces between two columns."""


@dataclass
class TableColumn:
    """A column of a table.

    Attributes:
        name: its header.
        cells: its text in each row.
        number: whether they are numbers.
    """

    name: str
    cells: list[str]
    number: bool

    def head(self, *, folded: bool) -> str:
        """Return the header, in one line or with a line for each word."""
        return self.name.replace("_", "_\n") if folded else self.name

    def least(self, *, folded: bool) -> int:
        """Return the least width that folds no word of the header and no number."""
        head = max(map(cell_len, self.head(folded=folded).split("\n")))
        return max(head, self.widest if self.number else 1)

    @cached_property
    def widest(self) -> int:
        """The width of the widest cell."""
        return max(map(cell_len, self.cells), default=0)


def table_of(
    columns: Sequence[TableColumn], width: int, *, header: bool = True
) -> tuple[Table, list[str]]:
    """Return a table that fits a width, and the names of columns that do not."""
    folded = _together(column.least(folded=False) for column in columns) > width
    shown = list(columns)
    while len(shown) > 1 and _together(column.least(folded=folded) for column in shown) > width:
        shown.pop()
    least = [column.least(folded=folded) for column in shown]
    widths = [max(low, min(column.widest, width)) for low, column in zip(least, shown, strict=True)]
    while _together(widths) > width:
        spare = [now - low and now for now, low in zip(widths, least, strict=True)]
        if not any(spare):
            break  # the only column, with a header that does not fit
        widths[spare.index(max(spare))] -= 1
    table = Table(box=None, show_header=header, header_style="bold", pad_edge=False)
    for column, size in zip(shown, widths, strict=True):
        table.add_column(
            Text(column.head(folded=folded)), width=size, overflow="fold",
            justify="right" if column.number else "left",
        )  # fmt: skip
    for row in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*map(Text, row))  # not str: what users store must not be read as markup
    return table, [column.name for column in columns[len(shown) :]]


def _together(widths: Iterable[int]) -> int:
    every = list(widths)
    return sum(every) + _GAP * (len(every) - 1)
