# The wake-up event of a producer's sender thread: a futex word of this process, waited for without the GIL.

cdef extern from "<sched.h>" nogil:
    int sched_yield()


cdef enum:
    HABIT = 8                   # consecutive holds after which the waiting thread had nothing to do
    HABIT_NS = 100000000        # longest time since the last of them
    LOOK_NS = 5000000           # pause of a thread that polls after HABIT holds


@cython.final
cdef class Bell:
    """An event that wakes the sender thread when there are batches to send, unless another thread sends.

    A thread that calls `flush` after each record sends its own batches. Waking the sender thread each
    time would only make both wait for each other's lock. So after HABIT such flushes in a row, the
    sender thread is not woken, and polls every LOOK_NS instead. This lasts until it finds a record that
    no flush has sent (`needed`).
    """
    cdef uint32_t rung
    cdef uint32_t covered       # the rings before the last `hold`: that thread sends what they were for
    cdef uint32_t listeners
    cdef uint32_t holders
    cdef uint32_t looking       # the waiting thread polls: `ring` does not wake it
    cdef uint32_t streak
    cdef uint64_t let_go_ns
    cdef bint ended

    @property
    def strokes(self):
        """The number of rings. Read it before looking for work, and pass it to `wait`."""
        return atomic_load_u32(&self.rung)

    @property
    def held(self):
        """Whether a thread is sending everything now; it rings if something is left."""
        return atomic_load_u32(&self.holders) != 0

    def ring(self):
        atomic_add_u32(&self.rung, 1)
        if atomic_load_u32(&self.listeners) and not atomic_load_u32(&self.looking):
            eoslog_futex_wake(&self.rung, EVERYBODY)

    def hold(self):
        """Announce that this thread sends everything that is buffered now."""
        self.streak += 1
        atomic_add_u32(&self.holders, 1)
        atomic_store_u32(&self.covered, atomic_load_u32(&self.rung))

    def needed(self):
        """Have rings wake the sender thread again, because a record is left to it."""
        self.streak = 0

    def let_go(self):
        """End a `hold`: rings wake the sender thread again. The caller must check for unsent batches after
        this call, not before, and ring if there are any."""
        self.let_go_ns = eoslog_monotonic_ns()
        atomic_add_u32(&self.holders, <uint32_t>-1)

    def end(self):
        """End every `wait`, now and later."""
        self.ended = True
        atomic_add_u32(&self.rung, 1)
        eoslog_futex_wake(&self.rung, EVERYBODY)

    def wait(self, uint32_t strokes, double timeout):
        """Wait until the event is rung after `strokes`, not held, and not held since; or until `end` is called,
        or `timeout` seconds pass."""
        cdef uint64_t now = eoslog_monotonic_ns()
        cdef uint64_t deadline = now + <uint64_t>(max(timeout, 0.0) * 1e9)
        cdef uint32_t* place = &self.rung
        cdef uint32_t heard
        cdef int64_t most
        with nogil:
            atomic_add_u32(&self.listeners, 1)
            while now < deadline:
                most = <int64_t>(deadline - now)
                if self.streak >= HABIT and now < self.let_go_ns + HABIT_NS:
                    most = min(most, <int64_t>LOOK_NS)
                    atomic_store_u32(&self.looking, 1)
                else:
                    atomic_store_u32(&self.looking, 0)
                heard = atomic_load_u32(&self.rung)     # read before `ended`, because `end` rings too
                if self.ended:
                    break
                if heard != strokes and heard != atomic_load_u32(&self.covered) and not atomic_load_u32(&self.holders):
                    break
                eoslog_os.wait(&place, &heard, 1, most)
                if not atomic_load_u32(&self.looking) and not atomic_load_u32(&self.holders):
                    sched_yield()   # a thread that rings before it flushes gets to `hold`
                now = eoslog_monotonic_ns()
            atomic_store_u32(&self.looking, 0)
            atomic_add_u32(&self.listeners, <uint32_t>-1)
