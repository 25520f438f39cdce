"""The partition of `__transaction_state` or `__consumer_offsets` that has an id."""

from __future__ import annotations

from functools import lru_cache

from eoslog import _core


@lru_cache(maxsize=4096)
def shard_of(name: str, count: int) -> int:
    """Return the internal partition of a transactional id or group, by Kafka's rule.

    For the hash -2^31, which has no positive counterpart, Kafka's `Utils.abs` returns 0.
    """
    code = _core.java_hash(str.__str__(name))
    return 0 if code == -(2**31) else abs(code) % count
