"""Batch reads: planning on the driver, tasks on the executors."""
