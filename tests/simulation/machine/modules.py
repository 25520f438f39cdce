"""Stand-ins for the standard library's modules in eoslog; they ask the world."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tests.simulation.machine.world import Killed, World


class Clock:
    """`time`, for eoslog's modules."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic_ns(self) -> int:
        self._world.alive()
        return self._world.clock_ns

    def monotonic(self) -> float:
        return self.monotonic_ns() / 1e9

    perf_counter = monotonic
    perf_counter_ns = monotonic_ns

    def time_ns(self) -> int:
        self._world.alive()
        return self._world.wall_ns + self._world.clock_ns

    def time(self) -> float:
        return self.time_ns() / 1e9

    def sleep(self, seconds: float) -> None:
        self._world.sleep(int(seconds * 1e9))
        self._world.alive()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class Secrets:
    """`secrets` and `uuid`, drawn from the world's generator."""

    def __init__(self, world: World) -> None:
        self._world = world

    def randbits(self, n: int) -> int:
        return self._world.rng.getrandbits(n)

    def token_bytes(self, n: int) -> bytes:
        return self._world.rng.randbytes(n)

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._world.rng.randbytes(16), version=4)

    def __getattr__(self, name: str) -> Any:
        return getattr(uuid, name)


class Thread:
    """A thread that runs only in steps of its process; the sweep runs immediately."""

    def __init__(self, *, target: Callable[[], None], name: str = "", daemon: bool = True) -> None:
        self.target, self.name = target, name

    def start(self) -> None:
        if self.name == "eoslog-sweep":
            self.target()

    def join(self, timeout: float | None = None) -> None:
        pass

    def is_alive(self) -> bool:
        return False


class Event(threading.Event):
    """An event that no other step can set while its process waits."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._world.sleep(int(timeout * 1e9), self.is_set)
        self._world.alive()
        return self.is_set()


class Waits:
    """`threading` for code that waits for its own event to let time pass."""

    def __init__(self, world: World) -> None:
        self._world = world

    def Event(self) -> Event:  # noqa: N802
        return Event(self._world)

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


class Threading:
    Thread = Thread

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


class Pool:
    """A pool that runs each task immediately, in the calling thread."""

    def __init__(self, *args: Any) -> None:
        pass

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args))
        except Killed:
            raise
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True) -> None:
        pass


class Armed(dict[str, list[str]]):
    """`files._armed`: every failpoint is a step."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def __bool__(self) -> bool:
        return True

    def __contains__(self, name: object) -> bool:
        self._world.step("failpoint", name)
        self._world.alive()
        return False
