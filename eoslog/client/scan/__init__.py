"""Bulk reads of topics and of closed segment files."""
