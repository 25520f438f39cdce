"""Partition logs, segments and the files around them: policy-free storage."""

from eoslog.storage.format import codecs as _codecs  # noqa: F401  binds the codecs to the core
