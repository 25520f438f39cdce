# Locks that are tried and not waited for, as blocks of `with`. Between `if lock.acquire(False):` and the
# `try:` behind it a signal's handler may raise, and the lock would stay taken; the interpreter looks for
# signals neither between these and their block nor before they give back what they took.


@cython.final
cdef class TryMutex:
    """`with TryMutex(lock) as mine`: a threading.Lock, unless another thread has it."""
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
    """`with TryFileLock(fd, at) as free`: an OFD lock on one byte, unless another description has it."""
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
