"""Topics as pandas frames, and the expected frames, computed from the data set."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from eoslog.demo import plan

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from eoslog.log import Log

GROUP = ["carrier", "hour"]


def read(log: Log, topic: str, columns: list[str] | None = None) -> pd.DataFrame:
    """Read the committed records of a topic with JSON values.

    Args:
        log: An open directory.
        topic: Its name.
        columns: Only these fields of the values.

    Returns:
        A frame of the values' fields with `_key`, `_partition` and `_offset`, in log order.
    """
    import pandas as pd
    import pyarrow as pa
    from pyarrow import json as arrow_json

    # A time is compared as the text that it is in the data set.
    texts = pa.schema([("time_hour", pa.string())] if topic == plan.FLIGHTS else [])
    reading = arrow_json.ReadOptions(block_size=1 << 26)
    parsing = arrow_json.ParseOptions(explicit_schema=texts)
    frames = []
    for batch in log.scan(topic, columns=["partition", "offset", "key", "value"], binary="copy"):
        if not batch.num_rows:
            continue
        lines = io.BytesIO(b"\n".join(batch.column("value").to_pylist()))
        values = arrow_json.read_json(lines, reading, parsing)
        frame = values.select(columns) if columns else values
        for name in ("key", "partition", "offset"):
            column = batch.column(name)
            if name == "key":
                column = column.cast(pa.string())
            frame = frame.append_column(f"_{name}", column)
        frames.append(_pandas(frame))
    if not frames:
        return pd.DataFrame(columns=[*(columns or []), "_key", "_partition", "_offset"])
    return pd.concat(frames, ignore_index=True)


def expected_flights(table: pa.Table) -> pd.DataFrame:
    """Return the flights as they ought to be found in the log."""
    return _pandas(table)


def expected_delays(flights: pd.DataFrame) -> pd.DataFrame:
    """Return the delay records that follow from the flights."""
    arrived = flights[flights["arr_delay"].notna()]
    frame = arrived[["id", "dep_delay", "arr_delay"]].copy()
    frame["made_up"] = arrived["dep_delay"] - arrived["arr_delay"]
    frame["late"] = (arrived["arr_delay"] >= plan.LATE_MINUTES).astype("boolean")
    return frame.reset_index(drop=True)


def by_carrier_and_hour(joined: pd.DataFrame) -> pd.DataFrame:
    """Aggregate flights joined with their delays, as the Spark job does."""
    frame = joined.assign(late=joined["late"].astype("Int64"))
    result = frame.groupby(GROUP, as_index=False).agg(
        flights=("id", "count"),
        dep_delay=("dep_delay", "sum"),
        arr_delay=("arr_delay", "sum"),
        late=("late", "sum"),
    )
    return result.sort_values(GROUP, ignore_index=True)


def _pandas(table: pa.Table) -> pd.DataFrame:
    """Convert with nullable types, so that no integer becomes a float."""
    import pandas as pd
    import pyarrow as pa

    types = {
        pa.int64(): pd.Int64Dtype(),
        pa.int32(): pd.Int64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
    return table.to_pandas(types_mapper=types.get)
