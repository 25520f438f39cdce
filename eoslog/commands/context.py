"""The context of every command: open log, output format, progress on stderr."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

import eoslog
from eoslog import TopicPartition
from eoslog._util.arguments import as_directory
from eoslog.commands import nearby_logs
from eoslog.commands.printing.json_text import as_json
from eoslog.commands.printing.remedies import for_a_shell
from eoslog.commands.printing.tables import TableColumn, table_of
from eoslog.commands.quantities import key_value
from eoslog.errors import UNWRITABLE, StorageError, UnknownTopicOrPartition

if TYPE_CHECKING:
    from eoslog import Log

EXIT_CORRUPT = 5
FORMATS = ("table", "json", "jsonl", "csv")
Row = Mapping[str, Any]
Command = TypeVar("Command", bound=Callable[..., Any])


class CliContext:
    """The directory and the format that the options name.

    Args:
        directory: the log's directory; None for the one of the environment, or the current one.
        form: one of FORMATS, None for the one that fits where stdout goes.
    """

    def __init__(self, directory: str | None = None, form: str | None = None) -> None:
        """Open nothing; a command opens the log when it needs it."""
        self.directory = directory or os.environ.get("EOSLOG_DIR") or "."
        self.form = form or ("table" if sys.stdout.isatty() else "jsonl")
        self.given: dict[str, list[str]] = {}

    @contextmanager
    def log(self, *, read_only: bool = False, reads: bool = False) -> Iterator[Log]:
        """The log, open; it must exist.

        Args:
            read_only: open it read_only.
            reads: the command writes nothing: where the directory cannot be written, it is opened
                read_only.

        Raises:
            FileNotFoundError: there is no log; the message names those nearby.
            StorageError: as `eoslog.open`; of a command that writes where it cannot be written.
        """
        with self._open(read_only, reads) as log:
            yield log

    def _open(self, read_only: bool, reads: bool) -> Log:
        try:
            return eoslog.open(self.directory, create=False, read_only=read_only)
        except StorageError as error:
            if error.errno not in UNWRITABLE:
                self.refuse_missing(error)
            if read_only or error.errno not in UNWRITABLE:
                raise
            if not reads:
                raise StorageError(
                    f"{self.directory}: this command writes to the log, but {error}"
                ) from None
        log = eoslog.open(self.directory, create=False, read_only=True)
        self.say(f"eoslog: {self.directory} is not writable; reading it without recovery")
        return log

    def refuse_missing(self, error: Exception | None = None) -> None:
        """Raise FileNotFoundError if the directory has no log; the message names others.

        Args:
            error: what opening it raised.
        """
        # A log that lacks another file is damaged, and `init` would not repair that.
        # One that this user cannot look into may have one.
        try:
            os.stat(os.path.join(self.directory, "meta.properties"))
        except (FileNotFoundError, NotADirectoryError):
            why = str(error or f"{as_directory(self.directory)}: no log to open")
            raise FileNotFoundError(nearby_logs.missing(self.directory, why)) from None
        except (OSError, ValueError):
            return

    def show(self, rows: Iterable[Row], columns: Iterable[str] = ()) -> None:
        """Print rows, as `write` does, to a reader that may have enough (`| head`).

        The exit code then still says what the command found.
        """
        with suppress(BrokenPipeError):
            self.write(rows, columns)

    def echo(self, text: str = "") -> None:
        """Print a line below rows, as `show` does."""
        with suppress(BrokenPipeError):
            print(text)

    def write(
        self, rows: Iterable[Row], columns: Iterable[str] = (), *, header: bool = True
    ) -> None:
        """Print rows; all of one shape, `columns` names it where there may be none.

        Args:
            rows: name and value of each entry.
            columns: the names.
            header: CSV begins with the names.

        Raises:
            BrokenPipeError: the reader of stdout has ended.
        """
        if self.form == "jsonl":
            for row in rows:
                print(as_json(row))
            return
        if self.form == "csv":
            self._csv(rows, list(columns), header=header)
            return
        rows = list(rows)
        names = list(columns) or (list(rows[0]) if rows else [])
        if self.form == "json":
            print(as_json(rows, indent=2))
        else:
            self._table(rows, names)

    @staticmethod
    def _csv(rows: Iterable[Row], names: list[str], *, header: bool) -> None:
        if not names:
            rows = list(rows)
            names = list(rows[0]) if rows else []
        if header:
            print(",".join(map(_csv_field, names)))
        for row in rows:
            print(",".join([_csv_field(row.get(name)) for name in names]))

    def show_one(self, row: Row) -> None:
        """Print one object: as a two-column table on a terminal, otherwise as a row."""
        with suppress(BrokenPipeError):
            if self.form == "json":
                print(as_json(row, indent=2))
            elif self.form == "table":
                pairs: list[Row] = [{"": name, " ": value} for name, value in _flat(row)]
                self._table(pairs, ["", " "], header=False)
            else:
                self.write([row])

    def _table(self, rows: list[Row], names: list[str], *, header: bool = True) -> None:
        columns = [
            TableColumn(
                name,
                [shown(row.get(name)) for row in rows],
                bool(rows) and all(isinstance(row.get(name), int | float | None) for row in rows),
            )
            for name in names
        ]
        console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
        table, left_out = table_of(columns, console.width, header=header)
        with console.capture() as drawn:
            console.print(table)
        for line in drawn.get().splitlines():
            print(line.rstrip())
        if left_out:
            self.say(
                f"eoslog: the terminal has no room for {', '.join(left_out)}; widen it, or add "
                "--format json"
            )

    @staticmethod
    def say(text: str) -> None:
        """Print a remark for people on stderr."""
        click.echo(text, err=True)

    def for_a_shell(self, message: str) -> str:
        """Return a message with commands on the log of -d, if it was given."""
        return for_a_shell(message, self.directory if self.given.get("-d") else None)

    def end_if_offline(self, offline: Mapping[Any, Any]) -> None:
        """End with EXIT_CORRUPT where partitions cannot be opened, saying which, and why.

        Args:
            offline: reasons by partition.
        """
        if not offline:
            return
        for name, why in offline.items():
            self.say(self.for_a_shell(f"eoslog: {name} is offline: {why}"))
        self.say(self.for_a_shell("eoslog: `eoslog check` tells what is damaged"))
        raise click.exceptions.Exit(EXIT_CORRUPT)

    @staticmethod
    def progress(*, of: str = "items") -> Progress:
        """Return a progress bar on stderr, silent if stderr is not a terminal.

        Args:
            of: "items" or "bytes", for the count next to the bar; "" for none.
        """
        counts: dict[str, list[ProgressColumn]] = {
            "items": [MofNCompleteColumn()],
            "bytes": [DownloadColumn()],
            "": [],
        }
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            *counts[of],
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )


_CONTROL = re.compile("[\0-\x08\n-\x1f\x7f-\x9f\u2028\u2029]")
"""Control characters except the tab."""
_QUOTED = re.compile('[,"\r\n]')
"""The characters of a field of CSV that need quotes."""


def _flat(row: Row, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield name and value of each entry; a nested name follows its mapping's name."""
    for name, value in row.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield above + name, value


