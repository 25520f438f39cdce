"""The `eoslog` command: an entry that works without the `cli` extra, if only to ask for it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        arguments: without the program's name; `sys.argv` by default.

    Returns:
        The exit code: 0 ok, 1 runtime, 2 usage, 3 not found, 4 conflict or fenced, 5 corruption
        found, 6 timed out, 130 interrupted.
    """
    try:
        return _main(arguments)
    except KeyboardInterrupt:  # while it starts: `run` sees to those that come later
        print("eoslog: interrupted", file=sys.stderr)
        return 130


def _main(arguments: Sequence[str] | None) -> int:
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing:
        print(
            f"eoslog: missing {' and '.join(missing)}: pip install 'eoslog[cli]'", file=sys.stderr
        )
        return 2
    from eoslog.commands import run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
