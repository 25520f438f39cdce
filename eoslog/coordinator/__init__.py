"""Coordinators: who decides what happens to a transaction and to a group.

Each is the leader of its internal partitions: its state is the fold of their records, and a
decision is one conditional append to them. `host.Host` is what they need of the engine.
"""
