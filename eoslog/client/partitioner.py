"""Where a record goes: the rules of Kafka's clients.

1. A partition that the caller names. 2. murmur2 of the key, over all partitions, the same as every
Java client (librdkafka's default differs: `murmur2_random` there). 3. Without a key, one partition
after another: a batch is filled before the next partition is chosen by chance, fuller ones less
likely (KIP-480, KIP-794).

`partitioner.class` takes `murmur2` (the default), `sticky` (keys ignored too), `round_robin`,
`random`, Kafka's class names for these, or a callable `f(topic, key, partitions) -> partition`.
The rules run in the compiled accumulator; these functions are the same for callers that partition
by themselves, such as a Spark job.
"""

from __future__ import annotations

from eoslog import _core
from eoslog.errors import SerializationError

__all__ = ["partition_for_key"]


def partition_for_key(key: bytes | str, partitions: int) -> int:
    """The partition of a keyed record.

    Args:
        key: `str` is UTF-8.
        partitions: how many the topic has.

    Raises:
        ConfigError: partitions is not positive.
        SerializationError: the key is of another type.
    """
    data = key.encode() if isinstance(key, str) else key
    try:
        return _core.partition_for_key(data, partitions)
    except (TypeError, BufferError):
        raise SerializationError(f"key: expected bytes or str, got {type(key).__name__}") from None
