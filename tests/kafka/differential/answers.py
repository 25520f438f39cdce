"""Kafka's stored answers to the random sequences, for tests without a broker.

A sequence chooses from its seed and from what the sides answered. The stored answers, returned
in order, therefore lead it through the same requests again.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.paths import KAFKA_DATA as DATA

VERSION = "4.3.1"


class Recorded(NamedTuple):
    """A sequence's kind and seed, and everything that Kafka answered."""

    kind: str
    seed: int
    answers: list[Any]


class Recording:
    """A side that writes down what another one answers."""

    def __init__(self, side: Any) -> None:
        self._side = side
        self.answers: list[Any] = []

    def __getattr__(self, request: str) -> Any:
        def call(*arguments: Any) -> Any:
            answer = getattr(self._side, request)(*arguments)
            self.answers.append([request, answer])
            return answer

        return call


class Replayed:
    """A side that answers from the stored answers.

    Every call must be the one that was answered then. If eoslog answers differently than at the
    time of the capture, and the sequence continues, a call may differ, and that fails.
    """

    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = list(answers)

    def __getattr__(self, request: str) -> Any:
        def call(*_: Any) -> Any:
            recorded, answer = self._answers.pop(0)
            assert recorded == request, f"{request} is asked for, {recorded} was"
            return answer

        return call


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _answer(request: str, value: Any) -> Any:
    """The tuples that JSON makes lists of; the values of records are bytes."""
    if request == "committed":
        return tuple((offset, text.encode("latin-1")) for offset, text in value)

    def deep(value: Any) -> Any:
        return tuple(deep(item) for item in value) if isinstance(value, list) else value

    return deep(value)


def path_of(version: str = VERSION) -> Path:
    """Where a version's answers are."""
    return DATA / f"answers-{version}.jsonl.xz"


def write_answers(version: str, found: Sequence[Recorded]) -> Path:
    """Write the file."""
    lines = "".join(json.dumps(_plain(list(sequence))) + "\n" for sequence in found)
    path_of(version).write_bytes(lzma.compress(lines.encode(), preset=9))
    return path_of(version)


def read_answers(version: str = VERSION) -> Iterator[Recorded]:
    """Read it."""
    for line in lzma.decompress(path_of(version).read_bytes()).splitlines():
        kind, seed, answers = json.loads(line)
        yield Recorded(kind, seed, [(request, _answer(request, a)) for request, a in answers])
