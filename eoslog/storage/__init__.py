"""Partition logs, segments and the files around them: policy-free storage."""
