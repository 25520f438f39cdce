"""`eoslog check` and `eoslog repair`: find damage in the files, and repair it.

Findings and the result are data and go to stdout. Progress, the list of what would be lost and the
question go to stderr.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import click

import eoslog
from eoslog import CheckReport, Damage, Problem, RepairReport, TornTransaction
from eoslog.commands.context import EXIT_CORRUPT, FORMATS, CliContext, counted

READ_ONLY_ANYWAY = click.option(
    "--read-only-anyway", is_flag=True, help="Read although a broker is running on the directory."
)
_COLUMNS = ("path", "position", "message", "lost_records", "kind")


@click.command()
@click.argument(
    "paths", metavar="[PATH]...", nargs=-1, type=click.Path(exists=True, file_okay=False)
)
@click.option(
    "--full", is_flag=True, help="Decode every record instead of checking checksums only."
)
@click.option(
    "--fix-indexes", is_flag=True,
    help="First rebuild the indexes and producer snapshots that differ from the batches. Log "
    "files are never changed. No process may have the directory open.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default=None,
    help="How to print the findings; the same option as before the command's name.",
)  # fmt: skip
@READ_ONLY_ANYWAY
@click.pass_obj
def check(
    context: CliContext,
    paths: tuple[str, ...],
    full: bool,
    fix_indexes: bool,
    form: str | None,
    read_only_anyway: bool,
) -> None:
    r"""Verify every file and print each problem.

    Reads the log of -d, or the broker directories and partition directories PATH. Changes nothing
    without --fix-indexes. Prints the problems, and the result in the last row. A "note" is not
    damage: it names what an earlier repair removed, and the file that keeps it.

    Exit code 5 if there is a problem.

    \b
    Examples:
      eoslog -d shop check
      eoslog check --full /var/lib/kafka/data/orders-0
    """
    context.form = form or context.form
    with working(context, "check"):
        if paths or fix_indexes:
            report = eoslog.check(
                *(paths or (context.directory,)), full=full, read_only_anyway=read_only_anyway,
                fix_indexes=fix_indexes,
            )  # fmt: skip
        else:
            with context.log(read_only=True) as log:
                report = log.check(full=full)
    _show_check(context, report)
    if not report.ok:
        raise click.exceptions.Exit(EXIT_CORRUPT)


def _show_check(context: CliContext, report: CheckReport) -> None:
    batches = f"{report.batches} {'batch' if report.batches == 1 else 'batches'}"
    rebuilt = f"{counted(len(report.rebuilt), 'file')} rebuilt, " if report.rebuilt else ""
    verdict = (
        f"{counted(report.partitions, 'partition')}, {batches}, "
        f"{counted(report.records, 'record')}: {rebuilt}"
        + ("no problems" if report.ok else counted(len(report.problems), "problem"))
    )
    if context.form == "json":
        context.show_one({"ok": report.ok, "verdict": verdict, **dataclasses.asdict(report)})
        return
    rows = [_row(problem, "problem") for problem in report.problems]
    rows += [_row(note, "note") for note in report.notes]
    rows += [
        _row(Problem(path, 0, "rebuilt from the batches"), "rebuilt") for path in report.rebuilt
    ]
    end = {**_row(Problem(context.directory, 0, verdict), "verdict"), "ok": report.ok}
    end |= {name: getattr(report, name) for name in ("partitions", "batches", "records")}
    if context.form == "table":
        if rows:
            context.show(rows, _COLUMNS)
        context.echo(verdict)
    else:
        context.show([*rows, end], _COLUMNS)


@click.command()
@click.argument("path", required=False, type=click.Path(exists=True, file_okay=False))
@click.option(
    "--mode", type=click.Choice(["report", "cut", "skip", "as-kafka"]), show_default="report",
    help="report: change nothing; skip: remove damaged batches; cut: truncate at the first "
    "damaged batch; as-kafka: do what a broker would do.",
)  # fmt: skip
@click.option("--skip", is_flag=True, help="Same as --mode skip.")
@click.option("--cut", is_flag=True, help="Same as --mode cut.")
@click.option("--as-kafka", is_flag=True, help="Same as --mode as-kafka.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before data is removed.")
@click.pass_obj
def repair(
    context: CliContext,
    path: str | None,
    mode: str | None,
    skip: bool,
    cut: bool,
    as_kafka: bool,
    yes: bool,
) -> None:
    r"""Find damage in PATH, and repair it as --mode says.

    PATH is the log of -d if it is missing. No process may have the directory open. With
    --as-kafka, PATH may also be a stopped broker's log
    directory, or a partition directory in it.

    Without an option nothing is changed: the report names what each mode would lose.

    --skip removes the damaged batches only. Complete records after them are kept, and readers step
    over the missing offsets. The report names each transaction that loses records. Internal topics
    are not changed, because a skip in them can break exactly-once.

    --skip and --cut accept that a segment file is missing, and name the transactions it tears.

    --cut truncates a partition before its first damaged batch. Complete records after it are
    removed too. New records get offsets after the old end.

    --as-kafka truncates as a broker does when it starts.

    All three modes keep the removed bytes as SEGMENT.log.cut-MS in the partition's directory, where
    `eoslog dump FILE` reads them. They ask before they change a file. Without a terminal they need
    -y.

    Exit code 5 if damage remains: it was only reported, or a skip left some of it.

    \b
    Examples:
      eoslog -d shop repair
      eoslog -d shop repair --skip -y
    """
    asked = {
        name
        for name, given in (
            (mode or "report", mode), ("skip", skip), ("cut", cut), ("as-kafka", as_kafka)
        )
        if given
    }  # fmt: skip
    if len(asked) > 1:
        raise click.UsageError(
            "--mode, --skip, --cut and --as-kafka exclude each other; give one of them"
        )
    chosen = asked.pop() if asked else "report"
    if path is None:
        context.refuse_missing()
    place = path or context.directory
    if chosen != "report" and not yes:
        if not sys.stdin.isatty():
            first = "check" if chosen == "as-kafka" else "repair"
            hint = f"read the output of `eoslog {first}` first, then add -y"
            if path is None:
                hint = context.for_a_shell(hint)
            else:
                hint = hint.replace(first, f"{first} {shlex.quote(path)}", 1)
            raise click.UsageError(
                f"--{chosen} removes bytes from the log, and stdin is not a terminal to ask on; "
                + hint
            )
        _ask(context, place, chosen)
    with working(context, f"repair ({chosen})"):
        report = eoslog.repair(place, mode=chosen)
    _show_repair(context, report)
    if not report.ok and (chosen == "report" or report.refused):
        raise click.exceptions.Exit(EXIT_CORRUPT)


def _ask(context: CliContext, place: str, chosen: str) -> None:
    """Print what a cut or a skip would lose, and continue only after a yes."""
    if chosen == "as-kafka":
        with working(context, "check"):
            checked = eoslog.check(place)
        for problem in checked.problems:
            context.say(f"{problem.path} at byte {problem.position}: {problem.message}")
        context.say("a partition is cut at its first damaged batch, whole batches after it too")
        click.confirm(f"{chosen} {place} now?", abort=True, err=True)
        return
    with working(context, "repair (report)"):
        report = eoslog.repair(place)
    if report.ok:
        return
    for problem in report.problems:
        context.say(f"{problem.path} at byte {problem.position}: {problem.message}")
    first: set[tuple[str, int]] = set()
    for found in report.damage:
        if chosen == "skip" or (found.topic, found.partition) not in first:
            context.say(_loss(found, chosen))
        first.add((found.topic, found.partition))
    for torn in report.torn:
        context.say(_torn(torn))
    click.confirm(f"{chosen} {place} now?", abort=True, err=True)


def _loss(found: Damage, chosen: str | None = None) -> str:
    """Describe the damage and what follows it, in a sentence."""
    offsets = f"offsets {found.first_offset} to {found.last_offset}"
    lost = offsets if found.last_offset >= found.first_offset else "no known offset"
    after = f"{counted(found.records_after, 'complete record')} in {found.bytes_after} bytes follow"
    ways = {"cut": "a cut takes them too", "skip": "a skip keeps them"}
    told = ways[chosen] if chosen else f"{ways['cut']}, {ways['skip']}"
    return (
        f"{found.topic}-{found.partition}: {lost} damaged, {found.size} bytes at byte "
        f"{found.position}, between {_time(found.before_ms)} and {_time(found.after_ms)}; {after}"
        + (f", {told}" if found.records_after else "")
    )


def _time(milliseconds: int) -> str:
    """Format a timestamp for people; -1 means there is none."""
    if milliseconds < 0:
        return "no record"
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"


def _torn(torn: TornTransaction) -> str:
    name = f" of {torn.transactional_id}" if torn.transactional_id else ""
    ended = {None: "its outcome is decided when the log is opened", "commit": "it is committed",
             "abort": "it is aborted"}[torn.outcome]  # fmt: skip
    lost = {"marker": "loses its marker, which a skip writes again", "records": "loses records",
            "unknown": "may lose records"}[torn.lost]  # fmt: skip
    return (
        f"{torn.topic}-{torn.partition}: the transaction{name} from offset {torn.first_offset} on, "
        f"producer {torn.producer_id} epoch {torn.producer_epoch}, {lost}; {ended}"
    )


def _show_repair(context: CliContext, report: RepairReport) -> None:
    rows = [_row(problem, "problem") for problem in report.problems]
    rows += [
        {**_row(Problem(found.path, found.position, _loss(found)), "damage"),
         **dataclasses.asdict(found)}
        for found in report.damage
    ]  # fmt: skip
    for torn in report.torn:
        place = f"{torn.topic}-{torn.partition}"
        rows.append({**_row(Problem(place, 0, _torn(torn)), "torn"), **dataclasses.asdict(torn)})
    rows += [_row(Problem(path, 0, "what was taken out"), "kept") for path in report.kept]
    rows += [_row(problem, "refused") for problem in report.refused]
    if rows or context.form in ("json", "csv"):
        context.show(rows, _COLUMNS)
    gone = f", {counted(report.bytes_cut, 'byte')} cut" if report.bytes_cut else ""
    left = f", {len(report.refused)} left as they are" if report.refused else ""
    found = counted(len(report.problems), "problem")
    context.say(f"{counted(report.partitions, 'partition')}, {found}{gone}{left}")


def _row(problem: Problem, kind: str) -> dict[str, Any]:
    return {name: getattr(problem, name) for name in _COLUMNS[:-1]} | {"kind": kind}


def show_problems(context: CliContext, problems: Iterable[Problem]) -> None:
    """Print the problems that a backup or an import found."""
    rows = [{name: getattr(problem, name) for name in _COLUMNS[:-1]} for problem in problems]
    if rows or context.form in ("json", "csv"):
        context.show(rows, _COLUMNS[:-1])


@contextlib.contextmanager
def working(context: CliContext, what: str) -> Iterator[None]:
    """Show on stderr that work is in progress."""
    with context.progress(of="") as bar:
        bar.add_task(what, total=None)
        yield


COMMANDS = (check, repair)
