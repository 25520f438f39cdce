"""`eoslog verify-history`: check recorded histories for anomalies."""

from __future__ import annotations

import os

import click

from eoslog.commands.context import CliContext
from eoslog.testing.history import ANOMALIES, check, read_history

_EXIT_FOUND = 5


@click.command("verify-history")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True))
@click.option(
    "--lossy", multiple=True, type=click.Choice(["0", "1"]), default=["0"], show_default=True,
    help="An acks level whose records may be lost in this run; repeatable. Use 0 after kills, "
    "0 and 1 after power loss.",
)  # fmt: skip
@click.pass_obj
def verify_history(context: CliContext, paths: tuple[str, ...], lossy: tuple[str, ...]) -> None:
    r"""Check recorded histories for anomalies.

    Clients record a history with `eoslog.testing.history.Recorder`. FILE is a file of JSON lines,
    or a directory of `*.jsonl` files of one run. Exit code 5 if there is an anomaly. A history
    without events is rejected. So is one without a drain of a partition with acknowledged records,
    because lost records are found in a drain only.

    \b
    Examples:
      eoslog verify-history run-1/
      eoslog verify-history --lossy 0 --lossy 1 history.jsonl
    """
    for path in filter(os.path.isdir, paths):
        if not any(name.endswith(".jsonl") for name in os.listdir(path)):
            raise FileNotFoundError(
                f"{path} does not contain a *.jsonl file; give the directory of a recorded run"
            )
    try:
        report = check(read_history(paths), lossy=frozenset(lossy))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if not report.counts["events"]:
        raise click.ClickException(
            f"no event in {', '.join(paths)}; give the files of a recorded run"
        )
    rows = [
        {"anomaly": a.name, "what": a.message, "meaning": ANOMALIES[a.name]}
        for a in report.anomalies
    ]
    if rows or context.form in ("json", "csv"):
        context.show(rows, ("anomaly", "what", "meaning"))
    if report.ok and report.undrained:
        raise click.ClickException(
            f"the history has no drain of {', '.join(report.undrained[:5])}, so lost records would "
            "not be found; call Recorder.drain when the run is over"
        )
    counts = ", ".join(f"{count} {name}" for name, count in report.counts.items())
    context.say(f"{counts}: " + ("no anomaly" if report.ok else f"{len(rows)} anomalies"))
    if not report.ok:
        raise click.exceptions.Exit(_EXIT_FOUND)


COMMANDS = (verify_history,)
