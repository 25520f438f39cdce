"""Set-up that tasks share in Spark's Python workers, which run many tasks."""

from __future__ import annotations

import gc

from pyspark import TaskContext

_settled = False


def settle() -> None:
    """Freeze the loaded objects for the garbage collector, once per worker process.

    Spark's daemon collects the heap of a worker after each task. With pyspark, numpy and pyarrow
    loaded that costs as much as reading some 300,000 rows and frees nothing, because modules stay
    until the process exits. Call this after the imports. Outside of a task it does nothing.
    """
    global _settled
    if not _settled and TaskContext.get() is not None:
        _settled = True
        gc.freeze()
