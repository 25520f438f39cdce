# The hash and the comparisons of `eoslog.TopicPartition`, which is the key of nearly every table.


@cython.auto_pickle(False)
cdef class PartitionName:
    """A topic and the number of a partition."""

    cdef public object topic, partition

    def __hash__(self):
        cdef Py_hash_t topic = hash(self.topic), partition = hash(self.partition)
        return <Py_hash_t>(31 * <size_t>topic + <size_t>partition)      # faster than a tuple's

    def __eq__(self, other):
        if not isinstance(other, PartitionName):
            return NotImplemented
        return self.partition == (<PartitionName>other).partition and self.topic == (<PartitionName>other).topic

    def __lt__(self, other):
        if not isinstance(other, PartitionName):
            return NotImplemented
        return (self.topic, self.partition) < ((<PartitionName>other).topic, (<PartitionName>other).partition)
