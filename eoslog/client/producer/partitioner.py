"""The partitioner: Kafka's rules for the partition of a record.

1. The partition that the caller names. 2. With a key: murmur2 of the key, over all partitions, as
in every Java client (librdkafka calls it `murmur2_random`; its default differs). 3. Without a key:
one partition until its batch is full, then another at random; partitions with more buffered
records are less likely (KIP-480, KIP-794).

`partitioner.class` takes `murmur2` (the default), `sticky` (ignores keys), `round_robin`, `random`,
Kafka's class names for these, or a callable `f(topic, key, partitions) -> partition`. The compiled
accumulator applies the rules. The functions below are for callers that partition records
themselves, such as a Spark job.
"""

from __future__ import annotations

from eoslog import _core
from eoslog.errors import SerializationError

__all__ = ["partition_for_key"]


def partition_for_key(key: bytes | str, partitions: int) -> int:
    """The partition of a keyed record.

    Args:
        key: the key; `str` is encoded as UTF-8.
        partitions: the number of partitions of the topic.

    Raises:
        ConfigError: if `partitions` is not positive.
        SerializationError: if the key has another type.
    """
    data = key.encode() if isinstance(key, str) else key
    try:
        return _core.partition_for_key(data, partitions)
    except (TypeError, BufferError):
        raise SerializationError(f"key: expected bytes or str, got {type(key).__name__}") from None
