"""Streams: where they begin, and micro-batches that run again."""
