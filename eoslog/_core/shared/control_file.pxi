# The shared control file: session number, wake words, process table, one 256 B slot per partition.
#
#   0        64 B   magic "EOSLOGC1", format i32, clean i32, session u64 (native byte order: the
#                   file never leaves its machine; another session number makes it void)
#   4096   4096 B   64 wake lanes, one 64 B line each: counter u32 and waiters u32
#   8192   64 KiB   1024 processes of 64 B: nonce u64, heartbeat u64 (CLOCK_MONOTONIC ns), pid i32,
#                   at 24 start time u64 (clock ticks, field 22 of /proc/PID/stat), pid namespace u64
#                   (inode), registered i64 (ms since 1970), idle member u64 (hash), its last poll i64 (ms)
#   128 KiB ...     slots, in order of creation, never reused
#
# After a crash the file may contain anything; recovery uses none of it (protocol.md row 6).
from libc.errno cimport EACCES, EAGAIN, EINTR, EINVAL, ENOSPC, ENOSYS, EOPNOTSUPP, ESPIPE, errno
from libc.stdint cimport uint16_t, uint64_t
from eoslog._core.sys.os_table cimport *

cdef extern from "<sys/mman.h>" nogil:
    enum: MADV_DONTFORK
    void* MAP_FAILED
    int munmap(void*, size_t)
    int madvise(void*, size_t, int)

cdef extern from "<fcntl.h>" nogil:
    enum: F_RDLCK, F_WRLCK, F_UNLCK

cdef enum:
    CONTROL_HEADER_SIZE = 131072
    CONTROL_CHUNK_SIZE = 1048576
    LANES_AT = 4096
    LANE_COUNT = 64
    LANE_SIZE = 64
    PROCESSES_AT = 8192
    PROCESS_COUNT = 1024
    PROCESS_SIZE = 64
    SLOT_SIZE = 256
    MAX_CHUNKS = 256
    SLOTS = 1048064             # number of slots in MAX_CHUNKS, after the header
    EVERYBODY = 0x7FFFFFFF

cdef struct WakeWord:
    uint32_t counter
    uint32_t waiters

cdef struct Slot:
    # line 0: identity and the lock holder
    uint64_t session            # unless equal to the header's, the slot is void: recover first
    uint8_t topic_id[16]
    uint32_t deleted
    uint32_t busy               # 1 from the lock holder's first write until it publishes
    int32_t holder_pid
    uint32_t reserved_0
    uint64_t holder_since_ns
    uint64_t reserved_1[2]
    # line 1: published by the append-lock holder
    int64_t log_end
    int64_t stable_end          # first offset of the earliest open transaction, else log_end
    int64_t log_start
    uint32_t segments_version
    uint32_t cleaned_version
    int64_t cleaned_to
    int64_t expire_below
    int64_t active_base         # of the active segment, and log_end's byte position in it
    int64_t end_position
    # line 2: published by the flush-lock holder
    int64_t durable_end
    uint32_t poison
    uint32_t reserved_2
    uint64_t flush_ns           # moving average of one flush
    uint64_t round              # of the current flush: the offset that it covers, and the number of its wake word
    WakeWord flushed[2]         # wake words, used alternately; see group_commit.pxi
    int64_t carried_end         # below it, durable decisions carry what the files may lack (protocol.md, Carry)
    uint64_t reserved_3
    # line 3: published by the append-lock holder
    int64_t expire_before_ms    # like expire_below, for producers that have only markers left
    int64_t index_interval      # bytes; all processes of a session must agree on where index entries are
    uint64_t reserved_4[6]

cdef struct ProcessEntry:
    uint64_t nonce
    uint64_t heartbeat_ns
    int32_t pid
    uint32_t reserved
    uint64_t start_ticks        # with the pid, names a process: pids are reused
    uint64_t pid_namespace      # inode of the namespace that the pid belongs to; 0: not known
    int64_t registered_ms
    uint64_t idle_member        # hash of the group member of this process that polled least recently
    int64_t idle_since_ms       # its last poll

