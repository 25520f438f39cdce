# What a producer's sender sleeps on: a word of this process, waited for without the interpreter.

cdef extern from "<sched.h>" nogil:
    int sched_yield()


cdef enum:
    HABIT = 8                   # holds one after the other, with nothing left to do for who listens
    HABIT_NS = 100000000        # and the last one not longer ago
    LOOK_NS = 5000000           # how late it is heard at most where holding is the habit


@cython.final
cdef class Bell:
    """Rung when there is something to send, and not listened to while somebody else sends.

    Who flushes record by record would wake the sender's thread with each of them, only for both to
    wait for each other's lock. Where that is the habit the thread looks by itself now and then.
    """
    cdef uint32_t rung
    cdef uint32_t listeners
    cdef uint32_t holders
    cdef uint32_t looking       # now and then: no stroke wakes it
    cdef uint32_t streak
    cdef uint64_t let_go_ns
    cdef bint ended

    @property
    def strokes(self):
        """How often it was rung: read before one looks for work, and given to `wait` then."""
        return atomic_load_u32(&self.rung)

    @property
    def held(self):
        """Whether somebody sends everything just now, and will ring for what is left."""
        return atomic_load_u32(&self.holders) != 0

    def ring(self):
        atomic_add_u32(&self.rung, 1)
        if atomic_load_u32(&self.listeners) and not atomic_load_u32(&self.looking):
            eoslog_futex_wake(&self.rung, EVERYBODY)

    def hold(self):
        self.streak += 1
        atomic_add_u32(&self.holders, 1)

    def let_go(self):
        """The end of a `hold`: from here on it is heard. Whoever held it looks what is left after this,
        not before, and rings for it."""
        self.let_go_ns = eoslog_monotonic_ns()
        atomic_add_u32(&self.holders, <uint32_t>-1)

    def end(self):
        """Nobody waits any more."""
        self.ended = True
        atomic_add_u32(&self.rung, 1)
        eoslog_futex_wake(&self.rung, EVERYBODY)

    def wait(self, uint32_t strokes, double timeout):
        """Until it is rung after `strokes` and not held, it has ended, or `timeout` seconds are over."""
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
                heard = atomic_load_u32(&self.rung)     # before `ended`, which is rung for
                if self.ended or heard != strokes and not atomic_load_u32(&self.holders):
                    self.streak = 0
                    break
                eoslog_os.wait(&place, &heard, 1, most)
                if not atomic_load_u32(&self.looking) and not atomic_load_u32(&self.holders):
                    sched_yield()   # who rings in order to flush comes to hold it
                now = eoslog_monotonic_ns()
            atomic_store_u32(&self.looking, 0)
            atomic_add_u32(&self.listeners, <uint32_t>-1)
