"""Redis Streams and NATS JetStream on loopback, persistent.

Redis syncs before it answers, NATS later.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import data
from bench.contest import AbsentError, Contender

_START_S = 20


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _server(program: str, arguments: list[str], port: int, place: Path) -> Iterator[None]:
    if shutil.which(program) is None:
        raise AbsentError(f"there is no {program}")
    with (place / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [program, *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=place
        )
    try:
        deadline = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise AbsentError(f"{program} does not start: {(place / 'server.log').read_text()}")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def redis_streams(
    place: Path, count: int, stack: contextlib.ExitStack
) -> tuple[Contender, Contender]:
    """XADD in pipelines of 1,000 with `appendfsync always`, and XRANGE in thousands."""
    import redis

    path, port = stack.enter_context(data.folder(place)), _free_port()
    arguments = ["--port", str(port), "--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", "always",
                 "--save", "", "--dir", str(path)]  # fmt: skip
    stack.enter_context(_server("redis-server", arguments, port, path))
    client = stack.enter_context(redis.Redis(port=port))

    def add(stream: str) -> str:
        pipe = client.pipeline(transaction=False)
        for at, (key, value) in enumerate(
            zip(data.keys(count), data.values(count), strict=True), 1
        ):
            pipe.xadd(stream, {b"k": key, b"v": value})
            if not at % 1000:
                pipe.execute()
        pipe.execute()
        return stream

    @contextlib.contextmanager
    def stream() -> Iterator[str]:
        yield "s"
        client.delete("s")

    def check(name: str, _result: Any) -> None:
        assert data.checksum(entry[b"v"] for _, entry in client.xrange(name)) == data.expected(
            count
        )

    add("kept")

    def read(_state: Any) -> list[bytes]:
        kept, start = [], "-"
        while found := client.xrange("kept", start, count=1000):
            kept += [entry[b"v"] for _, entry in found]
            start = b"(" + found[-1][0]
        return kept

    def check_read(_state: Any, kept: list[bytes]) -> None:
        assert data.checksum(kept) == data.expected(count)

    name = "Redis Streams"
    return (
        Contender(name, add, stream, check, count), Contender(name, read, check=check_read, units=count)
    )  # fmt: skip


def nats_jetstream(place: Path, count: int, stack: contextlib.ExitStack) -> Contender:
    """Publish to a stream of files with 500 outstanding acknowledgements.

    This server syncs by a timer.
    """
    import asyncio

    import nats

    path, port = stack.enter_context(data.folder(place)), _free_port()
    (path / "nats.conf").write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{path / "store"}" }}\n'
    )
    stack.enter_context(_server("nats-server", ["-c", str(path / "nats.conf")], port, path))
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    client = loop.run_until_complete(nats.connect(f"nats://127.0.0.1:{port}"))
    stack.callback(lambda: loop.run_until_complete(client.close()))
    stream = client.jetstream(publish_async_max_pending=2000)

    @contextlib.contextmanager
    def fresh() -> Iterator[None]:
        loop.run_until_complete(stream.add_stream(name="t", subjects=["t"]))
        yield
        loop.run_until_complete(stream.delete_stream("t"))

    async def publish() -> None:
        pending = []
        for value in data.values(count):
            pending.append(await stream.publish_async("t", value))
            if len(pending) == 500:
                await asyncio.gather(*pending)
                pending.clear()
        await asyncio.gather(*pending)

    async def stored() -> int:
        return int((await stream.stream_info("t")).state.messages)

    def check(_state: Any, _result: Any) -> None:
        assert loop.run_until_complete(stored()) == count

    return Contender(
        "NATS JetStream", lambda _: loop.run_until_complete(publish()), fresh, check, count
    )
