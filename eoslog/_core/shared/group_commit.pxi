# Group commit: one flush makes the bytes of many threads and processes durable.
#
# A round is one flush, made by the holder of the flush lock. It covers everything that was published
# when it began. A thread whose bytes were published later waits for the next round.
#
# The slot has two wake words, and rounds use them alternately. A waiting thread sleeps on the word of
# the round that covers its offset. When a round ends, its flusher wakes all threads on that word.
# After it has released the flush lock, it wakes one more thread, which does the next flush. The usual
# flush (`lead_flush`) does that before it wakes the others.
#
# Rounds and wake words only save time. No byte is durable because of them: only `durable_end` says
# so. If a flusher dies or is suspended, waiters stop waiting for its round after the time that
# protocol.md's row 25 states.


cdef uint64_t flush_counters(Slot* slot) noexcept nogil:
    """The counters of both wake words; a later `await_round` returns if one has changed since."""
    return <uint64_t>atomic_load_u32(&slot.flushed[1].counter) << 32 | atomic_load_u32(&slot.flushed[0].counter)


cdef void begin_round(Slot* slot, int64_t target) noexcept nogil:
    """Begin a round that covers everything published below `target`. The caller holds the flush lock.

    Target and word number share one 64-bit value, so that a reader never sees one without the other."""
    cdef uint64_t turned = (atomic_load_u64(&slot.round) & 1) ^ 1
    atomic_store_u64(&slot.round, <uint64_t>target << 1 | turned)


cdef void give_up_round(Slot* slot) noexcept nogil:
    """Cancel this round: its waiters wait for the next round instead. The caller holds the flush lock."""
    atomic_store_u64(&slot.round, <uint64_t>atomic_load_i64(&slot.durable_end) << 1 | atomic_load_u64(&slot.round) & 1)
    wake_word(&slot.flushed[0], EVERYBODY)
    wake_word(&slot.flushed[1], EVERYBODY)


cdef bint round_under_way(Slot* slot) noexcept nogil:
    """Whether a round has begun and not ended. Its flusher may have died: this does not ask the lock."""
    return <int64_t>(atomic_load_u64(&slot.round) >> 1) > atomic_load_i64(&slot.durable_end)


cdef void end_round(Slot* slot) noexcept nogil:
    """Wake the waiters of the current round, whose bytes are durable now."""
    wake_word(&slot.flushed[atomic_load_u64(&slot.round) & 1], EVERYBODY)


cdef void pass_on(Slot* slot) noexcept nogil:
    """Wake one thread per word, after the flush lock was released: the next flusher may sleep on either."""
    wake_word(&slot.flushed[0], 1)
    wake_word(&slot.flushed[1], 1)


cdef void await_round(Slot* slot, int64_t target, uint64_t seen, int64_t timeout_ns) noexcept nogil:
    """Sleep until the round that covers `target` ends, this thread is woken to flush, or the time is over.

    `seen`: result of `flush_counters`, read before the caller checked the round or tried the flush
    lock. A wake-up since then has changed a counter, so that this call does not miss it."""
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
