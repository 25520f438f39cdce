# The part of the coordinator's fold that each transaction passes three times: the newest value of each
# id, and the decisions. Values are `TransactionMetadata`, whose states say what may follow what
# (coordinator/transactions/state.py). Records are decoded in coordinator/transactions/log_fold.py.

from cpython.object cimport PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM

cdef extern from "Python.h":    # Cython declares it with another type, which GCC 14 rejects
    object PyType_GenericAlloc(PyTypeObject* type, Py_ssize_t size)

cdef enum:                      # fields of a TransactionMetadata
    FIELD_NAME = 0
    FIELD_ID = 1
    FIELD_EPOCH = 2
    FIELD_STATE = 4
    FIELD_SPANS = 12
    FIELD_DECIDED = 14
    FIELD_OFFSET = 16           # the last one


cdef placed_at(tuple metadata, int64_t offset):
    """Return a copy of a value, with the offset of its record."""
    cdef object cls = type(metadata)
    cdef tuple placed = <tuple>PyType_GenericAlloc(<PyTypeObject*>cls, FIELD_OFFSET + 1)
    cdef Py_ssize_t i
    for i in range(FIELD_OFFSET + 1):
        field = metadata[i] if i < FIELD_OFFSET else offset
        Py_INCREF(field)        # the next line takes the reference over
        PyTuple_SET_ITEM(placed, i, field)
    return placed


@cython.final
cdef class Decision:
    """A decided transaction, kept while a marker or a snapshot depends on it."""

    cdef readonly object prepared           # the PREPARE_* record
    cdef readonly object decided            # the decision in it
    cdef readonly tuple key                 # (producer id, epoch of the data)
    cdef readonly bint commit
    cdef readonly object spans              # first and last offset of the transaction in each partition
    cdef readonly int64_t offset            # of the record: the decision is valid once that is durable
    # For each partition where this process saw the transaction ended, a log end at that time. No marker of
    # the transaction is at or beyond it.
    cdef readonly dict closed
    # COMPLETE_* was read: each partition has its marker, or had it before a power loss.
    cdef public bint complete

    @classmethod
    def __class_getitem__(cls, types):
        return GenericAlias(cls, types)

    def __init__(self, prepared, decided):
        fields = <tuple>prepared
        self.prepared = prepared
        self.decided = decided
        producer_id, data_epoch, self.commit, _ = <tuple>decided
        self.key = (producer_id, data_epoch)
        self.spans = fields[FIELD_SPANS]
        self.offset = fields[FIELD_OFFSET]
        self.closed = {}

    def __eq__(self, other):
        if not isinstance(other, Decision):
            return NotImplemented
        return (self.prepared == other.prepared and self.closed == other.closed
                and self.complete == other.complete)


@cython.final
cdef class TransactionTimes:
    """When this process first read a transaction or a decision, on the monotonic clock.

    Deadlines count from these times, so a jump of the wall clock cannot make one due early.
    """

    cdef public dict opened, decided        # by (producer id, epoch of the data)
    cdef object clock

    def __init__(self, clock):
        self.clock = clock
        self.opened = {}
        self.decided = {}

    cpdef note(self, metadata):
        """Keep the time of a value that was folded."""
        cdef tuple fields = <tuple>metadata
        state, decided = fields[FIELD_STATE], fields[FIELD_DECIDED]
        if state == ONGOING:
            self.opened.setdefault((fields[FIELD_ID], fields[FIELD_EPOCH]), self.clock())
        elif state.undecided:
            self.opened.pop((fields[FIELD_ID], fields[FIELD_EPOCH]), None)
        elif decided is not None:
            key = (<tuple>decided)[:2]
            if state.preparing:
                self.opened.pop(key, None)
                self.decided.setdefault(key, self.clock())
            else:
                self.decided.pop(key, None)


cdef class TransactionTable:
    """The newest value of each id, and the decisions.

    The caller holds the log's lock. A decision is in its table before the id has the value, so a thread
    that reads without the lock never finds a decided id without its decision.
    """

    cdef readonly dict table, decisions, ids
    cdef str recovery_prefix

    @classmethod
    def __class_getitem__(cls, types):
        return GenericAlias(cls, types)

    def __init__(self, str recovery_prefix):
        self.table = {}
        self.decisions = {}
        self.ids = {}
        self.recovery_prefix = recovery_prefix

    def append(self, metadata, int64_t offset, TransactionTimes times):
        """Fold a value whose record this process has appended at `offset`, and keep the time."""
        times.note(self.state(placed_at(<tuple>metadata, offset)))

    cpdef state(self, metadata):
        """Fold the value of the record at `metadata.offset`, and return it."""
        cdef tuple fields = <tuple>metadata
        name, state, decided = fields[FIELD_NAME], fields[FIELD_STATE], fields[FIELD_DECIDED]
        if decided is not None and state.preparing:
            decision = Decision(metadata, decided)
            self.decisions[decision.key] = decision
        elif state.complete:
            self._complete(name, decided)
        self.table[name] = metadata
        if not name.startswith(self.recovery_prefix):
            self.ids[fields[FIELD_ID]] = name
        return metadata

    cdef _complete(self, name, decided):
        cdef Decision decision
        if decided is None:
            # A COMPLETE_* that Kafka wrote: its markers were replicated first, so drop the decision.
            for key in [k for k, d in self.decisions.items() if d.prepared.transactional_id == name]:
                del self.decisions[key]
            return
        key = (<tuple>decided)[:2]
        decision = self.decisions.get(key)
        if decision is not None:
            decision.complete = True
            if not decision.spans:
                del self.decisions[key]


cdef class FoldedTransactions:
    """One partition of __transaction_state in this process: its log, the fold, and reads of the fold.

    The subclass folds, under a lock of its own. It changes `_position` last, and folds into a new table if
    it starts again. So a read, which takes no lock, finds values at least as new as the last `refresh`.
    """

    cdef readonly object log
    cdef object core            # publishes the ends
    cdef public TransactionTable _fold
    cdef public TransactionTimes _times
    cdef public int64_t _position, _cleaned

    def __init__(self, log, TransactionTable fold, clock):
        self.log = log
        self.core = log.core
        self._fold = fold
        self._times = TransactionTimes(clock)
        self._position = log.log_start
        self._cleaned = log.cleaned_to

    @classmethod
    def __class_getitem__(cls, types):
        return GenericAlias(cls, types)

    def refresh(self):
        """Fold up to the published end, and return that end."""
        # The common case: this process folds its own appends.
        cdef int64_t position = self._position, end = self.core.log_end, cleaned = self.core.cleaned_to
        if end == position and cleaned == self._cleaned:
            return position
        return self._fold_to_end()

    def take_appended(self, metadata, int64_t offset):
        """Fold a value that this process has appended. The caller holds the log's lock."""
        if self._position == offset:        # else `refresh` has folded it, or will fold it
            self._fold.append(metadata, offset, self._times)
            self._position = offset + 1

    def get(self, transactional_id):
        """The value of the id's newest folded record; None if it has none."""
        return self._fold.table.get(transactional_id)

    def decision(self, key):
        """The decision about a transaction, if one was read and not forgotten."""
        return self._fold.decisions.get(key)
