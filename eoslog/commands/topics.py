"""`eoslog topic` and `eoslog offsets`: create, show, change and delete topics."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import click

from eoslog.commands.context import CliContext, config_option, counted, key_values

if TYPE_CHECKING:
    from eoslog import Log
    from eoslog.options import TopicChanges, TopicOptions


@click.group()
def topic() -> None:
    """Create, list, show, change and delete topics."""


@topic.command("create")
@click.argument("name")
@click.option("-p", "--partitions", type=int, default=1, show_default=True,
              help="Number of partitions.")  # fmt: skip
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic exists.")
@config_option("retention.ms=7d or segment.bytes=1GiB")
@click.pass_obj
def create(
    context: CliContext, name: str, partitions: int, if_not_exists: bool, config: tuple[str, ...]
) -> None:
    r"""Create a topic.

    \b
    Examples:
      eoslog -d shop topic create orders --partitions 3
      eoslog -d shop topic create orders -c retention.ms=604800000
    """
    with context.log() as log:
        there = name in log.topics()
        keys = cast("TopicOptions", key_values(config))
        made = log.create_topic(name, partitions, keys, exist_ok=if_not_exists)
        has = counted(len(made.partitions), "partition")
        context.say(f"{name} exists, with {has}" if there else f"created {name} with {has}")


@topic.command("list")
@click.pass_obj
def list_topics(context: CliContext) -> None:
    """List the topics with their partitions and record counts.

    Exit code 5 if a partition is offline. Offline partitions are named on stderr.
    """
    with context.log(reads=True) as log:
        offline = log.offline_partitions()
        rows = []
        for name in log.topics():
            every = log.partitions_of(name)
            ends = [log.offsets(tp.topic, tp.partition) for tp in every if tp not in offline]
            rows.append(
                {
                    "topic": name,
                    "partitions": len(every),
                    "offsets": sum(at.last_stable - at.log_start for at in ends),
                    "offline": len(every) - len(ends),
                }
            )
        context.show(rows, ("topic", "partitions", "offsets", "offline"))
    context.end_if_offline(offline)


@topic.command("describe")
@click.argument("name")
@click.pass_obj
def describe(context: CliContext, name: str) -> None:
    """Show a topic's id, configuration and partitions."""
    with context.log(reads=True) as log:
        about = log.describe_topic(name)
        partitions = list(_offsets(log, name))
        if context.form in ("json", "jsonl"):
            context.show_one(
                {
                    "topic": about.name,
                    "topic_id": _id(about.topic_id),
                    "config": dict(about.config),
                    "partitions": partitions,
                }
            )
            return
        if context.form == "table":
            settings = {"topic": about.name, "topic id": _id(about.topic_id), **about.config}
            context.show_one(settings)
            context.echo()
        context.show(partitions)


@topic.command("delete")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before deleting.")
@click.pass_obj
def delete(context: CliContext, name: str, yes: bool) -> None:
    r"""Delete a topic and its records.

    \b
    Examples:
      eoslog -d shop topic delete orders
      eoslog -d shop topic delete orders -y
    """
    with context.log() as log:
        log.describe_topic(name)
        if not yes:
            click.confirm(f"delete {name} and all its records?", abort=True, err=True)
        log.delete_topic(name)
        context.say(f"deleted {name}")


@topic.command("alter")
@click.argument("name")
@click.option(
    "-p", "--partitions", type=int, help="Increase the number of partitions to this total."
)
@click.option(
    "--unset",
    multiple=True,
    metavar="KEY",
    help="Reset a configuration key to its default; repeatable.",
)
@config_option("retention.ms=7d or segment.bytes=1GiB")
@click.pass_obj
def alter(
    context: CliContext,
    name: str,
    partitions: int | None,
    unset: tuple[str, ...],
    config: tuple[str, ...],
) -> None:
    r"""Change a topic's configuration, or add partitions.

    \b
    Examples:
      eoslog -d shop topic alter orders -c retention.ms=86400000
      eoslog -d shop topic alter orders --partitions 6 --unset retention.ms
    """
    values = key_values(config)
    if both := sorted(values.keys() & set(unset)):
        raise click.UsageError(f"-c and --unset both name {', '.join(both)}; leave one out")
    changes = cast("TopicChanges", {**values, **dict.fromkeys(unset)})
    if not changes and partitions is None:
        raise click.UsageError("nothing to change: give -c, --unset or --partitions")
    with context.log() as log:
        if changes:
            log.alter_topic(name, changes)
        if partitions is not None:
            log.create_partitions(name, partitions)
        context.say(f"altered {name}")


@click.command()
@click.argument("name", metavar="TOPIC")
@click.option(
    "--at",
    "timestamp_ms",
    type=int,
    metavar="MS",
    help="Also print the first offset at or after this time, in ms since 1970.",
)
@click.pass_obj
def offsets(context: CliContext, name: str, timestamp_ms: int | None) -> None:
    r"""Print the start and the ends of each partition.

    Prints the log start, the last stable offset, the high watermark and the log end.

    \b
    Examples:
      eoslog -d shop offsets orders
      eoslog -d shop offsets orders --at 1700000000000
    """
    with context.log(reads=True) as log:
        context.show(_offsets(log, name, timestamp_ms))


def _id(topic_id: bytes) -> str:
    """Return a topic id as Kafka prints it."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def _offsets(log: Log, name: str, timestamp_ms: int | None = None) -> Iterator[dict[str, Any]]:
    for partition in log.describe_topic(name).partitions:
        at = partition.offsets
        row = {
            "partition": partition.partition,
            "log_start": at.log_start,
            "last_stable": at.last_stable,
            "high_watermark": at.high_watermark,
            "log_end": at.log_end,
            "leader_epoch": partition.leader_epoch,
        }
        if timestamp_ms is not None:
            row["at"] = log.offset_for_time(name, partition.partition, timestamp_ms)
        yield row


COMMANDS = (topic, offsets)
