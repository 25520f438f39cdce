"""`eoslog verify-history`."""

from __future__ import annotations

import os

import click

from eoslog.commands.face import Face
from eoslog.history import ANOMALIES, check, read_history

_EXIT_FOUND = 5


@click.command("verify-history")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True))
@click.option(
    "--lossy", multiple=True, type=click.Choice(["0", "1"]), default=["0"], show_default=True,
    help="Acknowledgements that the faults of the run may lose: 0 a kill, 0 and 1 a power cut.",
)  # fmt: skip
@click.pass_obj
def verify_history(face: Face, paths: tuple[str, ...], lossy: tuple[str, ...]) -> None:
    """Look for anomalies in recorded histories.

    Clients record them with `eoslog.history.Recorder`.

    FILE is JSON lines, or a directory of `*.jsonl` of one run. Exit code 5 if something is found.
    """
    for path in filter(os.path.isdir, paths):
        if not any(name.endswith(".jsonl") for name in os.listdir(path)):
            raise FileNotFoundError(f"{path}: no *.jsonl in it")
    try:
        report = check(read_history(paths), lossy=frozenset(lossy))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    rows = [
        {"anomaly": a.name, "what": a.message, "meaning": ANOMALIES[a.name]}
        for a in report.anomalies
    ]
    if rows or face.form in ("json", "csv"):
        face.show(rows, ("anomaly", "what", "meaning"))
    counts = ", ".join(f"{count} {name}" for name, count in report.counts.items())
    face.say(f"{counts}: " + ("no anomaly" if report.ok else f"{len(rows)} anomalies"))
    if not report.ok:
        raise click.exceptions.Exit(_EXIT_FOUND)


COMMANDS = (verify_history,)
