"""`eoslog group`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from eoslog.commands.face import Face, partitions_of

if TYPE_CHECKING:
    from eoslog import Log


@click.group()
def group() -> None:
    """List, look at, reset and delete consumer groups."""


@group.command("list")
@click.pass_obj
def list_groups(face: Face) -> None:
    """List the groups."""
    with face.log() as log:
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
        face.show(rows, ("group", "state", "generation", "members", "partitions"))


@group.command("describe")
@click.argument("name", metavar="GROUP")
@click.option("--members", is_flag=True, help="The members in place of the offsets.")
@click.pass_obj
def describe(face: Face, name: str, members: bool) -> None:
    """Show a group's offsets and lag, or its members."""
    with face.log() as log:
        about = log.describe_group(name)
        face.say(f"group {name}: {about.state}, generation {about.generation}")
        if members:
            face.show(
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
        for at, committed in sorted(about.offsets.items()):
            rows.append(
                {
                    "topic": at.topic,
                    "partition": at.partition,
                    "offset": committed.offset,
                    "end": log.offsets(at.topic, at.partition).last_stable if at in lags else None,
                    "lag": lags.get(at),  # None: the topic was deleted, its offsets are still there
                    "member": owners.get(at),
                }
            )
        face.show(rows, ("topic", "partition", "offset", "end", "lag", "member"))


@group.command("reset")
@click.argument("name", metavar="GROUP")
@click.option("-t", "--topic", "topics", multiple=True, required=True, help="Repeatable.")
@click.option("-p", "--partition", "only", type=int, multiple=True, help="Only these partitions.")
@click.option("--to", required=True, metavar="earliest|latest|OFFSET|@MS", help="@MS is a time.")
@click.option("--dry-run", is_flag=True, help="Only show.")
@click.pass_obj
def reset(
    face: Face, name: str, topics: tuple[str, ...], only: tuple[int, ...], to: str, dry_run: bool
) -> None:
    """Set a group's offsets; the group must have no members."""
    with face.log() as log:
        targets = {
            tp: _target(log, tp.topic, tp.partition, to) for tp in partitions_of(log, topics, only)
        }
        if not dry_run:
            log.reset_offsets(name, targets)
        rows = [{"topic": tp.topic, "partition": tp.partition, "offset": offset}
                for tp, offset in sorted(targets.items())]  # fmt: skip
        face.show(rows, ("topic", "partition", "offset"))


def _target(log: Log, topic: str, partition: int, to: str) -> int:
    at = log.offsets(topic, partition)
    if to == "earliest":
        return at.log_start
    if to == "latest":
        return at.last_stable
    try:
        if to.startswith("@"):
            found = log.offset_for_time(topic, partition, int(to[1:]))
            return at.last_stable if found is None or found < 0 else found
        asked = int(to)
        found = min(max(asked, at.log_start), at.last_stable)
        if found != asked:
            Face.say(
                f"{topic}-{partition} holds offsets {at.log_start} to {at.last_stable}: {asked} "
                f"becomes {found}"
            )
        return found
    except ValueError:
        raise click.BadParameter(
            f"expected earliest, latest, an offset or @MS, got {to!r}"
        ) from None


@group.command("delete")
@click.argument("name", metavar="GROUP")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Also one that holds versions of Spark's writes.")
@click.pass_obj
def delete(face: Face, name: str, yes: bool, force: bool) -> None:
    """Forget a group and its offsets; it must have no members."""
    with face.log() as log:
        log.describe_group(name)
        if not yes:
            click.confirm(f"delete group {name} and its offsets?", abort=True, err=True)
        log.delete_group(name, force=force)
        face.say(f"deleted group {name}")


COMMANDS = (group,)
