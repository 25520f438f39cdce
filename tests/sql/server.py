"""A private PostgreSQL server of the tests."""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1


def binaries() -> Path | None:
    """The folder of the newest server on this machine; None without one."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3])
    )
    if found:
        return found[-1].parent
    elsewhere = shutil.which("initdb")
    return Path(elsewhere).parent if elsewhere else None


def missing() -> str | None:
    """Why no server can be started here; None if one can."""
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        return f"no PostgreSQL: {error}"
    if binaries() is None:
        return "no PostgreSQL: initdb not found; install the package postgresql"
    if os.getuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            return "no PostgreSQL: a server does not run as root, and there is no user postgres"
    return None


class Server:
    """A server in a temporary directory; it ends with the test process."""

    def __init__(self, **settings: str) -> None:
        """Create a server; `settings` are those of postgresql.conf."""
        self._settings = settings
        found = binaries()
        assert found is not None
        self._binaries = found
        self._user: dict[str, Any] = {}
        self.directory = Path(tempfile.mkdtemp(prefix="eos-pg-", dir="/tmp"))
        if os.getuid() == 0:
            account = pwd.getpwnam("postgres")
            self._user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            os.chown(self.directory, account.pw_uid, account.pw_gid)
        self._data = self.directory / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._schemas = 0
        self._run(
            "initdb", "-D", self._data, "-A", "trust", "-U", "eoslog", "--no-sync", "-E", "UTF8"
        )

    @property
    def dsn(self) -> str:
        return f"host={self.directory} dbname=postgres user=eoslog"

    def schema(self, *options: str) -> str:
        """The connection string of a new, empty schema."""
        import psycopg

        self._schemas += 1
        name = f"t{self._schemas}"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"create schema {name}")
        settings = " ".join(f"-c {item}" for item in (f"search_path={name}", *options))
        return f"{self.dsn} options='{settings}'"

    def database(self) -> str:
        """The connection string of a new, empty database."""
        import psycopg

        self._schemas += 1
        name = f"d{self._schemas}"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"create database {name}")
        return f"host={self.directory} dbname={name} user=eoslog"

    def _run(self, program: str, *arguments: Any) -> None:
        done = subprocess.run(
            [str(self._binaries / program), *map(str, arguments)], cwd=self.directory,
            capture_output=True, text=True, check=False, timeout=120, **self._user,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        options = {"fsync": "on", "listen_addresses": "", "unix_socket_directories": self.directory}
        options["max_connections"] = "40"
        options |= self._settings
        words = [word for key, value in options.items() for word in ("-c", f"{key}={value}")]
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [str(self._binaries / "postgres"), "-D", str(self._data), *words],
                cwd=self.directory, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                preexec_fn=end_with_parent, **self._user,
            )  # fmt: skip
        for _ in range(600):
            ready = [self._binaries / "pg_isready", "-q", "-h", self.directory]
            if subprocess.run(list(map(str, ready)), check=False).returncode == 0:
                return
            assert self._process.poll() is None, (self.directory / "log").read_text()
            time.sleep(0.1)
        raise AssertionError("PostgreSQL did not start")

    def stop(self, mode: str = "fast") -> None:
        assert self._process is not None
        self._run("pg_ctl", "stop", "-D", self._data, "-m", mode, "-w")
        self._process.wait()
        self._process = None

    def remove(self) -> None:
        if self._process is not None:
            self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)


def end_with_parent(number: int = signal.SIGQUIT) -> None:
    """Get a signal when the parent process ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
