"""One trivial task on Quix Streams.

Prints the seconds from its first call to its last. Run by the interpreter of its own environment, which has nothing of eoslog:

    quix_program.py BOOTSTRAP GROUP INPUT OUTPUT RECORDS IN_A_TRANSACTION STATE_DIR
"""

from __future__ import annotations

import sys
import time
from typing import Any

from quixstreams import Application

bootstrap, group, source, target, records, in_a_transaction, state_dir = sys.argv[1:]
calls: list[float] = [0.0, 0.0]


def count(value: Any) -> Any:
    """Add one, as the other contenders do."""
    if not calls[0]:
        calls[0] = time.perf_counter()
    value["count"] += 1
    calls[1] = time.perf_counter()
    return value


app = Application(
    bootstrap,
    consumer_group=group,
    auto_offset_reset="earliest",
    commit_every=int(in_a_transaction),
    commit_interval=60,
    processing_guarantee="exactly-once",
    auto_create_topics=False,
    state_dir=state_dir,
    loglevel="WARNING",
)
app.dataframe(app.topic(source, value_deserializer="json")).apply(count).to_topic(
    app.topic(target, value_serializer="json")
)
app.run(count=int(records), timeout=60, collect=False)
print(calls[1] - calls[0])
