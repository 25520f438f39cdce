"""`eoslog produce` and `eoslog consume`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import IO, TYPE_CHECKING, Any, NoReturn

import click

from eoslog import IsolationLevel, TopicPartition
from eoslog.commands.face import Face, config_option, counted, key_values, partitions_of
from eoslog.commands.lines import (
    CSV_COLUMNS,
    BadLine,
    line_of,
    parse_json,
    row_of,
    text_parser,
)
from eoslog.errors import CommitFailed, RecordTooLarge, SerializationError

if TYPE_CHECKING:
    from eoslog import Consumer, Log, Producer, Record

_CHUNK = 1_000
_IDLE_S = 1.0


@click.command()
@click.argument("topic")
@click.argument("source", metavar="[FILE]", type=click.File("rb"), default="-")
@click.option("-k", "--key-separator", metavar="TEXT", help="Lines are KEY TEXT VALUE.")
@click.option("--jsonl", is_flag=True, help="Lines are objects, as `consume` prints them.")
@click.option("-p", "--partition", type=int, help="Write to this partition.")
@click.option("-t", "--transactional-id", help="Write all of it in one transaction.")
@config_option
@click.pass_obj
def produce(
    face: Face,
    topic: str,
    source: IO[bytes],
    key_separator: str | None,
    jsonl: bool,
    partition: int | None,
    transactional_id: str | None,
    config: tuple[str, ...],
) -> None:
    """Write lines of a file, or of stdin, as records.

    With --jsonl a line is {"key": TEXT, "value": TEXT, "headers": [[NAME, TEXT], ...],
    "timestamp": MS}, all of it optional. Bytes that are no UTF-8 are given as `key_hex`,
    `value_hex` and [NAME, {"hex": DIGITS}]. Lines that `consume` printed are taken; their topic,
    partition and offset are not used: -p or the key chooses the partition.
    """
    if key_separator == "":
        raise click.UsageError("-k: the separator is empty")
    if key_separator is not None and jsonl:
        raise click.UsageError("-k and --jsonl exclude each other")
    settings: dict[str, Any] = key_values(config)
    if transactional_id is not None:
        settings["transactional.id"] = transactional_id
    separator = None if key_separator is None else key_separator.encode()
    parse = parse_json if jsonl else text_parser(separator)
    fixed = {} if partition is None else {"partition": partition}
    with face.log() as log, log.producer(**settings) as producer, face.progress(of="bytes") as bar:
        log.describe_topic(topic)  # a wrong name is one without a line to write, too
        task = bar.add_task(f"produce {topic}", total=_size(source))
        count = 0
        with _writing(producer) as out:
            for line in source:
                try:
                    out.produce(topic, **parse(line), **fixed)
                except (BadLine, RecordTooLarge, SerializationError) as error:
                    _stop(producer, count, error)
                count += 1
                if count % _CHUNK == 0:
                    producer.poll(0)
                    bar.update(task, completed=_position(source))
        producer.flush()
    face.say(f"wrote {counted(count, 'record')} to {topic}")


def _writing(producer: Producer) -> AbstractContextManager[Any]:
    """One transaction if the producer has an id for it."""
    if producer.transactional_id is None:
        return nullcontext(producer)
    producer.init_transactions()
    return producer.transaction()


def _stop(producer: Producer, count: int, error: Exception) -> NoReturn:
    """End at a bad line, the one after `count`; what was before it is written by then.

    Raises:
        click.ClickException: always; it aborts a transaction.
        EoslogError: what was before it could not be written.
    """
    fate = "none was written: the transaction was aborted"
    if producer.transactional_id is None:
        producer.flush()
        fate = f"{counted(count, 'record')} before it {'was' if count == 1 else 'were'} written"
    raise click.ClickException(f"line {count + 1}: {error}; {fate}") from None


def _size(source: IO[bytes]) -> int | None:
    try:
        return os.fstat(source.fileno()).st_size or None
    except (OSError, AttributeError):
        return None


def _position(source: IO[bytes]) -> int:
    try:
        return source.tell()
    except (OSError, ValueError):
        return 0


@click.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("-g", "--group", help="Go on where this group is, and commit.")
@click.option(
    "-b", "--from-beginning", is_flag=True, help="From the start; the default without -f."
)
@click.option("-o", "--offset", type=click.IntRange(0), help="From this offset of each partition.")
@click.option("-p", "--partition", "only", type=int, multiple=True, help="Only these partitions.")
@click.option("-n", "--max", "limit", type=click.IntRange(1), help="Stop after so many records.")
@click.option("-f", "--follow", is_flag=True, help="Wait for more; else stop at the end.")
@click.option(
    "--isolation", type=click.Choice([level.value for level in IsolationLevel]),
    default=IsolationLevel.READ_COMMITTED.value, show_default=True,
)  # fmt: skip
@config_option
@click.pass_obj
def consume(
    face: Face,
    topics: tuple[str, ...],
    group: str | None,
    from_beginning: bool,
    offset: int | None,
    only: tuple[int, ...],
    limit: int | None,
    follow: bool,
    isolation: str,
    config: tuple[str, ...],
) -> None:
    """Print records: a line each on a terminal, else as objects.

    With -g the group's offsets are committed behind what was printed, never before.
    """
    if group is not None and (only or offset is not None):
        raise click.UsageError("a group chooses partitions and offsets itself: no -p or -o with -g")
    if from_beginning and offset is not None:
        raise click.UsageError("-b and -o exclude each other")
    if follow and face.form == "json":
        raise click.UsageError("--format json has an end, -f has none: use --format jsonl")
    start = "earliest" if from_beginning or not follow or group else "latest"
    settings = {"auto.offset.reset": start, "isolation.level": isolation, **key_values(config)}
    commits = group is not None and _commits_by_hand(settings)
    with ExitStack() as stack:
        log = stack.enter_context(face.log())
        wanted = partitions_of(log, topics, only)
        ends = None if follow else {tp: _end(log, tp, isolation) for tp in wanted}
        if group is None:
            reader = stack.enter_context(log.consumer(**settings))
            reader.assign([_from(log, tp, offset, isolation) for tp in wanted])
        else:
            reader = stack.enter_context(log.consumer(*topics, group_id=group, **settings))
        committed: dict[TopicPartition, int] = {}
        for _ in _printed(face, _chunks(reader, ends, limit)):
            if commits and reader.positions() != committed:
                committed = _commit(face, reader)


def _commits_by_hand(settings: dict[str, str]) -> bool:
    """Turn auto-commit off: it commits what was fetched, which is more than what was printed.

    Returns:
        Whether there is anything to commit; not if the user does not want it, or before.
    """
    asked = settings.get("enable.auto.commit", "true").lower()
    if asked != "true" or settings.get("processing.guarantee", "").lower() == "at_most_once":
        return False
    settings["enable.auto.commit"] = "false"
    return True


def _commit(face: Face, reader: Consumer) -> dict[TopicPartition, int]:
    """Commit the reader's positions, and return what is committed."""
    try:
        reader.commit()
    except CommitFailed as error:  # the group was shared out anew; the next poll joins it again
        face.say(f"eoslog: some records may be printed again: {error}")
        return {}
    return reader.positions()


