# What the fold knows of a segment: position, timestamps, and the entries of its index files.
#
# Index entries are a function of the segment's bytes. Append, recovery and repair compute them here.
#
#   .index      relative offset i32 | position i32
#   .timeindex  timestamp i64 | relative offset i32
#   .txnindex   version i16 | producer id i64 | first, last, last stable offset i64 each

cdef struct SegmentFold:        # the segment that the fold is in
    int64_t base
    int64_t position            # byte after the last folded batch
    int64_t first_timestamp     # max timestamp of the first batch, -1: no batch yet
    int64_t max_timestamp
    int64_t max_timestamp_offset
    int64_t last_index_position
    int64_t last_time           # timestamp of the last time-index entry
    int64_t index_count, time_count, aborted_count

cdef struct Effects:            # index entries of one batch
    bint indexed, timed, aborted
    int64_t position
    int32_t relative_offset
    int64_t timestamp
    int32_t timestamp_relative_offset
    AbortedEntry entry

cdef void enter_segment(SegmentFold* s, int64_t base) noexcept nogil:
    memset(s, 0, sizeof(SegmentFold))
    s.base = base
    s.first_timestamp = -1
    s.max_timestamp = -1
    s.last_time = -1


cdef void store_index_entry(uint8_t* p, const Effects* e) noexcept nogil:
    store_i32(p, e.relative_offset)
    store_i32(p + 4, <int32_t>e.position)

cdef void store_time_entry(uint8_t* p, const Effects* e) noexcept nogil:
    store_i64(p, e.timestamp)
    store_i32(p + 8, e.timestamp_relative_offset)

cdef void store_aborted_entry(uint8_t* p, const AbortedEntry* e) noexcept nogil:
    store_i16(p, 0)
    store_i64(p + 2, e.producer_id)
    store_i64(p + 10, e.first_offset)
    store_i64(p + 18, e.last_offset)
    store_i64(p + 26, e.last_stable_offset)


cdef void time_entry(SegmentFold* s, Effects* e) noexcept nogil:
    """Add the time index entry that is due now: the greatest timestamp, if it rose since the last entry."""
    if s.max_timestamp > s.last_time:
        e.timed = True
        e.timestamp = s.max_timestamp
        e.timestamp_relative_offset = <int32_t>(s.max_timestamp_offset - s.base)
        s.last_time = s.max_timestamp
        s.time_count += 1
