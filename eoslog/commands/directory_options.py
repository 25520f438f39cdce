"""The options `-d` and `--format`, which every command level accepts."""

from __future__ import annotations

import re
from typing import Any

import click

from eoslog.commands.context import FORMATS, CliContext

ENVIRONMENT = "EOSLOG_DIR"


def chosen(option: str, values: tuple[str, ...]) -> str | None:
    """Return the value of an option that may be repeated; None if it is missing.

    Raises:
        click.UsageError: if two values differ.
    """
    for value in values[1:]:
        if value != values[0]:
            raise click.UsageError(
                f"{option} has two values, {values[0]!r} and {value!r}; give it once"
            )
    return values[0] if values else None


def options(*, at_root: bool) -> list[click.Option]:
    """Return `-d` and `--format` for one level."""
    default = f"the current one; env var: {ENVIRONMENT}" if at_root else None
    form = "table on a terminal, else jsonl" if at_root else None
    return [
        click.Option(
            ["-d", "--dir", "directory"], multiple=True, expose_value=False, callback=_take,
            metavar="DIR", help="Directory of the log.", show_default=default or False,
        ),
        click.Option(
            ["--format", "form"], multiple=True, expose_value=False, callback=_take,
            type=click.Choice(FORMATS), help="How to print data.", show_default=form or False,
        ),
    ]  # fmt: skip


def _take(ctx: click.Context, option: click.Parameter, values: Any) -> None:
    context = ctx.ensure_object(CliContext)
    given = context.given.setdefault(option.opts[0], [])
    given.extend(values)
    value = chosen(option.opts[0], tuple(given))
    if value is None:
        return
    if option.name == "form":
        context.form = value
    else:
        context.directory = value


def at_every_level(command: click.Command, *, at_root: bool = True) -> None:
    """Add the options to a command and its subcommands, unless a name is in use."""
    used = {name for option in command.params for name in option.opts}
    for option in options(at_root=at_root):
        if not used & set(option.opts):
            command.params.append(option)
    if command.help:  # raw docstrings spell click's mark of lines to keep as they are
        command.help = re.sub(r"^( *)\\b$", "\\1\b", command.help, flags=re.MULTILINE)
    if isinstance(command, click.Group):
        for below in command.commands.values():
            at_every_level(below, at_root=False)
