"""The commands of the command line, one chapter a file; only public names of eoslog are used."""

from __future__ import annotations

import errno
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
from eoslog.commands.face import FORMATS, Face

EXIT_RUNTIME, EXIT_USAGE, EXIT_NOT_FOUND, EXIT_CONFLICT = 1, 2, 3, 4
EXIT_CORRUPT, EXIT_TIMED_OUT, EXIT_INTERRUPTED = 5, 6, 130

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
    try:
        result = root.main(
            args=None if arguments is None else list(arguments),
            prog_name="eoslog",
            standalone_mode=False,
        )
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.Abort:
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except KeyboardInterrupt:
        print("eoslog: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # The reader has enough (`| head`): click exits for that and for nothing else here.
        # Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (errors.EoslogError, OSError) as error:
        print(f"eoslog: {error}", file=sys.stderr)
        return exit_code_of(error)
