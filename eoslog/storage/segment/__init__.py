"""Segment files by name and content, without an open partition."""
