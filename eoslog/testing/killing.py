"""Functions that run in a process of their own, which is killed at a point."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from typing import IO, Any, NoReturn

from eoslog._util.arguments import as_int, as_seconds, shown
from eoslog.engine.engine import Engine
from eoslog.errors import ConfigError
from eoslog.log import Log
from eoslog.storage.fs import files

__all__ = ["kill"]

_RETURNED, _RAISED = 0, 1


def kill(
    function: Callable[..., object],
    *args: Any,
    at: str | None = None,
    nth: int = 1,
    timeout: float = 60.0,
    **kwargs: Any,
) -> None:
    """Run a function in another process, which is killed (SIGKILL) at a point.

    The process is a fork of this one, so that the function may be any. An argument that is a `Log`
    is opened again in the process. When the call returns, the process and those that it started
    have ended. Nothing was closed or flushed::

        kill(take_order, log, "ada", at="txn.flushed")

    Args:
        function: the function, which must come to the point.
        args: its arguments.
        at: the point: one of eoslog, of the program (`eoslog.testing.failpoint`), or a system call,
            for example "txn.decided", "fdatasync". None: the function kills its process itself.
        nth: the pass at which the process is killed; 1 is the first.
        timeout: the longest run, in seconds.
        kwargs: more arguments of the function.

    Raises:
        AssertionError: if the function returned, raised or ran too long without being killed. The
            message has its output, and the points that it passed.
        ConfigError: if an argument is invalid.
    """
    __tracebackhide__ = True
    if not callable(function):
        raise ConfigError(f"function: expected a function, got {shown(function)}")
    if at is not None and not isinstance(at, str):
        raise ConfigError(f"at: expected the name of a point or None, got {shown(at)}")
    if as_int("nth", nth) < 1:
        raise ConfigError(f"nth: expected 1 or more, got {nth}")
    longest = as_seconds("timeout", timeout)

    def call() -> None:
        given = [_opened_again(item) for item in args]
        named = {name: _opened_again(item) for name, item in kwargs.items()}
        files.disarm_failpoints()
        if at is not None:
            files.arm_failpoint(at, "kill", nth)
        function(*given, **named)

    with tempfile.TemporaryFile() as output:
        status = _run(call, output, longest)
        if status == -signal.SIGKILL:
            return
        output.seek(0)
        text = output.read().decode(errors="replace").rstrip()
    name = getattr(function, "__qualname__", None) or repr(function)
    place = "being killed" if at is None else f"passing {at!r} {nth} times"
    place = place.replace(" 1 times", "")
    how = {
        _RETURNED: "returned", _RAISED: "raised", None: f"ran for {longest:g} s"
    }.get(status, f"ended with status {status}")  # fmt: skip
    raise AssertionError(f"kill: {name} {how} without {place}\n{text}".rstrip())


def _opened_again(item: Any) -> Any:
    if not isinstance(item, Log):
        return item
    opened = item._opened
    return Log(
        Engine.open(opened.path, create=False, read_only=opened.read_only, config=opened.config)
    )


def _run(call: Callable[[], None], output: IO[bytes], timeout: float) -> int | None:
    """Run a call in a fork; return its exit code, or None if it ran too long.

    A negative code is a signal.
    """
    with warnings.catch_warnings():
        # The child takes no lock of another thread: it opens logs again, and leaves by `_exit`.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _be_the_child(call, output)
    with contextlib.suppress(OSError):  # the child has done it, or has exited
        os.setpgid(child, child)
    deadline = time.monotonic() + timeout
    pause, ended = 0.0005, False
    try:
        while not ended and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
            # The child stays a zombie, so that no other group can get its number.
            ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status) if ended else None


def _be_the_child(call: Callable[[], None], output: IO[bytes]) -> NoReturn:
    code = _RAISED
    try:
        os.setpgid(0, 0)
        for number in (1, 2):
            os.dup2(output.fileno(), number)
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, closefd=False)
        try:
            call()
            code = _RETURNED
        except BaseException:
            traceback.print_exc()
        passed = files.passed_failpoints()
        if passed:
            print(f"points that it passed: {', '.join(passed)}")
    finally:
        os._exit(code)
