"""`make bench-spark`: the Spark source and sink beside Parquet, Spark's Kafka connector and the
ceiling of Spark's Python path, in one run.
"""
