"""`with` for what has a `close`."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """Closed when its `with` block ends, also by an exception."""

    def close(self) -> None:
        """Let go of everything."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
