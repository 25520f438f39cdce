# What a producer's sender sleeps on: a word of this process, waited for without the interpreter.

cdef extern from "<sched.h>" nogil:
    int sched_yield()


@cython.final
cdef class Bell:
    """Rung when there is something to send, and not listened to while somebody else sends.

    Who flushes record by record would wake the sender's thread with each of them, only for both to
    wait for each other's lock.
    """
    cdef uint32_t rung
    cdef uint32_t listeners
    cdef uint32_t holders
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
        if atomic_load_u32(&self.listeners):
            eoslog_futex_wake(&self.rung)

    def hold(self):
        atomic_add_u32(&self.holders, 1)

    def let_go(self):
        """The end of a `hold`: from here on it is heard. Whoever held it looks what is left after this,
        not before, and rings for it."""
        atomic_add_u32(&self.holders, <uint32_t>-1)

    def end(self):
        """Nobody waits any more."""
        self.ended = True
        self.ring()

    def wait(self, uint32_t strokes, double timeout):
        """Until it is rung after `strokes` and not held, it has ended, or `timeout` seconds are over."""
        cdef uint64_t now = eoslog_monotonic_ns()
        cdef uint64_t deadline = now + <uint64_t>(max(timeout, 0.0) * 1e9)
        cdef uint32_t* place = &self.rung
        cdef uint32_t heard
        with nogil:
            atomic_add_u32(&self.listeners, 1)
            while now < deadline:
                heard = atomic_load_u32(&self.rung)     # before `ended`, which is rung for
                if self.ended or heard != strokes and not atomic_load_u32(&self.holders):
                    break
                eoslog_os.wait(&place, &heard, 1, <int64_t>(deadline - now))
                sched_yield()       # who rings in order to flush comes to hold it
                now = eoslog_monotonic_ns()
            atomic_add_u32(&self.listeners, <uint32_t>-1)
