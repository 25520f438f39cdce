"""The commands, one module per group; they use only public names of eoslog."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

import eoslog
from eoslog import errors
from eoslog._util.arguments import shown
from eoslog.commands import (
    apps,
    bench,
    care,
    config,
    consume,
    databases,
    groups,
    maintenance,
    positions,
    produce,
    topics,
    transactions,
    why,
)
from eoslog.commands import (
    kafka as moving,
)
from eoslog.commands import (
    verify as histories,
)
from eoslog.commands.context import EXIT_CORRUPT, CliContext
from eoslog.commands.directory_options import at_every_level
from eoslog.shown_values import printable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

EXIT_RUNTIME, EXIT_USAGE, EXIT_NOT_FOUND, EXIT_CONFLICT = 1, 2, 3, 4
EXIT_TIMED_OUT, EXIT_INTERRUPTED = 6, 130

_EXITS: tuple[tuple[int, tuple[type[BaseException], ...]], ...] = (
    (
        EXIT_NOT_FOUND,
        (
            errors.UnknownTopicOrPartition,
            errors.GroupNotFound,
            errors.TransactionalIdNotFound,
            errors.UnknownToken,
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
            errors.OutcomeConflict,
            errors.PreparedTransactionPending,
            errors.PositionConflict,
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
    """Return the exit code of an error."""
    for code, classes in _EXITS:
        if isinstance(error, classes):
            return code
    if isinstance(error, OSError) and error.errno == errno.ENOENT:
        return EXIT_NOT_FOUND
    return EXIT_RUNTIME


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(eoslog.__version__, prog_name="eoslog")
def root() -> None:
    r"""Read, write and maintain an exactly-once log in a directory.

    Commands print tables on a terminal and JSON lines into a pipe; see --format.

    Exit codes: 0 success, 1 runtime error, 2 wrong usage, 3 not found, 4 conflict or fenced,
    5 damage found, 6 timed out, 130 interrupted.

    \b
    Examples:
      eoslog -d shop topic create orders --partitions 3
      echo "3 apples" | eoslog -d shop produce orders
      eoslog -d shop consume orders
    """


modules = (
    maintenance,
    care,
    topics,
    config,
    consume,
    groups,
    transactions,
    positions,
    produce,
    databases,
    apps,
    why,
    moving,
    histories,
    bench,
)
for module in modules:
    for command in module.COMMANDS:
        root.add_command(command)
at_every_level(root)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; see `eoslog.cli.main`."""
    stderr = sys.stderr
    _streams()
    context = CliContext()
    code = 0
    try:
        code = _run(arguments, context)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has enough (`| head`); what was found stays found
        pass
    except click.Abort as error:
        # click makes one of SIGINT, at a prompt too, and one of the answer "no".
        interrupted = KeyboardInterrupt in (type(error.__cause__), type(error.__context__))
        said = "interrupted" if interrupted else "nothing was changed; add -y to skip the question"
        print(f"eoslog: {said}", file=sys.stderr)
        code = EXIT_INTERRUPTED if interrupted else EXIT_RUNTIME
    except KeyboardInterrupt:
        print("eoslog: interrupted", file=sys.stderr)
        code = EXIT_INTERRUPTED
    except (errors.EoslogError, OSError) as error:
        print(f"eoslog: {context.for_a_shell(str(error))}", file=sys.stderr)
        code = exit_code_of(error)
    except UnicodeEncodeError as error:  # of an argument: what is printed is escaped
        print(
            f"eoslog: {shown(error.object)} has lone surrogates, which {error.encoding} cannot "
            "encode; give other text",
            file=sys.stderr,
        )
        code = EXIT_USAGE
    except Exception as error:
        code = _unexpected(error)
    _detach_stdout()
    sys.stderr = stderr
    return code


def _unexpected(error: Exception) -> int:
    """One line on an error that no command foresees; its traceback on request."""
    if os.environ.get("EOSLOG_TRACEBACK"):
        traceback.print_exception(error)
    context = click.get_current_context(silent=True)
    command = context.command_path if context else "eoslog"
    text = " ".join(printable(f"{type(error).__name__}: {error}").split())
    print(
        f"{command}: unexpected {text}; set EOSLOG_TRACEBACK=1 for the traceback, and report it",
        file=sys.stderr,
    )
    return EXIT_RUNTIME


def _run(arguments: Sequence[str] | None, context: CliContext) -> int:
    try:
        result = root.main(
            args=None if arguments is None else list(arguments),
            prog_name="eoslog",
            standalone_mode=False,
            obj=context,
        )
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except SystemExit:  # click's answer to a broken pipe, and to nothing else here
        raise BrokenPipeError from None


def _streams() -> None:
    """Streams to read from and to write to, whatever the shell left of them."""
    if sys.stdin is None:  # `<&-`: reading fails, as it would for `cat`
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_WRONLY), "r")
    if sys.stdout is None:  # `>&-`: what is printed fails, as it would for `cat`
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    elif sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = io.TextIOWrapper(
            _Remarks(sys.stderr.fileno(), "w", closefd=False), sys.stderr.encoding,
            "backslashreplace", write_through=True,
        )  # fmt: skip
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


class _Remarks(io.FileIO):
    """Stderr: a remark that it does not take is dropped.

    What the command has done stays done, and its exit code says so.
    """

    def write(self, data: ReadableBuffer) -> int:
        """Write data, or drop it."""
        left = memoryview(data).cast("B")
        size = left.nbytes
        with contextlib.suppress(OSError):
            while left:
                left = left[super().write(left) :]
        return size


def _detach_stdout() -> None:
    """Prevent a second error at exit, when Python flushes a closed stdout."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
