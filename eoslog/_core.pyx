# cython: language_level=3, binding=True, embedsignature=True, embedsignature.format=python
# cython: auto_pickle=False, autotestdict=False, boundscheck=False, wraparound=False
# cython: initializedcheck=False, cdivision=True
"""Compiled core of eoslog: record batches, segments, producer state. Private: use `eoslog`.

A facade: classes live in the chapters included below, leaf functions in `_core/*.pxd`.
"""
cimport cython

from eoslog import errors

include "_core/fault.pxi"
include "_core/hashes.pxi"

__all__ = ("crc32c",)
