"""Directories that one side writes and the other side reads, recovers or dumps."""
