"""The producer: batches, retries, transactions."""
