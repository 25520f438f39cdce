"""Spark data source for eoslog.

Spark 4 finds `DefaultSource` in this package without registration.
"""

from pyspark_eoslog.source import DefaultSource
from pyspark_eoslog.write.foreach_batch import write_once

__all__ = ["DefaultSource", "write_once"]
