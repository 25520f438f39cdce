"""A producer's transactions: their states, their partitions, and their two-phase calls."""
