"""Kills inside running jobs: `python -m tests.spark.torture`."""
