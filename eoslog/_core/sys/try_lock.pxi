# Context managers that try a lock and do not wait for it.
#
# With `if lock.acquire(False): try: ...`, a signal handler may raise before the `try`, and the lock would
# stay taken. These classes are compiled: the interpreter does not handle signals between taking the lock
# and entering the block, nor between leaving the block and releasing the lock.


@cython.final
cdef class TryMutex:
    """`with TryMutex(lock) as mine`: take a threading.Lock, unless another thread holds it."""
    cdef object lock
    cdef bint mine

    def __cinit__(self, lock):
        self.lock = lock

    def __enter__(self):
        self.mine = self.lock.acquire(False)
        return self.mine

    def __exit__(self, *raised):
        if self.mine:
            self.mine = False
            self.lock.release()


@cython.final
cdef class TryFileLock:
    """`with TryFileLock(fd, at) as free`: take an OFD lock on one byte, unless another description holds it."""
    cdef int fd
    cdef int64_t at
    cdef bint mine

    def __cinit__(self, int fd, int64_t at):
        self.fd = fd
        self.at = at

    def __enter__(self):
        self.mine = try_lock(self.fd, self.at)
        return self.mine

    def __exit__(self, *raised):
        if self.mine:
            self.mine = False
            unlock(self.fd, self.at)
