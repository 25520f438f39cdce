"""Named positions of sources outside of the log, in `__positions`."""
