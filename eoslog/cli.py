"""The entry point of the `eoslog` command.

It reports if the `cli` extra is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from eoslog._util.extras import to_install


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        arguments: the arguments without the program's name; None means `sys.argv`.

    Returns:
        The exit code: 0 success, 1 runtime error, 2 usage error, 3 not found, 4 conflict or fenced,
        5 corruption found, 6 timeout, 130 interrupted.
    """
    try:
        return _main(arguments)
    except KeyboardInterrupt:  # during the start; `run` handles later ones
        print("eoslog: interrupted", file=sys.stderr)
        return 130


def _main(arguments: Sequence[str] | None) -> int:
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing:
        print(
            f"eoslog: missing {' and '.join(missing)}: {to_install('cli', *missing)}",
            file=sys.stderr,
        )
        return 2
    from eoslog.commands import run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
