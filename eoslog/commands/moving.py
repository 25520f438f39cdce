"""`eoslog export kafka` and `eoslog import kafka`: to a cluster and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from eoslog.client.kafka_cluster import Moved
from eoslog.commands.face import Face, config_option, key_values


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
    **options: Any,
) -> None:
    with face.log() as log, face.progress(of="") as bar:
        task = bar.add_task(f"{direction} 0 records", total=None)

        def progress(moved: Moved) -> None:
            bar.update(task, description=f"{direction} {moved.records} records")

        moved = getattr(log, f"{direction}_kafka")(
            bootstrap, topics or None, config=key_values(config), progress=progress, **options
        )
    face.say(f"{direction}ed {moved.records} records, job {moved.job}")
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
    """Send committed records of topics (default: all) into a Kafka cluster, exactly once.

    Run it again to go on. Partitions, keys, values, headers and timestamps stay, offsets may
    differ. Missing topics are made. -c gives more of librdkafka's configuration.
    """
    _move(face, "export", **options)


@import_.command("kafka")
@_moving
def import_kafka(face: Face, **options: Any) -> None:
    """Take committed records of topics (default: all) out of a Kafka cluster, exactly once.

    Run it again to go on. Partitions, keys, values, headers and timestamps stay, offsets may
    differ. Missing topics are made. -c gives more of librdkafka's configuration.
    """
    _move(face, "import", **options)


COMMANDS = (export, import_)
