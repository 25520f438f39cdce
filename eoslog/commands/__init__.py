"""The commands of the command line, one chapter a file; only public names of eoslog are used."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence

import click

import eoslog
from eoslog import errors
from eoslog.commands import (
    bench,
    data,
    groups,
    histories,
    maintenance,
    moving,
    topics,
    transactions,
)
from eoslog.commands.face import EXIT_CORRUPT, FORMATS, Face

EXIT_RUNTIME, EXIT_USAGE, EXIT_NOT_FOUND, EXIT_CONFLICT = 1, 2, 3, 4
EXIT_TIMED_OUT, EXIT_INTERRUPTED = 6, 130

_EXITS: tuple[tuple[int, tuple[type[BaseException], ...]], ...] = (
    (
        EXIT_NOT_FOUND,
        (
            errors.UnknownTopicOrPartition,
            errors.GroupNotFound,
            errors.TransactionalIdNotFound,
            errors.NoOffset,
            FileNotFoundError,
        ),
    ),
    (
        EXIT_CONFLICT,
        (
            errors.TopicAlreadyExists,
            errors.NonEmptyGroup,
            errors.ProducerFenced,
            errors.InvalidProducerEpoch,
            errors.ConcurrentTransactions,
            errors.FencedInstanceId,
            errors.FencedMemberEpoch,
            errors.IllegalGeneration,
            errors.StaleMemberEpoch,
            errors.UnknownMember,
        ),
    ),
    (EXIT_CORRUPT, (errors.CorruptRecord,)),
    (EXIT_TIMED_OUT, (TimeoutError,)),
    (EXIT_USAGE, (errors.ConfigError, errors.InvalidTopic, errors.InvalidPartitions)),
)


def exit_code_of(error: BaseException) -> int:
    """The exit code that an error ends the program with."""
    for code, classes in _EXITS:
        if isinstance(error, classes):
            return code
    if isinstance(error, OSError) and error.errno == errno.ENOENT:
        return EXIT_NOT_FOUND
    return EXIT_RUNTIME


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-d", "--dir", "directory", envvar="EOSLOG_DIR", default=".", show_envvar=True,
    show_default="the current one", help="The log's directory.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default=None,
    show_default="table on a terminal, else jsonl", help="How to print data.",
)  # fmt: skip
@click.version_option(eoslog.__version__, prog_name="eoslog")
@click.pass_context
def root(context: click.Context, directory: str, form: str | None) -> None:
    """A log with exactly-once semantics, in a directory.

    Exit codes: 0 ok, 1 runtime, 2 usage, 3 not found, 4 conflict or fenced, 5 corruption found,
    6 timed out, 130 interrupted.
    """
    context.obj = Face(directory, form)


for chapter in (maintenance, topics, data, groups, transactions, moving, histories, bench):
    for command in chapter.COMMANDS:
        root.add_command(command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; see `eoslog.cli.main`."""
    _streams()
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has enough (`| head`)
        code = 0
    except click.Abort as error:
        # click makes one of SIGINT, at a prompt too, and one of the answer "no".
        interrupted = KeyboardInterrupt in (type(error.__cause__), type(error.__context__))
        said = "interrupted" if interrupted else "not done; use -y to do it without being asked"
        print(f"eoslog: {said}", file=sys.stderr)
        code = EXIT_INTERRUPTED if interrupted else EXIT_RUNTIME
    except KeyboardInterrupt:
        print("eoslog: interrupted", file=sys.stderr)
        code = EXIT_INTERRUPTED
    except (errors.EoslogError, OSError) as error:
        print(f"eoslog: {error}", file=sys.stderr)
        code = exit_code_of(error)
    _let_go_of_stdout()
    return code


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result = root.main(
            args=None if arguments is None else list(arguments),
            prog_name="eoslog",
            standalone_mode=False,
        )
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except SystemExit:  # click's answer to a broken pipe, and to nothing else here
        raise BrokenPipeError from None


def _streams() -> None:
    """Streams to write to, whatever the shell left of them."""
    if sys.stdout is None:  # `>&-`: what is printed fails, as it would for `cat`
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _let_go_of_stdout() -> None:
    """Python flushes at exit, and would complain again about a stdout that takes nothing."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
