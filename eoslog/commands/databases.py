"""`eoslog audit` and `eoslog outbox`: a log together with a database."""

from __future__ import annotations

from typing import Any

import click

from eoslog.commands.context import CliContext, counted

_EXIT_FOUND = 5
_COLUMNS = ("kind", "subject", "message")


@click.command()
@click.option(
    "--db", "database", metavar="DATABASE", required=True,
    help="The path of an SQLite file, or a connection string such as postgresql://localhost/shop.",
)  # fmt: skip
@click.option("--name", metavar="NAME", help="The name that programs give the database, if any.")
@click.option(
    "--prefix", default="eoslog_", show_default=True, help="The prefix of the tables of eoslog."
)
@click.pass_obj
def audit(context: CliContext, database: str, name: str | None, prefix: str) -> None:
    r"""Find where a log and a database disagree.

    Changes nothing. Run it after the log or the database was restored from a copy, before the
    programs start. It compares the outcomes of their common transactions, and the offsets that the
    database stores with the ends of the partitions. A row of kind "undecided" or "topic-unknown" is
    a note.

    Exit code 5 if they disagree.

    \b
    Examples:
      eoslog -d shop audit --db shop.sqlite
      eoslog -d shop audit --db postgresql://localhost/shop --name shop
    """
    from eoslog.sql import Database
    from eoslog.sql import audit as compare

    with context.log(reads=True) as log, Database(database, name=name, prefix=prefix) as opened:
        report = compare(log, opened)
    rows = [
        {"kind": found.kind, "subject": found.subject, "message": found.message}
        for found in (*report.findings, *report.notes)
    ]
    if rows or context.form != "table":
        context.show(rows, _COLUMNS)
    context.say(
        f"{counted(report.transactions, 'transaction')}, {counted(report.outcomes, 'outcome')}, "
        f"{counted(report.offsets, 'offset')}: "
        + ("no disagreement" if report.ok else counted(len(report.findings), "disagreement"))
    )
    if not report.ok:
        raise click.exceptions.Exit(_EXIT_FOUND)


def _relay_options(command: Any) -> Any:
    for option in reversed(
        (
            click.argument("database", metavar="DATABASE"),
            click.option("--name", required=True, help="Name of the relay."),
            click.option("--table", default="outbox", show_default=True, help="The table."),
            click.option(
                "--column",
                "columns",
                multiple=True,
                metavar="FIELD=NAME",
                help="Name of a column of the table, for example value=payload. Repeatable.",
            ),
        )
    ):
        command = option(command)
    return command


def _columns(pairs: tuple[str, ...]) -> dict[str, str | None] | None:
    columns: dict[str, str | None] = {}
    for pair in pairs:
        field, sign, name = pair.partition("=")
        if not sign:
            raise click.UsageError(f"--column: expected FIELD=NAME, got {pair!r}")
        columns[field] = name or None
    return columns or None


@click.group()
def outbox() -> None:
    """Publish the rows of a database table, each row once.

    DATABASE is the path of an SQLite file, or a connection string of PostgreSQL.
    """


@outbox.command("run")
@_relay_options
@click.option("--create", is_flag=True, help="Create the table if it does not exist.")
@click.option("--caught-up", is_flag=True, help="End when no row waits.")
@click.option(
    "--on-error",
    type=click.Choice(["stop", "set_aside"]),
    default="stop",
    show_default=True,
    help="What to do with a row that cannot become a record.",
)
@click.pass_obj
def run(
    context: CliContext, database: str, name: str, table: str, columns: tuple[str, ...],
    create: bool, caught_up: bool, on_error: str,
) -> None:  # fmt: skip
    r"""Publish rows until the command is interrupted.

    Several processes may run with one name. One works, and another takes over when it ends.

    \b
    Examples:
      eoslog -d shop outbox run shop.sqlite --name shop --create
      eoslog -d shop outbox run postgresql://localhost/shop --name shop --column value=payload
    """
    from eoslog.sql import Database, OutboxRelay

    names = _columns(columns)
    with context.log() as log, Database(database) as base:
        relay = OutboxRelay(
            base, log, name=name, table=table, columns=names,
            on_error="set_aside" if on_error == "set_aside" else "stop",
        )  # fmt: skip
        with relay:
            if create:
                relay.create()
            published = relay.run("caught_up" if caught_up else None)
    context.say(f"published {published} rows")


@outbox.command("status")
@_relay_options
@click.pass_obj
def status(
    context: CliContext, database: str, name: str, table: str, columns: tuple[str, ...]
) -> None:
    r"""Show how many rows wait, and which process publishes them.

    \b
    Examples:
      eoslog -d shop outbox status shop.sqlite --name shop
      eoslog -d shop --format json outbox status shop.sqlite --name shop
    """
    from eoslog.sql import Database, OutboxRelay

    names = _columns(columns)
    with (
        context.log(reads=True) as log,
        Database(database) as base,
        OutboxRelay(base, log, name=name, table=table, columns=names) as relay,
    ):
        found = relay.status()
    context.show_one({"name": name, **found._asdict()})


COMMANDS = (audit, outbox)
