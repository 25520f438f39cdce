"""`eoslog consume`."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from eoslog import IsolationLevel, TopicPartition
from eoslog.commands.context import CliContext, config_option, counted, key_values, partitions_of
from eoslog.commands.formatting import CSV_COLUMNS, Formats, format_options, line_of, row_of
from eoslog.commands.offset_range import in_range
from eoslog.commands.quantities import Moment
from eoslog.errors import CommitFailed, SerializationError
from eoslog.model import EARLIEST, LATEST

if TYPE_CHECKING:
    from eoslog import Consumer, Log, Record

_CHUNK = 1_000
_IDLE_S = 1.0


@click.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("-g", "--group", help="Resume at the committed offsets of this group, and commit.")
@click.option(
    "-b",
    "--from-beginning",
    is_flag=True,
    help="With -f, begin at the start of the log instead of its end.",
)
@click.option("-o", "--offset", type=int, help="Begin at this offset of each partition.")
@click.option(
    "--tail",
    type=click.IntRange(1),
    metavar="N",
    help="Begin with the last N records, by timestamp.",
)
@click.option(
    "--since",
    type=Moment(),
    help="Only records of this time or later: 2026-11-26T14:30 (local), ...Z, or 90m (ago).",
)
@click.option("--until", type=Moment(), help="Only records before this time.")
@click.option("-k", "--key", metavar="TEXT", help="Only records with this key.")
@click.option(
    "-p",
    "--partition",
    "only",
    type=int,
    multiple=True,
    help="Read only this partition; repeatable.",
)
@click.option(
    "-n", "--max", "limit", type=click.IntRange(1), help="Stop after this number of records."
)
@click.option(
    "-f", "--follow", is_flag=True, help="Wait for new records instead of stopping at the end."
)
@click.option(
    "--isolation", type=click.Choice([level.value for level in IsolationLevel]),
    default=IsolationLevel.READ_COMMITTED.value, show_default=True,
    help="Whether records of open and aborted transactions are printed.",
)  # fmt: skip
@format_options
@config_option("fetch.max.bytes=8MiB or auto.offset.reset=latest")
@click.pass_obj
def consume(
    context: CliContext,
    topics: tuple[str, ...],
    group: str | None,
    from_beginning: bool,
    offset: int | None,
    tail: int | None,
    since: int | None,
    until: int | None,
    key: str | None,
    only: tuple[int, ...],
    limit: int | None,
    follow: bool,
    isolation: str,
    key_format: str | None,
    value_format: str | None,
    config: tuple[str, ...],
) -> None:
    r"""Print the records of topics.

    Prints lines on a terminal, and JSON objects otherwise. Begins at the start of the log, with -f
    at its end, and with -g at the group's committed offsets. With -g, offsets are committed after
    the records before them are printed.

    With --key-format or --value-format, keys or values are decoded: numbers and objects are JSON.
    Numbers that JSON lacks are the texts "NaN", "Infinity" and "-Infinity". The first record that
    cannot be decoded ends the command.

    In CSV, a null key or value is an empty field, and an empty one is "". A value with bytes that
    are not UTF-8 is in value_hex, and a key in key_hex.

    Exit code 2 if no partition contains the offset of -o.

    \b
    Examples:
      eoslog -d shop consume orders --max 5
      eoslog -d shop consume orders --tail 3 --key ada
      eoslog -d shop consume orders --value-format json | jq .value.price
      eoslog -d shop consume orders --since 2h --until 90m
      eoslog -d shop consume orders -g billing -f | jq .value
    """
    if group is not None and (only or offset is not None):
        raise click.UsageError(
            "a group selects partitions and offsets itself; leave out -p and -o, or -g"
        )
    _refuse_two(
        ("-b", from_beginning), ("-o", offset is not None), ("--tail", tail is not None),
        ("--since", since is not None),
    )  # fmt: skip
    if group is not None and (tail, since, until, key) != (None,) * 4:
        raise click.UsageError(
            "a group commits what it has read, so it must print every record; leave out --tail, "
            "--since, --until and --key, or -g"
        )
    if until is not None and (follow or tail is not None):
        raise click.UsageError("--until excludes -f and --tail; leave it out, or these")
    if since is not None and until is not None and since >= until:
        raise click.UsageError("--since is not before --until, so no record is in between")
    if follow and context.form == "json":
        raise click.UsageError(
            "--format json prints one array, and -f does not end; use --format jsonl"
        )
    formats = Formats(key_format, value_format)
    key_bytes = None if key is None else formats.from_text("key", key.encode())
    start = EARLIEST if from_beginning or not follow else LATEST
    settings: dict[str, Any] = {
        "auto.offset.reset": start, "isolation.level": isolation, **key_values(config),
    }  # fmt: skip
    commits = group is not None and _commits_by_hand(settings)
    with ExitStack() as stack:
        log = stack.enter_context(context.log(reads=True))
        wanted = partitions_of(log, topics, only)
        ends = None if follow else {tp: _end(log, tp, isolation) for tp in wanted}
        if group is not None and log.read_only:
            commits = False
            settings["enable.auto.commit"] = "false"
            context.say(f"eoslog: reading from the offsets of group {group}; committing none")
            reader = stack.enter_context(log.consumer(group_id=group, **settings))
            reader.assign(wanted)
        elif group is None:
            reader = stack.enter_context(log.consumer(**settings))
            if tail is not None:
                after = {tp: _end(log, tp, isolation) for tp in wanted}
                last = _last(log, after, tail, key_bytes, isolation)[:limit]
                deque(_printed(context, [last], formats), maxlen=0)
                limit = None if limit is None else limit - len(last)
                if not follow or limit == 0:
                    return
                reader.assign(
                    [TopicPartition(tp.topic, tp.partition, end) for tp, end in after.items()]
                )
            elif since is not None:
                reader.assign(_from_time(log, wanted, since))
            else:
                reader.assign(_from(log, wanted, offset))
        else:
            reader = stack.enter_context(log.consumer(*topics, group_id=group, **settings))
        if follow and tail is None and since is None:
            _say_start(context, log, wanted, group, offset, settings["auto.offset.reset"])
        committed: dict[TopicPartition, int] = {}
        wants = Wanted(key_bytes, since, until)
        for unprinted in _printed(context, _chunks(reader, ends, limit, wants), formats):
            _rewind(reader, unprinted)
            if commits and reader.positions() != committed:
                committed = _commit(context, reader)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The records that are printed.

    Attributes:
        key: their key; None: all keys.
        since: the lowest timestamp in ms; None: no limit.
        until: the timestamp above the highest one in ms; None: no limit.
    """

    key: bytes | None
    since: int | None
    until: int | None

    def of(self, records: list[Record]) -> list[Record]:
        """Return the records that are wanted."""
        if self == _ALL:
            return records
        low = -sys.maxsize if self.since is None else self.since
        high = sys.maxsize + 1 if self.until is None else self.until
        return [
            record
            for record in records
            if low <= record.timestamp < high and self.key in (None, record.key)
        ]


