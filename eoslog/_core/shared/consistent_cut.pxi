# A consistent cut over many partitions: their slots are copied while all their append locks are held.

cdef enum:
    PATIENCE_NS = 20000000      # longest time that some of the locks are held while waiting for the rest

cdef struct HeldSlot:
    Slot* slot
    int fd
    int64_t at


cdef int hold_all(HeldSlot* held, Slot* copies, int count, uint64_t deadline) noexcept nogil:
    """Copy the slots while all their locks are held. Returns the status.

    If that takes longer than PATIENCE_NS, releases all locks, pauses and tries again. So appends are
    blocked for no longer than that, and two such calls cannot wait for each other forever."""
    cdef int i, taken, rc
    cdef uint64_t patience
    while True:
        rc = taken = 0
        patience = eoslog_monotonic_ns() + PATIENCE_NS
        while taken < count:
            rc = lock_slot(held[taken].slot, held[taken].fd, held[taken].at, patience)
            if rc != 0:
                break
            taken += 1
        if rc == 0:
            for i in range(count):
                copies[i] = held[i].slot[0]
        for i in range(taken):
            unlock_slot(held[i].slot, held[i].fd, held[i].at)
        if rc != LOCKED_OUT or eoslog_monotonic_ns() >= deadline:
            return rc
        pause_ns(PATIENCE_NS)


def read_instant(ControlFile control, list locks, double timeout):
    """Read slots at one point in time, at which no process appends to any of the partitions.

    Args:
        locks: (slot, descriptor, byte) of each append lock. The descriptors must be the caller's own,
            because a lock does not exclude users of the same open file description.
        timeout: seconds to try.

    Returns:
        A list of `ControlFile.slot_view`, or None if the locks were not free in time.
    """
    cdef int i, rc, count = <int>len(locks)
    cdef uint64_t deadline = eoslog_monotonic_ns() + <uint64_t>(max(timeout, 0.0) * 1e9)
    cdef HeldSlot* held = <HeldSlot*>malloc(max(count, 1) * sizeof(HeldSlot))
    cdef Slot* copies = <Slot*>malloc(max(count, 1) * sizeof(Slot))
    try:
        if held == NULL or copies == NULL:
            raise MemoryError()
        for i in range(count):
            number, fd, at = locks[i]
            held[i] = HeldSlot(control.slot(number), fd, at)
        with nogil:
            eoslog_lock_allow_many(1)
            rc = hold_all(held, copies, count, deadline)
            eoslog_lock_allow_many(0)
        if rc == LOCKED_OUT:
            return None
        if rc != 0:
            raise OSError(errno, "cannot lock")
        return [view_of(&copies[i]) for i in range(count)]
    finally:
        free(held)
        free(copies)
