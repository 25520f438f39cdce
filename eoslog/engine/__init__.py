"""An open directory: partitions, topics and background work."""
