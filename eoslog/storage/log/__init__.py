"""One open partition: appends, reads, flushes, recovery, retention."""
