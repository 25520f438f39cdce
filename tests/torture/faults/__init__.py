"""Fault tools: file systems that can lose power, and a system call tracer."""
