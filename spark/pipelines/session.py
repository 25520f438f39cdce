"""The local Spark session of the pipelines: two slots, no network."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(name: str, scratch: str | None = None) -> SparkSession:
    """The session that `spark-submit` configured, or a local one.

    Args:
        name: Of the application.
        scratch: Where a local session keeps what it spills; None leaves it to Spark.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC")
    if scratch is not None:
        builder = (
            builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "2g")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
            .config("spark.local.dir", scratch)
        )
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found
