"""A standalone cluster on two addresses, and the job for it."""
