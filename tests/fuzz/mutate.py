"""Inputs that are mutations of others, from a seed, for an uninstrumented core."""

from __future__ import annotations

import random
import struct

_NUMBERS = (0, 1, -1, 2, 61, 127, 128, 255, 256, 0x7FFF, -0x8000, 2**31 - 1, -(2**31), 2**62)


def mutated(corpus: list[bytes], choice: random.Random, longest: int = 4096) -> bytes:
    """One input of the corpus, changed in one to six places."""
    data = bytearray(choice.choice(corpus)) if corpus else bytearray()
    for _ in range(choice.randint(1, 6)):
        at = choice.randrange(len(data) + 1)
        kind = choice.randrange(8)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << choice.randrange(8)
        elif kind == 1 and data:
            data[at % len(data)] = choice.randrange(256)
        elif kind == 2:
            data[at:at] = choice.randbytes(choice.randint(1, 8))
        elif kind == 3:
            del data[at : at + choice.randint(1, 16)]
        elif kind == 4:
            size, form = choice.choice([(1, ">b"), (2, ">h"), (4, ">i"), (8, ">q")])
            number = choice.choice(_NUMBERS)
            limit = 1 << (8 * size - 1)
            data[at : at + size] = struct.pack(form, max(-limit, min(number, limit - 1)))
        elif kind == 5 and corpus:
            other = choice.choice(corpus)
            start = choice.randrange(len(other) + 1)
            data[at:at] = other[start : start + choice.randint(1, 64)]
        elif kind == 6:
            data = data[:at]
        else:
            data[at:at] = bytes([choice.choice((0, 1, 0x7F, 0x80, 0xFF))]) * choice.randint(1, 12)
    return bytes(data[:longest])
