"""`python -m eoslog.demo flights`: the demo without the command line extra."""

from __future__ import annotations

import argparse
import sys

from eoslog.demo import flights
from eoslog.errors import ConfigError, EoslogError


def main(argv: list[str] | None = None) -> int:
    """Parse the demo's options and run it; the exit code of the run is returned."""
    parser = argparse.ArgumentParser(prog="python -m eoslog.demo", description=__doc__)
    parser.add_argument("name", nargs="?", default="flights", choices=["flights"])
    parser.add_argument(
        "--dir",
        default=flights.DEFAULT_DIRECTORY,
        help="Directory of the log. [default: %(default)s]",
    )
    parser.add_argument("--keep", action="store_true", help="Keep the directory afterwards.")
    parser.add_argument(
        "--limit", type=int, default=None, help="Use only the first LIMIT flights. [default: all]"
    )
    parser.add_argument("--no-spark", action="store_true", help="Aggregate without Spark.")
    options = parser.parse_args(argv)
    try:
        return _run(options)
    except EoslogError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


def _run(options: argparse.Namespace) -> int:
    return flights.run(
        directory=options.dir,
        keep=options.keep,
        limit=options.limit,
        spark=not options.no_spark,
    )


if __name__ == "__main__":
    sys.exit(main())
