"""Each fuzz target accepts its corpus and a slice of mutations with fixed seeds.

The long runs are `make quality-fuzz SECONDS=...`; their findings are in the corpus.
"""

from __future__ import annotations

import random

import pytest

from tests.fuzz import seeds, targets
from tests.fuzz.exact import exact
from tests.fuzz.mutate import mutated

SLICE = 400


@pytest.mark.slow
@pytest.mark.parametrize("name", targets.TARGETS)
def test_mutated_input_raises_only_typed_errors(name: str) -> None:
    corpus = seeds.corpus(name)
    assert corpus, f"tests/fuzz/corpus/{name} is empty: python -m tests.fuzz.seeds"
    choice = random.Random(name)
    for data in [b"", *corpus, *(mutated(corpus, choice) for _ in range(SLICE))]:
        targets.run(name, data)


def test_every_seed_is_valid_input_for_its_target() -> None:
    import eoslog
    from eoslog import _core

    for data in seeds.corpus("batch"):
        assert all(batch.valid for batch in _core.iter_batches(data)), data.hex()
    assert issubclass(eoslog.errors.CorruptRecord, eoslog.errors.EoslogError)


def test_a_fuzz_target_detects_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = seeds.seeds()["batch"][0]
    real = targets.codec.decode_batch

    def off_by_one(data: bytes) -> object:
        batch = real(data)
        batch.records[0].offset += 1
        return batch

    monkeypatch.setattr(targets.codec, "decode_batch", off_by_one)
    with pytest.raises(AssertionError):
        targets.run("batch", plain)


def test_a_read_past_the_end_of_an_exact_buffer_kills_the_process() -> None:
    import os
    import signal

    child = os.fork()
    if child == 0:
        import ctypes
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        view = exact(b"abc")
        address = ctypes.addressof(ctypes.c_ubyte.from_buffer(view))
        ctypes.memmove(ctypes.create_string_buffer(64), address + len(view), 64)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) != 0
