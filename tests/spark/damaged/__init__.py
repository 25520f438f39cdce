"""Damaged files under Spark's readers: `python -m tests.spark.damaged`."""
