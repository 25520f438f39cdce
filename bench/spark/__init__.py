"""`make quality-bench-spark`: the Spark source and sink compared with peers.

The peers are Parquet, Spark's Kafka connector and the ceiling of Spark's Python path, in one
run.
"""
