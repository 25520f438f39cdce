"""One Kafka broker on loopback (KRaft, single node) and its tools.

The broker is stopped cleanly or killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.kafka import jars

CLUSTER = "4L6g3nShT-eMCtK--X86sw"
HEAP = "-Xmx700m"
LIGHT = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For a process that lives for seconds: compiling costs more than it gives."""
START_S = 400

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={logs}
auto.create.topics.enable=false
num.partitions=1
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=100
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
num.io.threads=2
num.network.threads=2
log.retention.ms=-1
log.segment.delete.delay.ms=1000
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=4194304
"""


def free_ports() -> tuple[int, int]:
    """Two loopback ports that are free now."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def java(
    version: str, main: str, *args: str | Path, heap: str = HEAP, jvm: tuple[str, ...] = LIGHT
) -> list[str]:
    """The command line of a class of this Kafka version."""
    return [
        "java", heap, *jvm,
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars.fetch(version)}/*", main,
        *map(str, args),
    ]  # fmt: skip


class Broker:
    """A broker with a folder of its own.

    Args:
        folder: where its configuration, its log and its data (`logs`) are.
        version: which Kafka.
        config: more of server.properties.
        format_args: more for the storage tool, as `--feature transaction.version=0`.
        jvm: options of its JVM; none for one whose speed is measured.
        cluster: its cluster id.
    """

    def __init__(
        self,
        folder: Path,
        version: str,
        config: Mapping[str, object] | None = None,
        format_args: tuple[str, ...] = (),
        jvm: tuple[str, ...] = LIGHT,
        cluster: str = CLUSTER,
    ) -> None:
        """Format the storage; `start` starts it."""
        self.folder, self.version, self._jvm = folder, version, jvm
        self.logs = folder / "logs"
        self.port, controller = free_ports()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._properties = folder / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        text = _PROPERTIES.format(port=self.port, controller=controller, logs=self.logs)
        text += "".join(f"{key}={value}\n" for key, value in (config or {}).items())
        self._properties.write_text(text)
        self.run(
            "kafka.tools.StorageTool", "format", "-t", cluster, "-c", self._properties, *format_args
        )

    def run(self, main: str, *args: str | Path, timeout: float = 120, check: bool = True) -> str:
        """Run a tool of this version; its standard output."""
        done = subprocess.run(
            java(self.version, main, *args, heap="-Xmx256m"), capture_output=True, text=True,
            timeout=timeout, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if check and done.returncode:
            raise RuntimeError(f"{main} exits with {done.returncode}: {done.stdout}\n{done.stderr}")
        return done.stdout

    def configure(self, line: str) -> None:
        """Add a setting, which its next start uses."""
        with self._properties.open("a") as file:
            file.write(f"{line}\n")

    def start(self) -> Broker:
        """Start it and wait until it answers."""
        assert self._process is None
        with (self.folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                java(self.version, "kafka.Kafka", self._properties, jvm=self._jvm),
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder,
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while not self._answers():
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the broker does not start (exit {code}): {self.log()[-3000:]}")
            time.sleep(0.1)
        return self

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
            with contextlib.suppress(KafkaException):
                return bool(client.list_topics(timeout=5).brokers)
        return False

    def stop(self) -> None:
        """Stop it cleanly: indexes are trimmed, producer snapshots taken."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill -9."""
        self._end(signal.SIGKILL)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend it, so that it keeps its connections and does not answer."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            # Its threads continue until one of them has received the signal.
            while set(_states_of_threads(self._process.pid)) != {"T"}:
                time.sleep(0.001)
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            os.kill(process.pid, number)
        try:
            process.wait(300)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def log(self) -> str:
        """What it has said so far."""
        return (self.folder / "broker.log").read_text(errors="replace")

    def remove(self) -> None:
        """Kill it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _states_of_threads(pid: int) -> Iterator[str]:
    """The letters of proc(5); T is stopped."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has ended
            yield (thread / "stat").read_text().rpartition(")")[2].split()[0]
