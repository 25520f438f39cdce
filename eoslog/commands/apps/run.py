"""`eoslog run`: run an application in one or more processes."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import click

from eoslog._util.user_frames import user_frames
from eoslog.commands.apps.live_view import view
from eoslog.commands.context import CliContext, counted
from eoslog.errors import ConfigError, TaskFailed
from eoslog.shown_values import printable

if TYPE_CHECKING:
    from eoslog.app import App

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LOG_PLACE = " [%(app)s/%(task)s %(place)s]"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "-p", "--processes", type=click.IntRange(1, 1000), default=1, show_default=True,
    help="Number of processes, which share the partitions.",
)  # fmt: skip
@click.option("--until", type=click.Choice(["caught_up"]), help="End when no input record is left.")
@click.option(
    "--create-topics", "create", is_flag=True, help="Create the topics that do not exist first."
)
@click.option(
    "--log-level", type=click.Choice(_LEVELS, case_sensitive=False), default="INFO",
    show_default=True, help="Lowest level of the log lines on stderr.",
)  # fmt: skip
@click.pass_obj
def run(
    context: CliContext,
    target: str,
    processes: int,
    until: Literal["caught_up"] | None,
    create: bool,
    log_level: str,
) -> None:
    r"""Run an application: the variable APP of a Python module.

    MODULE is looked up in the current directory first. A process that is killed is started again,
    after a delay that doubles. SIGTERM and Ctrl-C end the run after the open transactions.

    Prints the rate, the lag, and what each process does: a table on a terminal, otherwise a line
    every 5 seconds on stderr. Log lines of tasks name the app, the task and the record.

    Exit code 1 if a task has failed and its on_error is "stop", 2 if MODULE cannot be imported,
    3 if a topic does not exist. The traceback of the task, or of MODULE, is on stderr.

    \b
    Examples:
      eoslog run shop_app:app
      eoslog run shop_app:app --processes 3
      eoslog run shop_app:app --create-topics --until caught_up
    """
    app = _app(target)
    _check_directory(context, app)
    with _printed_tracebacks(), view(app.id) as watch:
        _log_to_stderr(log_level.upper())
        if create:
            app.create_topics()
        report = app.run(processes, until, watch=watch)
    context.say(
        f"{app.id}: {counted(report.records, 'record')} in "
        f"{counted(report.transactions, 'transaction')}, {report.retried} retried, "
        f"{report.skipped} skipped, {counted(report.dead_letters, 'dead letter')}"
    )


def _app(target: str) -> App:
    """Import an application.

    Raises:
        click.UsageError: if the text does not name one.
        ConfigError: if the module raises; its traceback is printed before.
    """
    from eoslog.app import App

    module, colon, name = target.partition(":")
    if not colon or not module or not name:
        raise click.UsageError(f"expected MODULE:APP such as shop_app:app, got {target!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: Any = _imported(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        apps = sorted(key for key, value in vars(import_module(module)).items()
                      if isinstance(value, App))  # fmt: skip
        known = f"; it has {', '.join(f'{module}:{app}' for app in apps)}" if apps else ""
        raise click.UsageError(f"{target}: {name!r} is not an eoslog.App in {module}{known}")
    return found


def _imported(module: str) -> Any:
    try:
        return import_module(module)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module}.".startswith(f"{missing}."):
            raise click.UsageError(
                f"no module {module!r} in {os.getcwd()} or on the Python path; give the name of a "
                "file without .py, or set PYTHONPATH"
            ) from None
        frames = user_frames(error)
        click.echo(
            "".join(traceback.format_exception(type(error), error, frames)), nl=False, err=True
        )
        cause = " ".join(printable(f"{type(error).__name__}: {error}").split())
        raise ConfigError(
            f"module {module!r} could not be imported: {cause}; see the traceback"
        ) from error


@contextlib.contextmanager
def _printed_tracebacks() -> Iterator[None]:
    """Print the traceback of a task that ends the run, which its process has noted."""
    try:
        yield
    except TaskFailed as error:
        for note in getattr(error, "__notes__", ()):
            click.echo(note, nl=False, err=True)
        raise


def _check_directory(context: CliContext, app: App) -> None:
    given = context.given.get("-d")
    if given and os.path.realpath(given[-1]) != os.path.realpath(app.path):
        raise ConfigError(
            f"-d {given[-1]}: the application {app.id!r} is in {app.path}; leave -d out, or change "
            "the path in the program"
        )


class _Formatter(logging.Formatter):
    """Adds the place of the record to log lines of tasks only."""

    def __init__(self) -> None:
        super().__init__(_LOG_FORMAT)
        self._of_tasks = logging.Formatter(_LOG_FORMAT + _LOG_PLACE)

    def format(self, record: logging.LogRecord) -> str:
        if getattr(record, "task", "-") == "-":
            return super().format(record)
        return self._of_tasks.format(record)


def _log_to_stderr(level: str) -> None:
    """Log to stderr, unless the module of the application has configured logging."""
    from eoslog.app import RecordContext

    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    handler.addFilter(RecordContext())
    handler.setFormatter(_Formatter())
    root.addHandler(handler)
    root.setLevel(level)
