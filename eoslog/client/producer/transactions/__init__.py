"""A producer's transactions: states, partitions, two-phase calls."""
