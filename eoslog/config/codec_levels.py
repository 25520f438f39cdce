"""Codecs of record batches, and the levels that they have."""

from __future__ import annotations

from eoslog.errors import ConfigError

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By id in a batch's attributes."""
CODEC_LEVELS = {"gzip": (-1, 9), "lz4": (1, 17), "zstd": (-131_072, 22)}
"""Smallest and largest level; gzip has no 0, snappy none at all."""


def check_codec_level(key: str, codec: str, level: int) -> None:
    """Check that the codec has a level.

    Raises:
        ConfigError: if it does not; the error names `key`.
    """
    lowest, highest = CODEC_LEVELS.get(codec, (level, level))
    if not lowest <= level <= highest or (codec == "gzip" and level == 0):
        levels = "-1 or 1..9" if codec == "gzip" else f"{lowest}..{highest}"
        raise ConfigError(f"{key}: expected {levels} for {codec}, got {level}")
