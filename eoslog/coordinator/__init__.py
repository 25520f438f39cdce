"""The transaction coordinator and the group coordinator.

The state of a coordinator is the fold of the records in its internal partitions. A decision is one
conditional append to them. `host.Host` describes the part of the engine that coordinators use.
"""