cdef dict view_of(const Slot* s):
    return {
        "session": s.session, "topic_id": (<const char*>s.topic_id)[:16], "deleted": s.deleted,
        "busy": s.busy, "holder_pid": s.holder_pid, "holder_since_ns": s.holder_since_ns,
        "log_end": s.log_end, "stable_end": s.stable_end, "log_start": s.log_start,
        "segments_version": s.segments_version, "active_base": s.active_base,
        "end_position": s.end_position, "durable_end": s.durable_end, "carried_end": s.carried_end,
        "poison": s.poison,
        "cleaned_version": s.cleaned_version, "cleaned_to": s.cleaned_to,
        "expire_below": s.expire_below, "expire_before_ms": s.expire_before_ms,
        "flush_waiters": (s.flushed[0].waiters, s.flushed[1].waiters),
        "flush_under_way": round_under_way(<Slot*>s),
    }


MAX_SLOTS = SLOTS


@cython.final
cdef class ControlFile:
    """The mapped control file of an open directory.

    Invariants: chunks are mapped once and stay; the mapping is not inherited by a forked child
    (MADV_DONTFORK), so every entry from Python checks the fork generation first.
    """
    cdef uint8_t* chunks[MAX_CHUNKS]
    cdef int chunk_count
    cdef int fd
    cdef bint writable
    cdef bint closed
    cdef uint32_t generation

    def __cinit__(self, int fd, *, bint writable=True):
        self.fd = fd
        self.writable = writable
        self.generation = eoslog_fork_generation
        self.chunk_count = 0

    cdef int check(self) except -1:
        if self.closed:
            raise errors.IllegalState("the log is closed")
        if self.generation != eoslog_fork_generation:
            raise errors.IllegalState("this handle was inherited through fork: open the directory again")
        return 0

    def map_chunks(self, int count):
        """Map up to `count` chunks of 1 MiB of the file, which must be that long.

        Maps at most MAX_CHUNKS: a file may be longer than its usable part.
        """
        cdef void* p
        self.check()
        count = min(count, MAX_CHUNKS)
        while self.chunk_count < count:
            p = eoslog_os.map(self.fd, <int64_t>self.chunk_count * CONTROL_CHUNK_SIZE, CONTROL_CHUNK_SIZE,
                              self.writable)
            if p == MAP_FAILED:
                raise OSError(errno, "cannot map the control file")
            madvise(p, CONTROL_CHUNK_SIZE, MADV_DONTFORK)
            self.chunks[self.chunk_count] = <uint8_t*>p
            self.chunk_count += 1

    def close(self):
        """Reject every later call. The mapping stays until this object is freed, because threads may still
        sleep on a wake word in it or be within an append."""
        self.closed = True

    def __dealloc__(self):
        cdef int i
        if self.generation == eoslog_fork_generation:
            for i in range(self.chunk_count):
                munmap(self.chunks[i], CONTROL_CHUNK_SIZE)

    @staticmethod
    def chunks_for(int slot):
        """Return the number of chunks that a file with this slot needs, or raise InvalidPartitions."""
        if slot >= SLOTS:
            raise errors.InvalidPartitions(f"slot {slot}: a log can have {SLOTS} partitions over its lifetime, deleted ones included")
        return 1 + (CONTROL_HEADER_SIZE + <int64_t>slot * SLOT_SIZE) // CONTROL_CHUNK_SIZE

    cdef Slot* slot(self, int number) except NULL:
        cdef int64_t at = CONTROL_HEADER_SIZE + <int64_t>number * SLOT_SIZE
        cdef int chunk = <int>(at // CONTROL_CHUNK_SIZE)
        self.check()
        if number < 0 or chunk >= self.chunk_count:
            raise IndexError(f"slot {number} is not mapped")
        return <Slot*>(self.chunks[chunk] + at % CONTROL_CHUNK_SIZE)

    cdef WakeWord* lane(self, int slot) noexcept nogil:
        return <WakeWord*>(self.chunks[0] + LANES_AT + (slot % LANE_COUNT) * LANE_SIZE)

    cdef ProcessEntry* process(self, int number) except NULL:
        self.check()
        if not 0 <= number < PROCESS_COUNT or self.chunk_count == 0:
            raise IndexError(f"process {number} is not mapped")
        return <ProcessEntry*>(self.chunks[0] + PROCESSES_AT + number * PROCESS_SIZE)

    cdef uint64_t* session_word(self) noexcept nogil:
        return <uint64_t*>(self.chunks[0] + 16)

    @property
    def session(self):
        self.check()
        return atomic_load_u64(self.session_word())

    @property
    def clean(self):
        """Whether the previous session was closed cleanly."""
        self.check()
        return (<int32_t*>(self.chunks[0] + 12))[0] != 0

    @clean.setter
    def clean(self, bint value):
        self.check()
        (<int32_t*>(self.chunks[0] + 12))[0] = value

    @session.setter
    def session(self, uint64_t value):
        self.check()
        atomic_store_u64(self.session_word(), value)

    def register_process(
        self, int number, uint64_t nonce, int pid, uint64_t start_ticks=0, uint64_t pid_namespace=0, int64_t now_ms=0
    ):
        cdef ProcessEntry* p = self.process(number)
        p.pid = pid
        p.start_ticks, p.pid_namespace, p.registered_ms = start_ticks, pid_namespace, now_ms
        p.idle_member = p.idle_since_ms = 0
        atomic_store_u64(&p.heartbeat_ns, eoslog_monotonic_ns())
        atomic_store_u64(&p.nonce, nonce)

    def beat(self, int number):
        atomic_store_u64(&self.process(number).heartbeat_ns, eoslog_monotonic_ns())

    def process_entry(self, int number):
        """Return (nonce, pid, seconds since the last heartbeat)."""
        cdef ProcessEntry* p = self.process(number)
        cdef int64_t age = <int64_t>(eoslog_monotonic_ns() - atomic_load_u64(&p.heartbeat_ns))
        return atomic_load_u64(&p.nonce), p.pid, max(age, 0) / 1e9

    def process_identity(self, int number):
        """Return (pid, start time in clock ticks, inode of its pid namespace, ms when it registered); 0: not known."""
        cdef ProcessEntry* p = self.process(number)
        return p.pid, p.start_ticks, p.pid_namespace, p.registered_ms

    def note_idle_member(self, int number, uint64_t member, int64_t since_ms):
        """Publish which group member of a process has not polled for the longest time, and since when."""
        cdef ProcessEntry* p = self.process(number)
        p.idle_member, p.idle_since_ms = member, since_ms

    def idle_member(self, int number):
        """Return (hash of the member, ms of its last poll), or (0, 0) if the process has none."""
        cdef ProcessEntry* p = self.process(number)
        return p.idle_member, p.idle_since_ms

    def slot_view(self, int number):
        """Return all fields of a slot, for `eoslog locks` and tests."""
        return view_of(self.slot(number))

    def published_ends(self, slots):
        """Return the published log end of each slot; -1 for a slot that this session has not used."""
        cdef uint64_t session = self.session
        cdef Slot* s
        cdef int64_t at
        ends = []
        for number in slots:
            at = CONTROL_HEADER_SIZE + <int64_t>number * SLOT_SIZE
            if number < 0 or at // CONTROL_CHUNK_SIZE >= self.chunk_count:
                ends.append(-1)
                continue
            s = <Slot*>(self.chunks[at // CONTROL_CHUNK_SIZE] + at % CONTROL_CHUNK_SIZE)
            ends.append(atomic_load_i64(&s.log_end) if atomic_load_u64(&s.session) == session else -1)
        return ends

    def mark_deleted(self, int number):
        atomic_store_u32(&self.slot(number).deleted, 1)
        self.wake(number)

    def wake(self, int slot):
        cdef Slot* s = self.slot(slot)
        wake_word(self.lane(slot), EVERYBODY)
        wake_word(&s.flushed[0], EVERYBODY)
        wake_word(&s.flushed[1], EVERYBODY)

    def wake_counters(self, slots):
        """Return the counters of these slots' lanes. Read them before the bounds to wait for."""
        self.check()
        return {lane: atomic_load_u32(&self.lane(lane).counter) for lane in {slot % LANE_COUNT for slot in slots}}

    def wait(self, dict counters, double timeout):
        """Block until one of the counters has changed, or for `timeout` seconds (at most 50 ms per call).
        Source: protocol.md row 35."""
        cdef uint32_t* places[LANE_COUNT]
        cdef uint32_t expected[LANE_COUNT]
        cdef WakeWord* words[LANE_COUNT]
        cdef int n = 0, i
        cdef int64_t ns = <int64_t>(min(max(timeout, 0.0), 0.05) * 1e9)
        self.check()
        if len(counters) > LANE_COUNT:
            raise ValueError(f"{len(counters)} words, at most {LANE_COUNT} fit")
        for key, counter in counters.items():
            words[n] = self.lane(key)
            places[n] = &words[n].counter
            expected[n] = counter
            n += 1
        if n == 0 or ns <= 0:
            return
        with nogil:
            if self.writable:
                for i in range(n):
                    atomic_add_u32(&words[i].waiters, 1)
            eoslog_os.wait(places, expected, n, ns)
            if self.writable:
                for i in range(n):
                    atomic_add_u32(&words[i].waiters, <uint32_t>-1)


cdef inline void wake_word(WakeWord* word, int count) noexcept nogil:
    """Wake up to `count` threads that sleep on a word. A thread that is about to sleep does not."""
    atomic_add_u32(&word.counter, 1)
    if atomic_load_u32(&word.waiters):
        eoslog_futex_wake(&word.counter, count)


cdef void pause_ns(int64_t ns) noexcept nogil:
    eoslog_os.wait(NULL, NULL, 0, ns)


def try_lock(int fd, int64_t at, *, bint shared=False):
    """Take an OFD lock on one byte; False when another open file description holds it.

    Keeps the GIL, as `unlock` does: neither call waits, and getting the GIL back may take longer."""
    if eoslog_os.lock(fd, F_RDLCK if shared else F_WRLCK, at) == 0:
        return True
    if errno in (EAGAIN, EACCES):
        return False
    raise OSError(errno, "cannot lock")


def unlock(int fd, int64_t at):
    if eoslog_os.lock(fd, F_UNLCK, at) < 0:
        raise OSError(errno, "cannot unlock")


def debug_locks():
    """Check the order of locks in this process and its forks from now on, and measure how long each
    is held. EOSLOG_DEBUG_LOCKS=1 does so from the start.

    Taking a lock while holding one that must come later ends the process with SIGABRT. A line on
    stderr names both locks.
    """
    eoslog_lock_debug_begin()


def lock_times():
    """Return {kind of lock: (number of releases, total ns held, longest ns held)} of this process.

    Counted since `debug_locks`. Locks of other processes are not included.
    """
    cdef eoslog_lock_time found
    cdef int kind
    out = {}
    for kind in range(EOSLOG_LOCKS):
        found = eoslog_lock_times(kind)
        out[eoslog_lock_name(kind).decode()] = (found.count, found.total_ns, found.longest_ns)
    return out


if os.environ.get("EOSLOG_DEBUG_LOCKS", "0") not in ("", "0"):
    debug_locks()


def guard_across_fork(int fd):
    """Close this descriptor in forked children: a child must not hold or release its parent's locks."""
    if eoslog_fork_guard(fd) < 0:
        raise MemoryError()


def release_guard(int fd):
    eoslog_fork_release(fd)


def fork_generation():
    return eoslog_fork_generation


FAULT_CALLS = {
    "open": EOSLOG_OPEN, "pread": EOSLOG_PREAD, "pwrite": EOSLOG_PWRITE,
    "fdatasync": EOSLOG_FDATASYNC, "fsync": EOSLOG_FSYNC, "ftruncate": EOSLOG_FTRUNCATE,
    "rename": EOSLOG_RENAME, "unlink": EOSLOG_UNLINK, "lock": EOSLOG_LOCK, "point": EOSLOG_POINT,
    "mkdir": EOSLOG_MKDIR, "rmdir": EOSLOG_RMDIR, "writeback": EOSLOG_WRITEBACK,
}


def arm_fault(str call, int64_t nth, int error):
    """Make the nth next `call` fail with an errno; 0 kills before it, -1 after it, -2 writes short."""
    eoslog_fault_arm(FAULT_CALLS[call], nth, error)


def disarm_faults():
    eoslog_fault_disarm()


def fault_count(str call, *, bint reset=False):
    """Return the number of calls of a kind since counting began."""
    return eoslog_fault_count(FAULT_CALLS[call], reset)


def os_table():
    """Return the address of the OS call table, for a simulator that replaces its entries (os_table.h)."""
    return <size_t>&eoslog_os
