"""A goal or a minimum: a row of the table."""

from __future__ import annotations

from dataclasses import dataclass

_SECONDS = ((1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BYTES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


@dataclass(frozen=True)
class Row:
    """A goal or a minimum: one contest compared with a peer, or with a number.

    Attributes:
        `what`: name in the table.
        `test`: `file:test` of the contest.
        `peers`: names of the peers; with several, the slowest of them counts. () = a number.
        `ours`: the contender that the row is about; "" is the one that pytest-benchmark timed.
        `least`: our speed over the peer's must be at least this.
        `most`: our time over the peer's must be at most this.
        `plus_us`: ... or at most the peer's time plus so many microseconds, whichever is more.
        `instead`: a ceiling and a share: `least` is reached too if our speed is this share of it.
        `limit`: without peers: at most so many seconds per unit, or the contest's own unit.
        `floor`: a lower minimum for `least`, reached already; a value below it is a defect.
        `in_bytes`: what `limit` counts, rather than seconds.
    """

    what: str
    test: str
    peers: tuple[str, ...] = ()
    ours: str = ""
    least: float | None = None
    most: float | None = None
    plus_us: float | None = None
    instead: tuple[str, float] | None = None
    limit: float | None = None
    floor: float | None = None

    in_bytes: bool = False

    def figure(self, value: float) -> str:
        """A value against `limit`, with a unit that people can read."""
        steps = _BYTES if self.in_bytes else _SECONDS
        for size, name in steps:
            if value >= size:
                return f"{value / size:.3g} {name}"
        return f"{value / steps[-1][0]:.3g} {steps[-1][1]}"

    @property
    def goal(self) -> str:
        """The goal in words."""
        if self.least is not None:
            other = f" or {self.instead[1]:g} of {self.instead[0]}" if self.instead else ""
            return f">= {self.least:g}{other}"
        if self.most is not None:
            plus = f" or +{self.plus_us:g} us" if self.plus_us else ""
            return f"time <= {self.most:g}{plus}"
        if self.limit is not None:
            return f"<= {self.figure(self.limit)}"
        return f"minimum {self.floor:g}" if self.floor is not None else ""
