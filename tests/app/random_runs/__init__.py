"""Applications with random options and faults."""
