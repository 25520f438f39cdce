"""Named positions of external sources, in `__positions`."""
