"""Timeouts of waits for other processes."""

LOCK_TIMEOUT_S = 30.0
"""Timeout for a lock, and for a change of segments by another process."""
SLICE_S = 0.05
"""Longest single wait for a wake-up: the process that should send it may have died."""
