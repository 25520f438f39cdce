"""Checking and repairing the partitions of a closed directory."""
