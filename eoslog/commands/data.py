"""`eoslog produce` and `eoslog consume`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, nullcontext
from typing import IO, TYPE_CHECKING, Any

import click

from eoslog import IsolationLevel, TopicPartition
from eoslog.commands.face import Face, cell, config_option, key_values
from eoslog.errors import NoOffset

if TYPE_CHECKING:
    from eoslog import Consumer, Log, Record

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
    """Write lines of a file, or of stdin, as records."""
    settings: dict[str, Any] = key_values(config)
    if transactional_id is not None:
        settings["transactional.id"] = transactional_id
    separator = None if key_separator is None else key_separator.encode()
    count = 0
    with face.log() as log, log.producer(**settings) as producer, face.progress(of="bytes") as bar:
        if transactional_id is not None:
            producer.init_transactions()
        writing = producer.transaction() if transactional_id is not None else nullcontext(producer)
        task = bar.add_task(f"produce {topic}", total=_size(source))
        with writing as out:
            for line in source:
                record = _from_json(line) if jsonl else _from_line(line, separator)
                if partition is not None:
                    record["partition"] = partition
                out.produce(topic, **record)
                count += 1
                if count % _CHUNK == 0:
                    producer.poll(0)
                    bar.update(task, completed=_position(source))
        producer.flush()
    face.say(f"wrote {count} record{'' if count == 1 else 's'} to {topic}")


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


def _from_line(line: bytes, separator: bytes | None) -> dict[str, Any]:
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if separator is None:
        return {"value": line}
    key, found, value = line.partition(separator)
    if not found:
        raise click.ClickException(f"no {separator.decode()!r} in line {cell(line)[:80]!r}")
    return {"key": key, "value": value}


def _from_json(line: bytes) -> dict[str, Any]:
    try:
        given = json.loads(line)
        if not isinstance(given, dict):
            raise ValueError("not an object")
        record: dict[str, Any] = {
            "value": _bytes(given, "value"),
            "key": _bytes(given, "key"),
            "headers": [
                (name, None if value is None else value.encode())
                for name, value in given.get("headers") or ()
            ],
        }
        if given.get("timestamp") is not None:
            record["timestamp"] = int(given["timestamp"])
        return record
    except (ValueError, TypeError, AttributeError) as error:
        raise click.ClickException(f"line {cell(line)[:80]!r}: {error}") from None


def _bytes(given: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_hex" in given:
        return bytes.fromhex(given[f"{name}_hex"])
    value = given.get(name)
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


@click.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("-g", "--group", help="Go on where this group is, and commit.")
@click.option(
    "-b", "--from-beginning", is_flag=True, help="From the start; the default without -f."
)
@click.option("-o", "--offset", type=int, help="From this offset of each partition.")
@click.option("-p", "--partition", "only", type=int, multiple=True, help="Only these partitions.")
@click.option("-n", "--max", "limit", type=int, help="Stop after so many records.")
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
    """Print records: a line each on a terminal, else as objects."""
    if group is not None and (only or offset is not None):
        raise click.UsageError("a group chooses partitions and offsets itself: no -p or -o with -g")
    start = "earliest" if from_beginning or not follow or group else "latest"
    settings = {"auto.offset.reset": start, "isolation.level": isolation, **key_values(config)}
    with ExitStack() as stack:
        log = stack.enter_context(face.log())
        wanted = [
            TopicPartition(topic, about.partition)
            for topic in topics
            for about in log.describe_topic(topic).partitions
            if not only or about.partition in only
        ]
        if not wanted:
            raise NoOffset(f"no such partition: {', '.join(map(str, only))}")
        ends = None if follow else {tp: _end(log, tp, isolation) for tp in wanted}
        if group is None:
            reader = stack.enter_context(log.consumer(**settings))
            reader.assign([TopicPartition(tp.topic, tp.partition, offset) for tp in wanted])
        else:
            reader = stack.enter_context(log.consumer(*topics, group_id=group, **settings))
        _print(face, _records(reader, ends, limit))


def _end(log: Log, at: TopicPartition, isolation: str) -> int:
    ends = log.offsets(at.topic, at.partition)
    return ends.last_stable if isolation == "read_committed" else ends.high_watermark


def _records(
    reader: Consumer, ends: dict[TopicPartition, int] | None, limit: int | None
) -> Iterator[Record]:
    """Records up to `ends`, or for ever; the last thing before an end may be a marker."""
    left = sys.maxsize if limit is None else limit
    idle_since = time.monotonic()
    while left > 0:
        records = reader.consume(min(left, _CHUNK), timeout=0.2)
        for record in records:
            if ends is None or record.offset < ends[TopicPartition(record.topic, record.partition)]:
                left -= 1
                yield record
        if records:
            idle_since = time.monotonic()
        if ends is not None:
            at = reader.positions()
            if at and all(at[tp] >= ends.get(tp, 0) for tp in at):
                return
            if at and not records and time.monotonic() - idle_since > _IDLE_S:
                return


def _print(face: Face, records: Iterable[Record]) -> None:
    if face.form == "table":
        for record in records:
            key = "" if record.key is None else f"{cell(record.key)}  "
            place = f"{record.topic}-{record.partition}"
            value = "(null)" if record.value is None else cell(record.value)
            print(f"{place:<16} {record.offset:>9}  {key}{value}", flush=True)
        return
    rows = map(_row, records)
    face.show(rows, ("topic", "partition", "offset", "timestamp", "key", "value", "headers"))


def _row(record: Record) -> dict[str, Any]:
    row: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    for name, data in (("key", record.key), ("value", record.value)):
        try:
            row[name] = None if data is None else bytes(data).decode()
        except UnicodeDecodeError:
            row[f"{name}_hex"] = bytes(data).hex()
    if record.headers:
        row["headers"] = [
            [name, None if value is None else bytes(value).decode("utf-8", "backslashreplace")]
            for name, value in record.headers
        ]
    return row


COMMANDS = (produce, consume)
