# The fast path of Consumer.poll: returning a record that is already fetched, without any Python code.
# It runs under the GIL and calls no Python code, so that each method is atomic.

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident() noexcept


@cython.final
cdef class OneThread:
    """A context manager around every call of a handle that one thread at a time may use.

    Calls of the same thread may nest. Raises IllegalState for a second thread, a closed handle, and a
    handle inherited through fork.

    Args:
        name: name of the handle in messages.

    Attributes:
        woken: the current call, or the next one, must return immediately.
        closing: `close` was called during a call, which must return immediately.
        at_exit: weak reference to a function that the thread of that call runs at its end, or None.
    """

    cdef str name
    cdef unsigned long owner
    cdef int depth
    cdef uint64_t generation
    cdef public bint closed
    cdef public bint woken
    cdef public bint closing
    cdef public object at_exit

    def __init__(self, str name):
        self.name = name
        self.generation = eoslog_fork_generation

    @property
    def forked(self):
        """Whether this is the copy of a handle in a forked child."""
        return self.generation != eoslog_fork_generation

    @property
    def last_user(self):
        """The last thread (`threading.get_ident`) that used the handle, 0 for none."""
        return self.owner

    @property
    def in_use(self):
        """Whether a call is running, in this thread or another one."""
        return self.depth > 0

    @property
    def in_use_here(self):
        """Whether a call of this thread is running."""
        return self.depth > 0 and self.owner == PyThread_get_thread_ident()

    @property
    def interrupted(self):
        """Whether the running call must return: it was woken, or the handle is being closed."""
        return self.woken or self.closing or self.closed

    def take_to_close(self):
        """Begin the call that closes the handle, unless a call is running. Returns whether it began."""
        if self.depth:
            return False
        self.owner = PyThread_get_thread_ident()
        self.depth = 1
        return True

    cdef bint free(self) noexcept:
        return (self.depth == 0 and not self.woken and not self.closing and not self.closed
                and self.generation == eoslog_fork_generation)

    def __enter__(self):
        cdef unsigned long me = PyThread_get_thread_ident()
        if self.closed:
            raise errors.IllegalState(f"the {self.name} is closed")
        if self.forked:
            raise errors.IllegalState(f"the {self.name} was inherited through fork: open a new one")
        if self.closing and not (self.depth and self.owner == me):
            raise errors.IllegalState(f"the {self.name} is being closed by another thread")
        if self.depth and self.owner != me:
            raise errors.IllegalState(f"the {self.name} is in use by thread {self.owner}, this is thread {me}")
        self.owner = me
        self.depth += 1

    def __exit__(self, *_):
        self.depth -= 1
        if self.depth == 0 and self.at_exit is not None:
            run, self.at_exit = self.at_exit(), None
            if run is not None:
                run()


cdef class FetchedRecords:
    """The fetched records of one partition, and the position of the consumer in it.

    Invariants:
        - `records[index:]` are fetched and not returned yet; the first of them is at or after
          `position`.
        - `undecoded` is the rest of the fetch that follows `records`, or None.
        - Without either, `position` is where the next fetch begins, or None before the starting
          point is known.
    """

    cdef readonly list records
    cdef readonly Py_ssize_t index
    cdef public object undecoded
    cdef public bint paused
    cdef int64_t at             # the position; -1: None
    cdef int64_t returned       # offset of the last returned record; -1: None
    cdef int64_t beyond         # position after all fetched records are returned

    def __cinit__(self, *_):
        self.records = []
        self.at = self.returned = -1

    @property
    def position(self):
        """The next offset to return, or None."""
        return None if self.at < 0 else self.at

    @position.setter
    def position(self, offset):
        self.at = -1 if offset is None else offset

    @property
    def last_returned(self):
        """The offset of the last returned record, or None."""
        return None if self.returned < 0 else self.returned

    @last_returned.setter
    def last_returned(self, offset):
        self.returned = -1 if offset is None else offset

    @property
    def fetched(self):
        """Whether something was fetched that was not returned yet."""
        return self.undecoded is not None or PyList_GET_SIZE(self.records) > 0

    def drop_fetched(self):
        """Drop the fetched records that were not returned."""
        self.undecoded = None
        self.drop_records()

    cdef int drop_records(self) except -1:
        self.records = []
        self.index = 0
        return 0

    def fill(self, list records, int64_t next_offset):
        """Store decoded records; without records the position moves to `next_offset`."""
        self.records = records
        self.index = 0
        self.beyond = next_offset
        if not records:
            self.at = next_offset

    def take(self, Py_ssize_t limit):
        """Return up to `limit` fetched records, and move the position past them."""
        cdef Py_ssize_t stop = min(self.index + limit, PyList_GET_SIZE(self.records))
        cdef list taken = self.records
        if self.index > 0 or stop == 0 or stop < PyList_GET_SIZE(taken):
            taken = taken[self.index:stop]
        if taken:
            self.pass_over(stop, <Record?>taken[PyList_GET_SIZE(taken) - 1])
        return taken

    cdef int pass_over(self, Py_ssize_t stop, Record last) except -1:
        self.returned = last.offset
        if stop == PyList_GET_SIZE(self.records):
            # Markers and aborted batches after the last record were decoded with it.
            self.at = self.beyond
            self.drop_records()
        else:
            self.index = stop
            self.at = last.offset + 1
        return 0


cdef class RecordPolling:
    """`poll` of a consumer. A subclass has `_poll_one(timeout)`, for records that are not fetched yet."""

    cdef public OneThread _use
    cdef public FetchedRecords _current     # of the partition to return records from, or None
    cdef public double _next_duty           # time (monotonic, s) before which `poll` may skip all other work

    def poll(self, timeout=None):
        """Return the next record, or None after a timeout or a wakeup.

        Args:
            timeout: seconds to wait; None waits without a limit.

        Raises:
            CorruptRecord, SerializationError: if the next record is damaged or cannot be deserialized;
                repeated until `seek` moves the position.
            OffsetOutOfRange, NoOffset: if the position is not in the log, and auto.offset.reset does not
                allow another one.
            FencedInstanceId: if another consumer has taken over group.instance.id; repeated until
                `subscribe` or `unsubscribe`.
        """
        cdef FetchedRecords state = self._current
        cdef Record record
        if (state is not None and state.index < PyList_GET_SIZE(state.records) and not state.paused
                and self._use.free() and steady_clock_ns() * 1e-9 < self._next_duty):
            record = <Record?>state.records[state.index]
            state.pass_over(state.index + 1, record)
            return record
        return self._poll_one(timeout)

    @property
    def _woken(self):
        return self._use.woken

    @_woken.setter
    def _woken(self, bint woken):
        self._use.woken = woken

    def _poll_one(self, timeout):
        raise NotImplementedError
