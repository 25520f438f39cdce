"""The aggregate without Spark: the same join in Arrow, in one transaction."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from eoslog.demo import plan, tables

if TYPE_CHECKING:
    from eoslog.log import Log


def run(log: Log) -> int:
    """Join, aggregate and write `carrier_delays`; returns the number of groups."""
    flights = tables.read(log, plan.FLIGHTS, columns=["id", "carrier", "hour"])
    delays = tables.read(log, plan.DELAYS, columns=["id", "dep_delay", "arr_delay", "late"])
    joined = flights.merge(delays, on="id")
    result = tables.by_carrier_and_hour(joined)
    writer = plan.writer_name("aggregate", 1, os.getpid()).encode()
    with log.producer(transactional_id=plan.AGGREGATE_ID) as producer:
        producer.init_transactions()
        with producer.transaction() as transaction:
            for row in result.to_dict("records"):
                transaction.produce(
                    plan.CARRIER_DELAYS,
                    json.dumps(row),
                    row["carrier"],
                    headers=[(plan.WRITER_HEADER, writer)],
                )
    return len(result)
