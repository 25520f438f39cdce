# The two clocks: one for record timestamps, one for deadlines.
from libc.stdint cimport int64_t
from eoslog._core.sys.os_table cimport eoslog_os

cdef inline int64_t wall_clock_ms() noexcept nogil:
    return eoslog_os.clock_ns(1) // 1000000

cdef inline int64_t steady_clock_ns() noexcept nogil:
    """Return the time of `time.monotonic_ns()`."""
    return eoslog_os.clock_ns(0)
