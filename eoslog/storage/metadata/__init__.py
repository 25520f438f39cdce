"""The metadata log: topics, partitions and producer id blocks."""
