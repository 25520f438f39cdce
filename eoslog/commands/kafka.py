"""Commands that move topics: `export kafka`, `import kafka`, `import kafka-dir`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

import eoslog
from eoslog.commands.care import show_problems
from eoslog.commands.context import CliContext, config_option, counted, key_values
from eoslog.kafka.cluster import Moved


@click.group()
def export() -> None:
    """Copy topics from the log to another system."""


@click.group("import")
def import_() -> None:
    """Copy topics from another system into the log."""


def _moving(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that both directions share."""
    for option in (
        click.argument("topics", metavar="[TOPIC]...", nargs=-1),
        click.option("--bootstrap", required=True, metavar="HOST:PORT",
                     help="Bootstrap server of the cluster."),
        click.option("--job",
                     help="Name under which the position is saved and resumed."
                     "  [default: derived from the log]"),
        click.option("-n", "--records", type=click.IntRange(1), default=10_000, show_default=True,
                     help="Maximum number of records per transaction."),
        click.option("-f", "--follow", is_flag=True,
                     help="Keep copying new records instead of stopping at the end."),
        click.option("-g", "--group", "groups", multiple=True, metavar="ID",
                     help="Move the committed offsets of this group too; repeatable."),
        click.option("--all-groups", is_flag=True,
                     help="Move the committed offsets of all groups."),
        config_option("security.protocol=SSL or request.timeout.ms=30s"),
        click.pass_obj,
    ):  # fmt: skip
        command = option(command)
    return command


def _move(
    context: CliContext,
    direction: str,
    topics: tuple[str, ...],
    bootstrap: str,
    config: tuple[str, ...],
    groups: tuple[str, ...],
    all_groups: bool,
    **options: Any,
) -> None:
    with context.log() as log, context.progress(of="") as bar:
        task = bar.add_task(f"{direction} 0 records", total=None)

        def progress(moved: Moved) -> None:
            bar.update(task, description=f"{direction} {moved.records} records")

        moved = getattr(log, f"{direction}_kafka")(
            bootstrap, topics or None, config=key_values(config), progress=progress,
            groups="all" if all_groups else groups, **options,
        )  # fmt: skip
    context.say(f"{direction}ed {counted(moved.records, 'record')}, job {moved.job}")
    for group, offsets in moved.groups.items():
        places = ", ".join(f"{tp} at {at}" for tp, at in sorted(offsets.items()))
        context.say(f"group {group}: {places}")
    context.show(
        (
            {"topic": tp.topic, "partition": tp.partition, "next_offset": at}
            for tp, at in sorted(moved.positions.items())
        ),
        ("topic", "partition", "next_offset"),
    )


@export.command("kafka")
@_moving
def export_kafka(context: CliContext, **options: Any) -> None:
    """Copy committed records to a Kafka cluster, exactly once.

    Copies the named topics, or all topics. Run the command again to resume. Partitions, keys,
    values, headers and timestamps are kept; offsets may differ. A --group resumes on the cluster
    after the last record that it committed. Missing topics and partitions are created. -c sets a
    librdkafka configuration key.
    """
    _move(context, "export", **options)


@import_.command("kafka")
@_moving
def import_kafka(context: CliContext, **options: Any) -> None:
    """Copy committed records from a Kafka cluster, exactly once.

    Copies the named topics, or all topics. Run the command again to resume. Partitions, keys,
    values, headers and timestamps are kept; offsets may differ. A --group resumes in the log
    after the last record that it committed. Missing topics and partitions are created. -c sets a
    librdkafka configuration key.
    """
    _move(context, "import", **options)


@import_.command("kafka-dir")
@click.argument(
    "sources", metavar="SRC...", nargs=-1, required=True,
    type=click.Path(exists=True, file_okay=False),
)  # fmt: skip
@click.option("--topic", "topics", multiple=True, help="Import only this topic; repeatable.")
@click.option("--copy", is_flag=True, help="Copy sealed segments instead of hard-linking them.")
@click.option("--durability", type=click.Choice(["strict", "os"]), default="strict",
              show_default=True, help="Durability of the new log.")  # fmt: skip
@click.option(
    "--read-only-anyway", is_flag=True,
    help="Import although a broker is running: copy every file as a crash would leave it now.",
)  # fmt: skip
@click.pass_obj
def kafka_dir(
    context: CliContext,
    sources: tuple[str, ...],
    topics: tuple[str, ...],
    copy: bool,
    durability: str,
    read_only_anyway: bool,
) -> None:
    """Adopt a stopped broker's log directories.

    Creates the log named by `-d` from the directories SRC. Topics, groups and transactional ids
    keep their state. The sources are not changed.
    """
    report = eoslog.import_kafka_dir(
        list(sources), context.directory, topics=topics or None, copy=copy, durability=durability,
        read_only_anyway=read_only_anyway,
    )  # fmt: skip
    show_problems(context, report.problems)
    context.say(
        f"{report.path}: {counted(len(report.topics), 'topic')}, "
        f"{counted(report.partitions, 'partition')}, "
        f"{report.bytes_linked} bytes linked, {report.bytes_copied} copied"
        + (f", {report.bytes_cut} cut" if report.bytes_cut else "")
    )


COMMANDS = (export, import_)
