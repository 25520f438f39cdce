# The fast path of Consumer.poll: a record that is fetched already is handed out with no Python code
# in between. Everything here runs under the GIL and calls nothing, so each step is one step.

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident() noexcept


@cython.final
cdef class OneThread:
    """A context manager around every call of a handle; the same thread may nest calls.

    Two threads at once, a closed handle, and a handle inherited through fork are IllegalState.

    Args:
        name: what messages call the handle.
    """

    cdef str name
    cdef unsigned long owner
    cdef int depth
    cdef uint64_t generation
    cdef public bint closed

    def __init__(self, str name):
        self.name = name
        self.generation = eoslog_fork_generation

    @property
    def forked(self):
        """Whether this is a copy in a child process."""
        return self.generation != eoslog_fork_generation

    @property
    def last_user(self):
        """The thread (`threading.get_ident`) that used it last, 0 for none."""
        return self.owner

    cdef bint free(self) noexcept:
        return self.depth == 0 and not self.closed and self.generation == eoslog_fork_generation

    def __enter__(self):
        cdef unsigned long me = PyThread_get_thread_ident()
        if self.closed:
            raise errors.IllegalState(f"the {self.name} is closed")
        if self.forked:
            raise errors.IllegalState(f"the {self.name} was inherited through fork: open a new one")
        if self.depth and self.owner != me:
            raise errors.IllegalState(f"the {self.name} is in use by thread {self.owner}, this is thread {me}")
        self.owner = me
        self.depth += 1

    def __exit__(self, *_):
        self.depth -= 1


cdef class FetchedRecords:
    """What was fetched of one partition, and how far it was handed out.

    Invariants:
        - `records[index:]` are fetched and not handed out; the first of them is at or after
          `position`.
        - With nothing fetched, `position` is where the next fetch begins, or None before the
          starting point is known.
    """

    cdef readonly list records
    cdef readonly Py_ssize_t index
    cdef public bint paused
    cdef int64_t at             # the position; -1: None
    cdef int64_t returned       # offset of the last record handed out; -1: None
    cdef int64_t beyond         # where to go on when all are handed out

    def __cinit__(self, *_):
        self.records = []
        self.at = self.returned = -1

    @property
    def position(self):
        """The next offset to hand out, or None."""
        return None if self.at < 0 else self.at

    @position.setter
    def position(self, offset):
        self.at = -1 if offset is None else offset

    @property
    def last_returned(self):
        """The offset of the last record handed out, or None."""
        return None if self.returned < 0 else self.returned

    @last_returned.setter
    def last_returned(self, offset):
        self.returned = -1 if offset is None else offset

    cpdef drop_fetched(self):
        """Forget what was fetched and not handed out."""
        self.records = []
        self.index = 0

    def fill(self, list records, int64_t next_offset):
        """Keep what a fetch returned; without records the position steps over what it covered."""
        self.records = records
        self.index = 0
        self.beyond = next_offset
        if not records:
            self.at = next_offset

    def take(self, Py_ssize_t limit):
        """Hand out up to `limit` fetched records and advance the position past them."""
        cdef Py_ssize_t stop = min(self.index + limit, PyList_GET_SIZE(self.records))
        cdef list taken = self.records[self.index:stop]
        if taken:
            self.pass_over(stop, <Record?>taken[PyList_GET_SIZE(taken) - 1])
        return taken

    cdef int pass_over(self, Py_ssize_t stop, Record last) except -1:
        self.returned = last.offset
        if stop == PyList_GET_SIZE(self.records):
            # Past the last record may lie markers and aborted batches: the fetch covered them.
            self.at = self.beyond
            self.drop_fetched()
        else:
            self.index = stop
            self.at = last.offset + 1
        return 0


cdef class RecordPolling:
    """`poll` of a consumer; the subclass has `_poll_one(timeout)` for what is not fetched yet."""

    cdef public OneThread _use
    cdef public FetchedRecords _current     # of the partition whose turn it is, or None
    cdef public double _next_duty           # until then (monotonic, s) nothing else is looked at
    cdef public bint _woken

    def poll(self, timeout=None):
        """The next record, or None after `timeout` seconds (None: wait) or a wakeup.

        Raises:
            CorruptRecord, SerializationError: at this position, until it is moved by `seek`.
            OffsetOutOfRange, NoOffset: the position is not in the log, and no reset is allowed.
            FencedInstanceId: another consumer took over group.instance.id, at each poll until
                `subscribe` or `unsubscribe`.
        """
        cdef FetchedRecords state = self._current
        cdef Record record
        if (state is not None and state.index < PyList_GET_SIZE(state.records) and not state.paused
                and not self._woken and self._use.free() and steady_clock_ns() * 1e-9 < self._next_duty):
            record = <Record?>state.records[state.index]
            state.pass_over(state.index + 1, record)
            return record
        return self._poll_one(timeout)

    def _poll_one(self, timeout):
        raise NotImplementedError