def _end(log: Log, at: TopicPartition, isolation: str) -> int:
    ends = log.offsets(at.topic, at.partition)
    return ends.last_stable if isolation == "read_committed" else ends.high_watermark


def _from(log: Log, at: TopicPartition, offset: int | None, isolation: str) -> TopicPartition:
    """Where to begin; an offset that is not there would be reset to the start or the end."""
    if offset is not None:
        low = log.offsets(at.topic, at.partition).log_start
        offset = max(low, min(offset, _end(log, at, isolation)))
    return TopicPartition(at.topic, at.partition, offset)


def _chunks(
    reader: Consumer, ends: dict[TopicPartition, int] | None, limit: int | None
) -> Iterator[list[Record]]:
    """Records up to `ends`, or for ever; the last thing before an end may be a marker.

    The reader's positions are behind what was yielded, whenever that is.
    """
    left = sys.maxsize if limit is None else limit
    idle_since = time.monotonic()
    while left > 0:
        fetched = reader.consume(min(left, _CHUNK), timeout=0.2)
        records = fetched if ends is None else _up_to(ends, reader, fetched)
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
    """Records before their partition's end; the others are given back."""
    kept = []
    back: dict[TopicPartition, int] = {}
    for record in records:
        at = TopicPartition(record.topic, record.partition)
        if record.offset < ends.get(at, 0):
            kept.append(record)
        else:
            back.setdefault(at, record.offset)
    for at, offset in back.items():
        reader.seek(at, offset)
        reader.pause([at])
    return kept


def _printed(face: Face, chunks: Iterable[list[Record]]) -> Iterator[list[Record]]:
    """Each chunk, once stdout has taken it."""
    if face.form == "json":
        chunks = [[record for chunk in chunks for record in chunk]]
    elif face.form == "csv":
        face.show((), CSV_COLUMNS)
    for chunk in chunks:
        if face.form == "table":
            for record in chunk:
                print(line_of(record))
        else:
            face.show(map(row_of, chunk), CSV_COLUMNS, header=False)
        sys.stdout.flush()
        yield chunk


COMMANDS = (produce, consume)
