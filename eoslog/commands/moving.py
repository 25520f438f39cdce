"""`eoslog export kafka`, `eoslog import kafka`, `eoslog import kafka-dir`: to Kafka and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

import eoslog
from eoslog.client.kafka_cluster import Moved
from eoslog.commands.face import Face, config_option, counted, key_values
from eoslog.commands.maintenance import show_problems


@click.group()
def export() -> None:
    """Send topics somewhere else."""


@click.group("import")
def import_() -> None:
    """Take topics from somewhere else."""


def _moving(command: Callable[..., None]) -> Callable[..., None]:
    """The options that both directions have."""
    for option in (
        click.argument("topics", metavar="[TOPIC]...", nargs=-1),
        click.option("--bootstrap", required=True, metavar="HOST:PORT", help="The cluster."),
        click.option("--job", help="Whose position to go on from.  [default: one a directory]"),
        click.option("-n", "--records", type=click.IntRange(1), default=10_000, show_default=True,
                     help="Records a transaction, at most."),
        click.option("-f", "--follow", is_flag=True, help="Go on for ever; else stop at the end."),
        click.option("-g", "--group", "groups", multiple=True, metavar="ID",
                     help="A group whose committed offsets go along; may be repeated."),
        click.option("--all-groups", is_flag=True, help="All groups go along."),
        config_option,
        click.pass_obj,
    ):  # fmt: skip
        command = option(command)
    return command


def _move(
    face: Face,
    direction: str,
    topics: tuple[str, ...],
    bootstrap: str,
    config: tuple[str, ...],
    groups: tuple[str, ...],
    all_groups: bool,
    **options: Any,
) -> None:
    with face.log() as log, face.progress(of="") as bar:
        task = bar.add_task(f"{direction} 0 records", total=None)

        def progress(moved: Moved) -> None:
            bar.update(task, description=f"{direction} {moved.records} records")

        moved = getattr(log, f"{direction}_kafka")(
            bootstrap, topics or None, config=key_values(config), progress=progress,
            groups="all" if all_groups else groups, **options,
        )  # fmt: skip
    face.say(f"{direction}ed {counted(moved.records, 'record')}, job {moved.job}")
    for group, offsets in moved.groups.items():
        places = ", ".join(f"{tp} at {at}" for tp, at in sorted(offsets.items()))
        face.say(f"group {group}: {places}")
    face.show(
        (
            {"topic": tp.topic, "partition": tp.partition, "next_offset": at}
            for tp, at in sorted(moved.positions.items())
        ),
        ("topic", "partition", "next_offset"),
    )


@export.command("kafka")
@_moving
def export_kafka(face: Face, **options: Any) -> None:
    """Send records into a Kafka cluster, exactly once.

    Committed ones, of the topics named or of all.

    Run it again to go on. Partitions, keys, values, headers and timestamps stay, offsets may
    differ; a --group goes on at the other side where it was. Missing topics are made. -c gives
    more of librdkafka's configuration.
    """
    _move(face, "export", **options)


@import_.command("kafka")
@_moving
def import_kafka(face: Face, **options: Any) -> None:
    """Take records out of a Kafka cluster, exactly once.

    Committed ones, of the topics named or of all.

    Run it again to go on. Partitions, keys, values, headers and timestamps stay, offsets may
    differ; a --group goes on at the other side where it was. Missing topics are made. -c gives
    more of librdkafka's configuration.
    """
    _move(face, "import", **options)


@import_.command("kafka-dir")
@click.argument(
    "sources", metavar="SRC...", nargs=-1, required=True,
    type=click.Path(exists=True, file_okay=False),
)  # fmt: skip
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be repeated.")
@click.option("--copy", is_flag=True, help="Copy sealed segments; they are hard-linked else.")
@click.option("--durability", type=click.Choice(["strict", "os"]), default="strict")
@click.option(
    "--read-only-anyway", is_flag=True,
    help="Though a broker is running: copy all, as a crash would leave it just now.",
)  # fmt: skip
@click.pass_obj
def kafka_dir(
    face: Face,
    sources: tuple[str, ...],
    topics: tuple[str, ...],
    copy: bool,
    durability: str,
    read_only_anyway: bool,
) -> None:
    """Adopt a stopped broker's log directories.

    SRC... become the new directory of `-d`.

    Topics, groups and transactional ids go on where they were. The source is not changed.
    """
    report = eoslog.import_kafka_dir(
        list(sources), face.directory, topics=topics or None, copy=copy, durability=durability,
        read_only_anyway=read_only_anyway,
    )  # fmt: skip
    show_problems(face, report.problems)
    face.say(
        f"{report.path}: {counted(len(report.topics), 'topic')}, "
        f"{counted(report.partitions, 'partition')}, "
        f"{report.bytes_linked} bytes linked, {report.bytes_copied} copied"
        + (f", {report.bytes_cut} cut" if report.bytes_cut else "")
    )


COMMANDS = (export, import_)
