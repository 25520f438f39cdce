"""Batch writes: staging on the executors, publishing on the driver."""
