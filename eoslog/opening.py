"""`eoslog.open`: opens a directory as a `Log`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from eoslog._util.argument_types import explained
from eoslog.config.keys import LogConfig
from eoslog.engine.engine import Engine
from eoslog.log import Log

if TYPE_CHECKING:
    from eoslog.options import LogOptions

__all__ = ["open"]


@explained
def open(  # noqa: A001
    path: str | os.PathLike[str],
    config: Mapping[str, Any] | None = None,
    *,
    create: bool = True,
    read_only: bool = False,
    durability: str | None = None,
    mode: int | None = None,
    **options: Unpack[LogOptions],
) -> Log:
    """Open a log directory, which any number of processes can have open.

    Args:
        path: the directory.
        config: Kafka's broker keys, for example {"transaction.max.timeout.ms": 60_000}: timers and
            limits of this process's handles, and the numbers of internal partitions of a new
            directory.
        create: create the directory if it is missing.
        read_only: change nothing. If no writer is active when the log is opened, it is a fixed
            view: after a writer opens the directory, reading the view raises IllegalState. Open the
            log again then.
        durability: "strict" (acknowledged records are on disk) or "os" (they are in the page
            cache). It is fixed when the directory is created. None takes the stored value, or
            "strict" for a new directory.
        mode: the permissions of all files, whatever the umask, for example 0o770. They are fixed
            when the directory is created. None takes the stored value, or 0o700.
        options: the same keys as in `config`, in snake_case. They override `config`.

    Returns:
        The open log. Close it, or use it in a `with` block.

    Raises:
        ConfigError: if a key is unknown, or another value is stored or used by this process. The
            message has both values.
        StorageError: if the directory is not a log, is damaged, or is on a file system without
            local locks.
        LockTimeout: if another process holds the directory's lock for longer than 30 s.
    """
    settings = LogConfig.of(config, **options) if config or options else None
    return Log(
        Engine.open(
            path, create=create, read_only=read_only, durability=durability, config=settings,
            mode=mode,
        )
    )  # fmt: skip
