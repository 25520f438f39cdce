# Group commit: who waits for a flush sleeps on the word of the round that serves it, so that each is
# woken by the flush that made its bytes durable, or to begin the next one.
#
# A round is one flush under the flush lock. It covers what was published when it began; what comes
# later is served by the next one. Rounds take turns with two words. Who ends a round wakes all whom
# it served and, when the lock is free, one of the others: the next to flush.
#
# Words and rounds only save time: nothing is durable by them, and who died or stands still in the
# middle of a round is waited for no longer than protocol.md's row 25 says.


cdef uint64_t flush_counters(Slot* slot) noexcept nogil:
    return <uint64_t>atomic_load_u32(&slot.flushed[1].counter) << 32 | atomic_load_u32(&slot.flushed[0].counter)


cdef void begin_round(Slot* slot, int64_t target) noexcept nogil:
    """Under the flush lock: what is published below `target` is served by this round. Both are one
    word, of which nobody sees half."""
    cdef uint64_t turned = (atomic_load_u64(&slot.round) & 1) ^ 1
    atomic_store_u64(&slot.round, <uint64_t>target << 1 | turned)


cdef void give_up_round(Slot* slot) noexcept nogil:
    """Under the flush lock: nobody is to wait for this one, and whom it would have served looks for the next."""
    atomic_store_u64(&slot.round, <uint64_t>atomic_load_i64(&slot.durable_end) << 1 | atomic_load_u64(&slot.round) & 1)
    wake_word(&slot.flushed[0], EVERYBODY)
    wake_word(&slot.flushed[1], EVERYBODY)


cdef bint round_under_way(Slot* slot) noexcept nogil:
    """Whether somebody flushes, or died in it: a word, not the lock."""
    return <int64_t>(atomic_load_u64(&slot.round) >> 1) > atomic_load_i64(&slot.durable_end)


cdef void end_round(Slot* slot) noexcept nogil:
    """Its bytes are durable."""
    wake_word(&slot.flushed[atomic_load_u64(&slot.round) & 1], EVERYBODY)


cdef void pass_on(Slot* slot) noexcept nogil:
    """The flush lock is free, and whose turn it is may sleep on either word."""
    wake_word(&slot.flushed[0], 1)
    wake_word(&slot.flushed[1], 1)


cdef void await_round(Slot* slot, int64_t target, uint64_t seen, int64_t timeout_ns) noexcept nogil:
    """Sleep until the round has ended that serves `target`, it is this one's turn to flush, or the time
    is over. `seen`: both counters, read before the round was looked at or the flush lock was tried."""
    cdef uint64_t under_way = atomic_load_u64(&slot.round)
    cdef uint64_t turn = under_way & 1
    cdef WakeWord* word
    cdef uint32_t* place
    cdef uint32_t expected
    if <uint64_t>target > under_way >> 1:
        turn ^= 1
    word = &slot.flushed[turn]
    place = &word.counter
    expected = <uint32_t>(seen >> 32 if turn else seen)
    atomic_add_u32(&word.waiters, 1)
    if (atomic_load_i64(&slot.durable_end) < target and not atomic_load_u32(&slot.poison)
            and not atomic_load_u32(&slot.deleted)):
        eoslog_os.wait(&place, &expected, 1, timeout_ns)
    atomic_add_u32(&word.waiters, <uint32_t>-1)
