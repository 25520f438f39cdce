"""`eoslog produce`."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import IO, TYPE_CHECKING, Any, NoReturn

import click

from eoslog.commands.context import CliContext, config_option, counted, key_values
from eoslog.commands.formatting import (
    BadLine,
    Formats,
    format_options,
    parse_json,
    text_parser,
)
from eoslog.errors import RecordTooLarge, SerializationError

if TYPE_CHECKING:
    from eoslog import Producer

_CHUNK = 1_000


@click.command()
@click.argument("topic")
@click.argument("source", metavar="[FILE]", type=click.File("rb"), default="-")
@click.option(
    "-k", "--key-separator", metavar="TEXT", help="Split each line into a key and a value at TEXT."
)
@click.option("--jsonl", is_flag=True, help="Read JSON objects, as `consume` prints them.")
@click.option("-p", "--partition", type=int, help="Write to this partition.")
@click.option("-t", "--transactional-id", help="Write all lines in one transaction.")
@format_options
@config_option("linger.ms=20 or compression.type=zstd")
@click.pass_obj
def produce(
    context: CliContext,
    topic: str,
    source: IO[bytes],
    key_separator: str | None,
    jsonl: bool,
    partition: int | None,
    transactional_id: str | None,
    key_format: str | None,
    value_format: str | None,
    config: tuple[str, ...],
) -> None:
    r"""Write each line of FILE, or of stdin, as a record.

    With --jsonl a line is {"key": TEXT, "value": TEXT, "headers": [[NAME, TEXT], ...],
    "timestamp": MS}; every field is optional. Write bytes that are not valid UTF-8 as `key_hex`,
    `value_hex` and [NAME, {"hex": DIGITS}]. Lines that `consume` printed are accepted. Their topic,
    partition and offset are not used: -p or the key selects the partition.

    With --key-format or --value-format, text is read as the format needs it: a number, or JSON.
    With --jsonl, it is a value of JSON. Numbers that JSON lacks are the texts "NaN", "Infinity" and
    "-Infinity".

    \b
    Examples:
      echo "ada:3 apples" | eoslog -d shop produce orders -k :
      eoslog -d shop consume orders | eoslog -d copy produce orders --jsonl
      echo "ada:3" | eoslog -d shop produce counts -k : --value-format long
    """
    if key_separator == "":
        raise click.UsageError("-k: the separator is empty; give at least one character")
    if key_separator is not None and jsonl:
        raise click.UsageError("-k and --jsonl exclude each other; leave one out")
    settings: dict[str, Any] = key_values(config)
    if transactional_id is not None:
        settings["transactional.id"] = transactional_id
    separator = None if key_separator is None else key_separator.encode()
    formats = Formats(key_format, value_format)
    parse = (lambda line: parse_json(line, formats)) if jsonl else text_parser(separator, formats)
    fixed = {} if partition is None else {"partition": partition}
    with (
        context.log() as log,
        log.producer(**settings) as producer,
        context.progress(of="bytes") as bar,
    ):
        log.describe_topic(topic)  # report a wrong name even if there is no line to write
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
    context.say(f"wrote {counted(count, 'record')} to {topic}")


def _writing(producer: Producer) -> AbstractContextManager[Any]:
    """Begin one transaction if the producer has a transactional id."""
    if producer.transactional_id is None:
        return nullcontext(producer)
    producer.init_transactions()
    return producer.transaction()


def _stop(producer: Producer, count: int, error: Exception) -> NoReturn:
    """Stop at a bad line, the one after `count`; write the lines before it first.

    Raises:
        click.ClickException: always; an open transaction is aborted.
        EoslogError: if the lines before it could not be written.
    """
    result = "no record was written, because the transaction was aborted"
    if producer.transactional_id is None:
        producer.flush()
        result = f"{counted(count, 'record')} before it {'was' if count == 1 else 'were'} written"
    raise click.ClickException(f"line {count + 1}: {error}; {result}") from None


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


COMMANDS = (produce,)
