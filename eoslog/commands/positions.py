"""`eoslog position`: list and delete named positions."""

from __future__ import annotations

import click

from eoslog.commands.context import CliContext
from eoslog.errors import NoOffset


@click.group()
def position() -> None:
    """List and delete named positions of external sources."""


@position.command("list")
@click.pass_obj
def list_positions(context: CliContext) -> None:
    r"""List the committed positions, with their types.

    A value of type bytes is printed as hexadecimal digits.

    \b
    Examples:
      eoslog -d shop position list
      eoslog -d shop --format jsonl position list | jq .value
    """
    with context.log(reads=True) as log:
        found = log.positions()
    rows = [
        {
            "name": name,
            "type": type(value).__name__,
            "value": value.hex() if isinstance(value, bytes) else value,
        }
        for name, value in found.items()
    ]
    context.show(rows, ("name", "type", "value"))


@position.command("delete")
@click.argument("name", metavar="NAME")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before deleting.")
@click.pass_obj
def delete(context: CliContext, name: str, yes: bool) -> None:
    r"""Delete a position.

    Its source is then read from the start again. Exit code 3 if there is no such position, 4 if an
    open transaction sets it.

    \b
    Examples:
      eoslog -d shop position delete crm
      eoslog -d shop position delete crm --yes
    """
    with context.log() as log:
        if not yes and log.position(name) is not None:
            click.confirm(f"delete position {name}?", abort=True, err=True)
        if not log.delete_position(name):
            raise NoOffset(
                f"position {name!r} does not exist; `eoslog position list` lists the known ones"
            )
    context.say(f"deleted position {name}")


COMMANDS = (position,)
