"""`eoslog why` and `eoslog ps`: blockers of consumers, and active processes."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import click

from eoslog import Blocker, ProcessDescription
from eoslog.commands.context import CliContext, cell, counted, shown

_PS = (
    "pid", "since", "state", "read_only", "locks", "transactions", "groups", "command",
)  # fmt: skip


@click.command()
@click.argument("group", metavar="[GROUP]", required=False)
@click.pass_obj
def why(context: CliContext, group: str | None) -> None:
    r"""Explain what blocks consumers, and which command helps.

    Checks for open and decided transactions, locks of suspended or slow processes, group members
    that do not poll or keep partitions that others wait for, and damaged partitions. With GROUP,
    only for that group. Prints sentences on a terminal, otherwise JSON lines. Changes nothing.

    Exit code 0 even if nothing is blocked; 3 if the group does not exist.

    \b
    Examples:
      eoslog -d shop why
      eoslog -d shop why billing | jq -r .remedy
    """
    # A writer would recover the log, and so end what a dead process has left in it.
    with context.log(read_only=True) as log:
        found = log.blockers(group)
    if context.form != "table":
        context.show([asdict(blocker) for blocker in found], Blocker.__dataclass_fields__)
        if not found:
            context.say("nothing is blocked")
        return
    for blocker in found:
        click.echo(_sentence(blocker))
        click.echo(f"    {shown(blocker.remedy)}")
    if not found:
        click.echo("nothing is blocked")


def _sentence(blocker: Blocker) -> str:
    about = "" if blocker.group_id is None else f"group {blocker.group_id}: "
    waiting = ""
    if blocker.waiting and not blocker.kind.endswith("_transaction"):
        waits = "waits" if blocker.waiting == 1 else "wait"
        waiting = f"; {counted(blocker.waiting, 'offset')} {waits}"
    return shown(f"{about}{blocker.reason}{waiting}. Type:")


def blocked_by(context: CliContext, blockers: list[Blocker]) -> Any:
    """Return a partition's blockers as a cell: short on a terminal, else complete."""
    if context.form in ("json", "jsonl"):
        return [asdict(blocker) for blocker in blockers]
    return ", ".join(dict.fromkeys(map(_short, blockers)))


def _short(blocker: Blocker) -> str:
    words = [blocker.kind.replace("_", " ")]
    if blocker.transactional_id is not None:
        words.append(blocker.transactional_id)
    if blocker.pid is not None:
        words.append(f"(pid {blocker.pid}{', stopped' if blocker.stopped else ''})")
    return " ".join(words)


@click.command()
@click.pass_obj
def ps(context: CliContext) -> None:
    r"""List the processes that have the log open.

    Shows their partition locks, open transactions and group memberships. Read-only readers are
    listed if their /proc entries are readable. Times are in ms since 1970 in JSON and CSV.

    \b
    Examples:
      eoslog -d shop ps
      eoslog -d shop --format jsonl ps | jq .pid
    """
    with context.log(read_only=True) as log:
        own = os.getpid()  # leave this command itself out
        found = [p for p in log.processes() if not (p.read_only and p.pid == own)]
    if context.form == "table":
        context.show([_row(process) for process in found], _PS)
    else:
        context.show(
            [asdict(process) for process in found], ProcessDescription.__dataclass_fields__
        )


def _row(process: ProcessDescription) -> dict[str, Any]:
    state = {True: "stopped", False: "running", None: "unknown"}[process.stopped]
    command = process.command
    if command is None and process.other_namespace:
        command = "(in another pid namespace)"
    return {
        **asdict(process),
        "since": local_time(process.since),
        "state": state,
        "locks": ", ".join(process.locks),
        "transactions": ", ".join(process.transactions),
        "groups": ", ".join(process.groups),
        "command": cell(command),
    }


def local_time(ms: int | None) -> str:
    """Return a time for people in the local time zone; empty for None."""
    from datetime import datetime

    return "" if ms is None else datetime.fromtimestamp(ms / 1000).isoformat(" ", "seconds")


COMMANDS = (why, ps)
