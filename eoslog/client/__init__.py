"""Clients: producers, consumers, scans, and Arrow data."""
