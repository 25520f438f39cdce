"""Packages that eoslog uses only where they are installed."""

from __future__ import annotations

import importlib
from typing import Any

from eoslog.errors import ConfigError

__all__ = ["package", "to_install"]


def to_install(extra: str, *packages: str) -> str:
    """The command that installs packages, and the one for all of the extra.

    Args:
        extra: the extra, as in pyproject.toml.
        packages: the packages that are missing.
    """
    return (
        f"pip install {' '.join(packages)} (or, in a checkout of eoslog, pip install '.[{extra}]')"
    )


def package(name: str, what: str, extra: str | None = None) -> Any:
    """Import a package that eoslog does not require.

    Args:
        name: the package.
        what: the call that needs it.
        extra: the extra that brings it; None: no extra does.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        top = name.partition(".")[0]
        command = f"pip install {top}" if extra is None else to_install(extra, top)
        raise ConfigError(f"{what} needs the package {top!r}: {error}; {command}") from error