_ALL = Wanted(None, None, None)


def _refuse_two(*options: tuple[str, bool]) -> None:
    """Refuse more than one option that says where to begin.

    Raises:
        click.UsageError: if there are two.
    """
    given = [name for name, used in options if used]
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} and {given[1]} exclude each other; leave one out")


def _last(
    log: Log, ends: dict[TopicPartition, int], count: int, key: bytes | None, isolation: str
) -> list[Record]:
    """Return the last records below `ends`, over all partitions."""
    found = [
        record
        for tp, end in ends.items()
        for record in log.last(tp.topic, count, tp.partition, key=key, end=end, isolation=isolation)
    ]
    found.sort(key=lambda record: (record.timestamp, record.partition, record.offset))
    return found[-count:]


def _from_time(log: Log, every: list[TopicPartition], since: int) -> list[TopicPartition]:
    """Return the first offset at or after a time, of each partition."""
    return [
        TopicPartition(
            tp.topic, tp.partition, log.offset_for_time(tp.topic, tp.partition, max(since, 0))
        )
        for tp in every
    ]


def _commits_by_hand(settings: dict[str, str]) -> bool:
    """Turn auto-commit off: it would commit records that are not printed yet.

    Returns:
        Whether there is anything to commit; not if the user does not want it, or before.
    """
    asked = settings.get("enable.auto.commit", "true").lower()
    if asked != "true" or settings.get("processing.guarantee", "").lower() == "at_most_once":
        return False
    settings["enable.auto.commit"] = "false"
    return True


def _commit(context: CliContext, reader: Consumer) -> dict[TopicPartition, int]:
    """Commit the reader's positions, and return the committed offsets."""
    try:
        reader.commit()
    except CommitFailed as error:  # the group rebalanced; the next poll rejoins it
        context.say(f"eoslog: some records may be printed again: {error}")
        return {}
    return reader.positions()


