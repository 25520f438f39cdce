"""Tables of applications: state that commits with the position.

`table.py` has what tasks see, and `partition.py` the changes of a transaction over a store.
`memory.py` and `sqlite.py` are the stores, `restoring.py` reads them from the table's topic, and
`owned.py` has the partitions that a worker owns.
"""
