"""The final check: every count, total and value in the log against the data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eoslog import _core
from eoslog.demo import plan, tables

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from eoslog.demo.evidence import Evidence
    from eoslog.log import Log


@dataclass(frozen=True)
class Check:
    """One number that must come out the same on both ways."""

    what: str
    expected: Any
    found: Any

    @property
    def ok(self) -> bool:
        """Say whether both sides agree."""
        return bool(self.expected == self.found)


def check_flights(expected: pd.DataFrame, found: pd.DataFrame) -> list[Check]:
    """Compare the topic `flights` with the data set, row by row and in its order."""
    checks = [Check("flights: records", len(expected), len(found))]
    for column in ("id", "dep_delay", "arr_delay", "air_time", "distance"):
        checks.append(
            Check(
                f"flights: sum of {column}",
                int(expected[column].sum()),
                int(found[column].sum()),
            )
        )
    checks += [
        Check(
            "flights: rows that differ",
            0,
            differing(expected, found, list(expected.columns)),
        ),
        Check(
            "flights: keys unlike the tail number",
            0,
            unlike(found["_key"], found["tailnum"]),
        ),
        Check("flights: in another partition than their key's", 0, misplaced(found)),
        Check(
            "flights: out of order in their partition",
            0,
            disordered(found, ["_partition"]),
        ),
    ]
    return checks


def check_delays(expected: pd.DataFrame, found: pd.DataFrame) -> list[Check]:
    """Compare the topic `delays` with what follows from the data set."""
    keyed = found[found["_key"].notna()]
    return [
        Check("delays: records", len(expected), len(found)),
        Check(
            "delays: sum of arr_delay",
            int(expected["arr_delay"].sum()),
            int(found["arr_delay"].sum()),
        ),
        Check(
            "delays: late flights",
            int(expected["late"].sum()),
            int(found["late"].sum()),
        ),
        Check(
            "delays: rows that differ",
            0,
            differing(expected, found, list(expected.columns)),
        ),
        Check("delays: out of order for their tail number", 0, disordered(keyed, ["_key"])),
    ]


def check_aggregate(expected: pd.DataFrame, found: pd.DataFrame) -> list[Check]:
    """Compare the topic `carrier_delays` with the aggregate of the data set."""
    checks = [Check("carrier_delays: records", len(expected), len(found))]
    for column in ("flights", "dep_delay", "arr_delay", "late"):
        checks.append(
            Check(
                f"carrier_delays: sum of {column}",
                int(expected[column].sum()),
                int(found[column].sum()),
            )
        )
    order = [*tables.GROUP]
    rows = differing(expected, found, list(expected.columns), order)
    return [*checks, Check("carrier_delays: rows that differ", 0, rows)]


def check_log(evidence: Evidence) -> list[Check]:
    """Check what must hold of the bytes whatever the records mean."""
    return [
        Check("log: transactions neither whole nor nothing", 0, len(evidence.torn())),
        Check("log: transactions marked unlike their decision", 0, len(evidence.undecided())),
        Check("log: batches stored twice", 0, evidence.repeated_sequences()),
    ]


def run(log: Log, table: pa.Table, evidence: Evidence) -> list[Check]:
    """Read all three topics and compare them with the data set.

    Args:
        log: The demo's directory, quiet by now.
        table: The data set, or the part of it that was ingested.
        evidence: The folded bytes of the same directory.
    """
    flights = tables.expected_flights(table)
    delays = tables.expected_delays(flights)
    joined = flights.merge(delays[["id", "late"]], on="id")
    return [
        *check_flights(flights, tables.read(log, plan.FLIGHTS)),
        *check_delays(delays, tables.read(log, plan.DELAYS)),
        *check_aggregate(tables.by_carrier_and_hour(joined), tables.read(log, plan.CARRIER_DELAYS)),
        *check_log(evidence),
    ]


def differing(
    expected: pd.DataFrame,
    found: pd.DataFrame,
    columns: list[str],
    order: list[str] | None = None,
) -> int:
    """Count rows that are not the same on both sides, each side's surplus included."""
    order = order or ["id"]
    missing = [column for column in columns if column not in found]
    if missing:
        return max(len(expected), len(found))
    left = expected.sort_values(order, ignore_index=True)[columns]
    right = found.sort_values(order, ignore_index=True)[columns]
    common = min(len(left), len(right))
    a, b = left.iloc[:common].astype(object), right.iloc[:common].astype(object)
    same = (a == b) | (a.isna() & b.isna())
    return int((~same.all(axis=1)).sum()) + abs(len(left) - len(right))


def unlike(left: pd.Series, right: pd.Series) -> int:
    """Count the places where two columns differ, nulls being equal."""
    a, b = left.astype(object), right.astype(object)
    return int((~((a == b) | (a.isna() & b.isna()))).sum())


def misplaced(found: pd.DataFrame) -> int:
    """Count keyed records in a partition that no Kafka client would choose."""
    keyed = found[found["_key"].notna()]
    homes = {
        key: _core.partition_for_key(key.encode(), plan.FLIGHTS_PARTITIONS)
        for key in keyed["_key"].unique()
    }
    return int((keyed["_key"].map(homes) != keyed["_partition"]).sum())


def disordered(found: pd.DataFrame, within: list[str]) -> int:
    """Count records whose id is not above that of the record before them."""
    placed = found.sort_values(["_partition", "_offset"])
    steps = placed.groupby(within, sort=False)["id"].diff()
    return int((steps.dropna() <= 0).sum())