def _end(log: Log, at: TopicPartition, isolation: str) -> int:
    ends = log.offsets(at.topic, at.partition)
    return ends.last_stable if isolation == "read_committed" else ends.high_watermark


def _from(log: Log, every: list[TopicPartition], offset: int | None) -> list[TopicPartition]:
    """Return where to begin; a missing offset would be reset to the start or the end."""
    if offset is None:
        return every
    ends = {tp: log.offsets(tp.topic, tp.partition) for tp in every}
    found = in_range("-o", offset, {tp: (e.log_start, e.high_watermark) for tp, e in ends.items()})
    return [TopicPartition(tp.topic, tp.partition, at) for tp, at in found.items()]


def _say_start(
    context: CliContext,
    log: Log,
    wanted: list[TopicPartition],
    group: str | None,
    offset: int | None,
    reset: str,
) -> None:
    """Print where following starts, because earlier records are easily missed."""
    if offset is not None:
        context.say(f"eoslog: following from offset {offset}")
        return
    committed = []
    if group is not None and group in log.groups():
        offsets = log.describe_group(group).offsets
        committed = [tp for tp in wanted if tp in offsets]
    others = len(wanted) - len(committed)
    at_end = reset.lower() in (LATEST, "largest", "end")
    where = "the end (-b starts at the beginning)" if at_end else "the beginning"
    if not committed:
        context.say(f"eoslog: following from {where}")
        return
    context.say(
        f"eoslog: following from the committed offsets of group {group}"
        + (f", {counted(others, 'partition')} without one from {where}" if others else "")
    )


def _chunks(
    reader: Consumer, ends: dict[TopicPartition, int] | None, limit: int | None, wants: Wanted
) -> Iterator[list[Record]]:
    """Yield wanted records up to `ends`, or forever; the last offset may be a marker.

    At any time the reader's positions are after the yielded records.
    """
    left = sys.maxsize if limit is None else limit
    idle_since = time.monotonic()
    while left > 0:
        fetched = reader.consume(min(left, _CHUNK), timeout=0.2)
        records = wants.of(fetched if ends is None else _up_to(ends, reader, fetched))
        left -= len(records)
        yield records
        if fetched:
            idle_since = time.monotonic()
        if ends is not None:
            at = reader.positions()
            if at and all(at[tp] >= ends.get(tp, 0) for tp in at):
                return
            if at and not fetched and time.monotonic() - idle_since > _IDLE_S:
                return


def _up_to(
    ends: dict[TopicPartition, int], reader: Consumer, records: list[Record]
) -> list[Record]:
    """Return the records before their partition's end; rewind to the others."""
    kept: list[Record] = []
    others: list[Record] = []
    for record in records:
        end = ends.get(TopicPartition(record.topic, record.partition), 0)
        (kept if record.offset < end else others).append(record)
    reader.pause(_rewind(reader, others))
    return kept


def _rewind(reader: Consumer, records: list[Record]) -> list[TopicPartition]:
    """Move the reader to the first of the records in each partition; return these."""
    back: dict[TopicPartition, int] = {}
    for record in records:
        back.setdefault(TopicPartition(record.topic, record.partition), record.offset)
    for at, offset in back.items():
        reader.seek(at, offset)
    return list(back)


def _printed(
    context: CliContext, chunks: Iterable[list[Record]], formats: Formats
) -> Iterator[list[Record]]:
    """Print each chunk, then yield its records that could not be printed.

    Raises:
        SerializationError: after the yield, if there are such records.
    """
    if context.form == "json":
        chunks = [[record for chunk in chunks for record in chunk]]
    elif context.form == "csv":
        context.write((), CSV_COLUMNS)
    for chunk in chunks:
        lines, error = _decoded(context, chunk, formats)
        if context.form == "table":
            for line in lines:
                print(line)
        else:
            context.write(lines, CSV_COLUMNS, header=False)
        sys.stdout.flush()
        yield chunk[len(lines) :]
        if error is not None:
            raise error


def _decoded(
    context: CliContext, records: list[Record], formats: Formats
) -> tuple[list[Any], SerializationError | None]:
    """Return lines or rows up to the first undecodable record, and its error."""
    shown: list[Any] = []
    for record in records:
        try:
            shown.append(
                line_of(record, formats)
                if context.form == "table"
                else row_of(record, formats, as_text=context.form == "csv")
            )
        except SerializationError as error:
            return shown, error
    return shown, None


COMMANDS = (consume,)