def _csv_field(value: Any) -> str:
    """Return a value as a field of CSV, as PostgreSQL's COPY writes it.

    Null is empty, and an empty text is in quotes. The `csv` module cannot do this before 3.12.
    """
    text = cell(value)
    if _QUOTED.search(text) or (not text and value is not None):
        return '"' + text.replace('"', '""') + '"'
    return text


def cell(value: Any) -> str:
    """Return a value as text for a table or CSV."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict | list | tuple):
        return as_json(value)
    return str(value)


def shown(value: Any) -> str:
    """Return a value for display, with control characters escaped."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], cell(value))


def counted(count: int, noun: str) -> str:
    """Return a count and its noun, in the singular for 1."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def partitions_of(log: Log, topics: Iterable[str], only: Sequence[int]) -> list[TopicPartition]:
    """The partitions of topics, or those with these numbers.

    Raises:
        UnknownTopicOrPartition: there is no such topic, or no topic has one of the numbers.
    """
    every = [
        TopicPartition(topic, about.partition)
        for topic in topics
        for about in log.describe_topic(topic).partitions
    ]
    missing = sorted(set(only) - {tp.partition for tp in every})
    if missing:
        named = dict.fromkeys(tp.topic for tp in every)
        commands = " and ".join(f"`eoslog topic describe {name}`" for name in named)
        raise UnknownTopicOrPartition(
            f"no such partition: {', '.join(map(str, missing))}; see {commands}"
        )
    return [tp for tp in every if not only or tp.partition in only]


def key_values(items: Iterable[str]) -> dict[str, str]:
    """`-c key=value` options as a dict, with durations in ms and sizes in bytes.

    Raises:
        click.BadParameter: an item has no equals sign.
    """
    result = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"expected KEY=VALUE, got {item!r}")
        result[key.strip()] = key_value(key.strip(), value.strip())
    return result


def config_option(example: str) -> Callable[[Command], Command]:
    """Return the option -c of a command.

    Args:
        example: keys that the command accepts, with values.
    """
    return click.option(
        "-c",
        "--config",
        multiple=True,
        metavar="KEY=VALUE",
        help=f"Set a configuration key, such as {example}; repeatable.",
    )
