"""`eoslog group`: list, show, reset and delete consumer groups."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from eoslog import TopicPartition
from eoslog.commands.context import CliContext, partitions_of
from eoslog.commands.offset_range import in_range
from eoslog.commands.why import blocked_by
from eoslog.errors import GroupNotFound
from eoslog.model import EARLIEST, LATEST, OffsetAndMetadata

if TYPE_CHECKING:
    from eoslog import Log


@click.group()
def group() -> None:
    """List, show, reset and delete consumer groups."""


@group.command("list")
@click.pass_obj
def list_groups(context: CliContext) -> None:
    """List the groups with state, generation, members and partitions."""
    with context.log(reads=True) as log:
        rows = []
        for name in log.groups():
            about = log.describe_group(name)
            rows.append(
                {
                    "group": name,
                    "state": about.state,
                    "generation": about.generation,
                    "members": len(about.members),
                    "partitions": len(about.offsets),
                }
            )
        context.show(rows, ("group", "state", "generation", "members", "partitions"))


@group.command("describe")
@click.argument("name", metavar="GROUP")
@click.option("--members", is_flag=True, help="Show the members instead of the offsets.")
@click.pass_obj
def describe(context: CliContext, name: str, members: bool) -> None:
    r"""Show a group's offsets, lag and blockers, or its members.

    \b
    Examples:
      eoslog -d shop group describe billing
      eoslog -d shop group describe billing --members
    """
    with context.log(reads=True) as log:
        about = log.describe_group(name)
        context.say(f"group {name}: {about.state}, generation {about.generation}")
        if members:
            context.show(
                [
                    {
                        "member": member.member_id,
                        "client": member.client_id,
                        "instance": member.instance_id,
                        "epoch": member.member_epoch,
                        "assigned": " ".join(str(tp) for tp in sorted(member.assigned)),
                    }
                    for member in about.members
                ],
                ("member", "client", "instance", "epoch", "assigned"),
            )
            return
        owners = {tp: member.member_id for member in about.members for tp in member.assigned}
        rows = []
        lags = log.lag(name)
        blocked = {TopicPartition(b.topic, b.partition or 0) for b in about.blocked_by if b.topic}
        for at in sorted({*about.offsets, *blocked}):
            committed = about.offsets.get(at)
            rows.append(
                {
                    "topic": at.topic,
                    "partition": at.partition,
                    "offset": None if committed is None else committed.offset,
                    "end": log.offsets(at.topic, at.partition).last_stable if at in lags else None,
                    "lag": lags.get(at),  # None: the topic was deleted, its offsets are still there
                    "member": owners.get(at),
                    "blocked_by": blocked_by(
                        context,
                        [
                            blocker
                            for blocker in about.blocked_by
                            if (blocker.topic, blocker.partition) == (at.topic, at.partition)
                        ],
                    ),
                }
            )
        context.show(rows, ("topic", "partition", "offset", "end", "lag", "member", "blocked_by"))


@group.command("reset")
@click.argument("name", metavar="GROUP")
@click.option(
    "-t", "--topic", "topics", multiple=True, required=True, help="Reset this topic; repeatable."
)
@click.option(
    "-p",
    "--partition",
    "only",
    type=int,
    multiple=True,
    help="Reset only this partition; repeatable.",
)
@click.option(
    "--to",
    required=True,
    metavar="earliest|latest|OFFSET|@MS",
    help="New offset; @MS is a time in ms since 1970.",
)
@click.option("--create", is_flag=True, help="Create the group if it does not exist.")
@click.option("--dry-run", is_flag=True, help="Show the new offsets without setting them.")
@click.pass_obj
def reset(
    context: CliContext,
    name: str,
    topics: tuple[str, ...],
    only: tuple[int, ...],
    to: str,
    create: bool,
    dry_run: bool,
) -> None:
    r"""Set the committed offsets of a group.

    The group must not have members. Exit code 2 if no partition contains the offset, 3 if the group
    does not exist.

    \b
    Examples:
      eoslog -d shop group reset billing -t orders --to earliest --dry-run
      eoslog -d shop group reset billing -t orders -p 0 --to 1500
    """
    with context.log() as log:
        if not create:
            _known(log, name)
        targets = targets_of(log, partitions_of(log, topics, only), to)
        if not dry_run:
            log.reset_offsets(name, targets)
        rows = [{"topic": tp.topic, "partition": tp.partition, "offset": target.offset}
                for tp, target in sorted(targets.items())]  # fmt: skip
        context.show(rows, ("topic", "partition", "offset"))


def _known(log: Log, name: str) -> None:
    """Raise GroupNotFound with the nearest name if the group does not exist."""
    groups = log.groups()
    if name not in groups:
        near = get_close_matches(name, groups, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise GroupNotFound(f"group {name!r} does not exist; {hint}add --create to create it")


def targets_of(
    log: Log, every: list[TopicPartition], to: str
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets that `--to` means, each with the id of its topic."""
    # The ids come first: if a topic is re-created later, they do not fit, and nothing is set.
    ids = {tp.topic: log.topic_id(tp.topic) for tp in every}
    return {
        tp: OffsetAndMetadata(offset, topic_id=ids[tp.topic])
        for tp, offset in _offsets_at(log, every, to).items()
    }


def _offsets_at(log: Log, every: list[TopicPartition], to: str) -> dict[TopicPartition, int]:
    ends = {tp: log.offsets(tp.topic, tp.partition) for tp in every}
    if to == EARLIEST:
        return {tp: at.log_start for tp, at in ends.items()}
    if to == LATEST:
        return {tp: at.last_stable for tp, at in ends.items()}
    try:
        number = int(to.removeprefix("@"))
    except ValueError:
        raise click.BadParameter(
            f"--to must be earliest, latest, an offset or @MS, got {to!r}"
        ) from None
    if not to.startswith("@"):
        ranges = {tp: (at.log_start, at.last_stable) for tp, at in ends.items()}
        return in_range("--to", number, ranges)
    return {
        tp: min(log.offset_for_time(tp.topic, tp.partition, number), at.last_stable)
        for tp, at in ends.items()
    }


@group.command("delete")
@click.argument("name", metavar="GROUP")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before deleting.")
@click.option(
    "--force", is_flag=True, help="Delete even a group of Spark write versions or publishing ids."
)
@click.pass_obj
def delete(context: CliContext, name: str, yes: bool, force: bool) -> None:
    """Delete a group and its offsets; the group must not have members."""
    with context.log() as log:
        log.describe_group(name)
        if not yes:
            click.confirm(f"delete group {name} and its offsets?", abort=True, err=True)
        log.delete_group(name, force=force)
        context.say(f"deleted group {name}")


COMMANDS = (group,)
