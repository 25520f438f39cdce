"""Records as an Arrow batch, in the columns of `Log.scan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def batch_of_records(records: Sequence[Any]) -> Any:
    """A pyarrow.RecordBatch with one row a record.

    Raises:
        ImportError: pyarrow is missing (the extra `arrow`).
    """
    import pyarrow as pa

    header = pa.struct([("key", pa.utf8()), ("value", pa.binary_view())])
    topics = pa.array([r.topic for r in records], pa.utf8()).dictionary_encode()
    return pa.record_batch(
        [
            topics,
            pa.array([r.partition for r in records], pa.int32()),
            pa.array([r.offset for r in records], pa.int64()),
            pa.array([r.timestamp for r in records], pa.int64()).cast(pa.timestamp("ms", "UTC")),
            pa.array([r.timestamp_type for r in records], pa.int8()),
            pa.array([r.key for r in records], pa.binary_view()),
            pa.array([r.value for r in records], pa.binary_view()),
            pa.array(
                [[{"key": k, "value": v} for k, v in r.headers] for r in records], pa.list_(header)
            ),
        ],
        names=[
            "topic",
            "partition",
            "offset",
            "timestamp",
            "timestamp_type",
            "key",
            "value",
            "headers",
        ],
    )
