# The two clocks: what records are stamped with, and what deadlines run on.
from libc.stdint cimport int64_t
from eoslog._core.os_table cimport eoslog_os

cdef inline int64_t wall_clock_ms() noexcept nogil:
    return eoslog_os.clock_ns(1) // 1000000

cdef inline int64_t steady_clock_ns() noexcept nogil:
    """The clock of `time.monotonic_ns()`."""
    return eoslog_os.clock_ns(0)
