"""Spark data source for eoslog; Spark 4 finds `DefaultSource` here by itself, without
registration.
"""

from pyspark_eoslog.foreach_batch import write_once
from pyspark_eoslog.source import DefaultSource

__all__ = ["DefaultSource", "write_once"]
