"""`eoslog dead`: list, show and replay the dead letters of applications."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from eoslog.commands.context import CliContext, cell, counted, shown
from eoslog.commands.formatting import row_of
from eoslog.commands.why import local_time

if TYPE_CHECKING:
    from eoslog.app.dead_letters import DeadLetter

_COLUMNS = ("app", "id", "time", "task", "topic", "partition", "offset", "attempts", "cause",
            "replayed")  # fmt: skip


@click.group()
def dead() -> None:
    """List, show and send back the dead letters of applications.

    A dead letter is a record whose task failed, or whose task ended its process, as often as
    allowed. It is in the topic APP.dead, with its key, value and headers. Its ID is its offset
    there.
    """


@dead.command("list")
@click.argument("app", metavar="[APP]", required=False)
@click.option("--all", "every", is_flag=True, help="Include dead letters that were sent back.")
@click.pass_obj
def list_dead(context: CliContext, app: str | None, every: bool) -> None:
    r"""List the dead letters of one application, or of all.

    The column `id` is the number that `show` and `replay` take. Times are in ms since 1970 in JSON
    and CSV. Exit code 3 if APP has no topic of dead letters.

    \b
    Examples:
      eoslog -d shop dead list
      eoslog -d shop dead list billing --all
      eoslog -d shop --format jsonl dead list billing | jq -r .cause
    """
    from eoslog.app.dead_letters import apps_with_dead_letters, dead_letters

    def rows(log: Any) -> Iterator[dict[str, Any]]:
        for name in apps_with_dead_letters(log) if app is None else [app]:
            for letter in dead_letters(log, name):
                if every or not letter.replayed:
                    yield _row(context, name, letter)

    with context.log(reads=True) as log:
        context.show(rows(log), _COLUMNS)


def _row(context: CliContext, app: str, letter: DeadLetter) -> dict[str, Any]:
    record = letter.record
    people = context.form == "table"
    return {
        "app": app,
        "id": letter.offset,
        "time": local_time(letter.timestamp) if people else letter.timestamp,
        "task": record.task,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "attempts": record.attempts,
        "cause": record.cause,
        "replayed": letter.replayed,
    }


@dead.command("show")
@click.argument("app", metavar="APP")
@click.argument("number", metavar="ID", type=click.IntRange(0))
@click.pass_obj
def show(context: CliContext, app: str, number: int) -> None:
    r"""Show one dead letter with its headers and traceback.

    Exit code 1 if there is no dead letter with this ID, 3 if APP has no topic of dead letters.

    \b
    Examples:
      eoslog -d shop dead show billing 12
      eoslog -d shop --format json dead show billing 12
    """
    from eoslog.app.dead_letters import dead_letter

    with context.log(reads=True) as log:
        letter = dead_letter(log, app, number)
    record = letter.record
    row = {**_row(context, app, letter), **row_of(record)}  # type: ignore[arg-type]
    row["traceback"] = record.traceback
    if context.form != "table":
        context.show_one(row)
        return
    row["timestamp"] = local_time(record.timestamp)
    trace = row.pop("traceback")
    row.pop("headers", None)
    for name, data in record.headers:
        row[f"header {name}"] = data
    context.show_one(row)
    if trace:
        click.echo("\n" + "\n".join(shown(line) for line in cell(trace).rstrip().splitlines()))


@dead.command("replay")
@click.argument("app", metavar="APP")
@click.argument("numbers", metavar="[ID]...", nargs=-1, type=click.IntRange(0))
@click.option("--all", "every", is_flag=True, help="Send all that were not sent back yet.")
@click.option(
    "--only-task", is_flag=True,
    help="Send them to the task that failed, not to the input topic.",
)  # fmt: skip
@click.pass_obj
def replay(
    context: CliContext, app: str, numbers: tuple[int, ...], every: bool, only_task: bool
) -> None:
    r"""Send dead letters back, each once.

    A record goes to its partition of the input topic, with its key, value, headers and timestamp.
    If other programs read that topic, they read the record again; --only-task avoids this.

    A command that is killed may have sent a part. Call it again: it sends what is left. Exit code 4
    if another replay of APP runs.

    \b
    Examples:
      eoslog -d shop dead replay billing 12 13
      eoslog -d shop dead replay billing --all --only-task
    """
    from eoslog.app.dead_letters import replay as send_back

    if every == bool(numbers):
        raise click.UsageError("give the IDs of dead letters, or --all")
    with context.log() as log:
        sent = send_back(log, app, None if every else numbers, only_task=only_task)
    left = "" if every else f"; sent before: {len(set(numbers)) - len(sent)}"
    owner, to = "its" if len(sent) == 1 else "their", "task" if only_task else "input"
    context.say(f"sent {counted(len(sent), 'dead letter')} back to {owner} {to}{left}")
