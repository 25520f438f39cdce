"""What tasks share in Spark's Python workers, which are used again from task to task."""

from __future__ import annotations

import gc

from pyspark import TaskContext

_settled = False


def settle() -> None:
    """Keeps what is loaded by now out of later garbage collections, once a worker process.

    Spark's daemon collects the whole heap of a worker after each task. With pyspark, numpy and
    pyarrow loaded that costs as much as reading some 300,000 rows, and finds nothing: modules live
    as long as their process. To be called when the imports are done; outside of a task, in a user's
    process, it does nothing.
    """
    global _settled
    if not _settled and TaskContext.get() is not None:
        _settled = True
        gc.freeze()
