"""Child processes of the demo: their start, messages, orders and kill.

A child prints one JSON object per line on stdout and reads orders, one word per line, from stdin.
After the death of its parent, it runs only until it next writes a message or reads an order.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from eoslog.errors import EoslogError


class ChildFailed(EoslogError):
    """A process of the demo ended, or kept silent, where the script has it speak."""


def say(event: str, **fields: Any) -> None:
    """Tell the parent something (in the child)."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def listen() -> str:
    """Wait in the child for the next order; an empty string if the parent exited."""
    return sys.stdin.readline().strip()


class Child:
    """One running process of the demo, seen from its parent.

    Not thread-safe but for the reader thread it owns.
    """

    def __init__(self, name: str, module: str, *arguments: str) -> None:
        self.name = name
        self.said: dict[str, dict[str, Any]] = {}
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(),
        )
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        """Return the process id that the child's records carry."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Say whether the process has not ended yet."""
        return self._process.poll() is None

    def drain(self) -> None:
        """Take in what the child has said since: the last of each kind stays in `said`."""
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                return
            self.said[event.pop("event")] = event

    def tell(self, order: str) -> None:
        """Give the child an order."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(order + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the child has exited; the wait for it returns how

    def kill(self) -> int:
        """Send SIGKILL, reap, and return the exit status (-9)."""
        self._process.send_signal(signal.SIGKILL)
        return self.wait(timeout=30)

    def wait(self, timeout: float) -> int:
        """Wait for the end of the process and return its exit status.

        Raises:
            ChildFailed: It runs on after `timeout` seconds.
        """
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ChildFailed(f"{self.name}: still running after {timeout:.0f} s") from None
        for reader in self._readers:
            reader.join(60)
        self.drain()
        return code

    def expect(self, code: int, timeout: float = 10) -> None:
        """Wait for the end of the process and check its exit status.

        Raises:
            ChildFailed: Another status, or too late.
        """
        found = self.wait(timeout)
        if found != code:
            raise ChildFailed(f"{self.name}: exit status {found}, not {code}\n{self.errors()}")

    def errors(self) -> str:
        """Return the end of what the child wrote to stderr."""
        return "".join(self._errors[-40:])

    def close(self) -> None:
        """Make sure that nothing of the child remains."""
        if self.running:
            self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                if line.startswith("{"):
                    self._events.put(json.loads(line))
        except ValueError:
            pass  # closed under the reader, or cut by the kill in mid-line

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        try:
            for line in self._process.stderr:
                self._errors.append(line)
                del self._errors[:-200]
        except ValueError:
            pass


def _environment() -> Mapping[str, str]:
    """Let the children, and the workers of Spark, import what this process imports."""
    here = Path(__file__).resolve().parents[2]
    path = [str(here)]
    if find_spec("pyspark_eoslog") is None and (here / "spark" / "pyspark_eoslog").is_dir():
        path.append(str(here / "spark"))  # run from a source tree that is not installed
    path += filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONSAFEPATH": "1",  # not a source tree in the working directory
        "PYTHONUNBUFFERED": "1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
