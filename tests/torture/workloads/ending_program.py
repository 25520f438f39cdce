"""A program with producers, consumers and threads that exits without closing.

Usage: python -m tests.torture.workloads.ending_program DIRECTORY HISTORY NAME SEED END FAULT ACTION NTH
END is one of `ENDS`. The fault is armed when the interpreter's exit hooks begin.
"""

from __future__ import annotations

import atexit
import os
import random
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import eoslog
from eoslog import TopicPartition
from eoslog.client.producer.shutdown import producers  # its exit hook is registered before ours
from eoslog.errors import EoslogError
from eoslog.storage.fs import files
from eoslog.testing.history import Recorder
from eoslog.testing.history.recorder import str_of
from tests.torture.workloads.mixed import TOPICS

PLACES = [TopicPartition(topic, p) for topic, count in TOPICS.items() for p in range(count)]


class Sending:
    """A thread's use of a producer.

    Callbacks, also those of the exit, record the result of each value.
    """

    def __init__(self, recorder: Recorder, producer: Any, promised: bool = True) -> None:
        self.recorder, self.producer, self.promised = recorder, producer, promised
        self.session = recorder.name()

    def send(self, rng: random.Random) -> None:
        """Send one record.

        `taken` records that `produce` accepted it, from a producer that the exit hooks know.
        """
        place, name = rng.choice(PLACES), self.recorder.name()
        acks = "all" if self.producer._config.acks == -1 else str(self.producer._config.acks)
        self.recorder.write(
            "send",
            "invoke",
            id=name,
            session=self.session,
            acks=acks,
            sends=[[str_of(place), name]],
        )
        self.producer.produce(
            place.topic,
            name,
            name,
            partition=place.partition,
            on_delivery=partial(self._heard, name),
        )
        if self.promised:
            self.recorder.write("taken", value=name)

    def _heard(self, name: str, error: Any, at: Any) -> None:
        if error is not None:
            self.recorder.write("send", "info", id=name, error=repr(error))
            return
        sends = [[f"{at.topic}-{at.partition}", name, at.offset]]
        self.recorder.write("send", "ok", id=name, sends=sends)


class Program:
    """Its clients and its threads."""

    def __init__(self, path: str, recorder: Recorder, rng: random.Random) -> None:
        self.log, self.recorder, self.rng = eoslog.open(path), recorder, rng
        self.late = False  # the exit hooks run
        self.shared = [
            self.log.producer(
                linger_ms=rng.choice([0, 5, 60_000]), acks=rng.choice(["all", "1"]),
                batch_size=rng.choice([300, 16_384]),
            )
            for _ in range(rng.randint(1, 3))
        ]  # fmt: skip

    def produces(self, rng: random.Random) -> NoReturn:
        """Produce without end, with a shared producer or one of this thread's own."""
        own = self.late or rng.random() < 0.3
        producer = self.log.producer(linger_ms=0) if own else rng.choice(self.shared)
        sending = Sending(self.recorder, producer, promised=not own)
        while True:
            sending.send(rng)
            if self.late or rng.random() < 0.1:
                sending.producer.flush()
            if rng.random() < 0.1:
                time.sleep(0.001)

    def consumes(self, rng: random.Random) -> NoReturn:
        """Waits for records, mostly."""
        with self.log.consumer(auto_offset_reset="earliest") as consumer:
            reading = self.recorder.consumer(consumer)
            consumer.assign(PLACES)
            while True:
                reading.consume(100, rng.choice([0.001, 5]))

    def transacts(self, rng: random.Random, last: bool = False) -> None:
        """Transactions; the last one is open when this returns."""
        producing = self.recorder.producer(self.log, f"id-{rng.randrange(3)}", linger_ms=0)
        while True:
            producing.begin()
            producing.send([(p, self.recorder.name()) for p in rng.choices(PLACES, k=3)])
            if last:
                self.open = producing
                return
            producing.abort() if rng.random() < 0.2 else producing.commit()

    def looks(self, rng: random.Random) -> NoReturn:
        """Open the log again, scan and clean it.

        It opens the directory too, if the exit has closed it.
        """
        while True:
            with eoslog.open(self.log.path) as log:
                log.clean() if rng.random() < 0.1 else self.recorder.scan(
                    log, rng.choice(list(TOPICS))
                )

    def exits(self, pid: int, action: str, where: str = "", nth: str = "1") -> None:
        """The first exit hook: a producer created from now on is not closed by any hook."""
        self.late = True
        if action != "none" and pid == os.getpid():
            files.arm_failpoint(where, action, int(nth))

    def beside(self, work: Any) -> None:
        """Let a daemon thread work until the program ends; after a rejection it restarts."""

        def guarded(rng: random.Random) -> None:
            for _ in range(1000):
                try:
                    work(rng)
                except EoslogError as error:
                    self.recorder.write("refused", error=repr(error))

        rng = random.Random(self.rng.random())
        threading.Thread(target=guarded, args=(rng,), daemon=True).start()


def fails() -> NoReturn:
    """Raise an exception that no caller handles."""
    raise ZeroDivisionError


def tells(kind: type[BaseException], *error: Any) -> None:
    """The hook for such: what is meant to be is not told."""
    if kind not in (ZeroDivisionError, KeyboardInterrupt):
        sys.__excepthook__(kind, *error)


def exits_in_a_thread() -> None:
    """Call exit in a thread that is not the main thread; the program continues."""
    thread = threading.Thread(target=sys.exit, args=(5,))
    thread.start()
    thread.join()


ENDS: dict[str, tuple[Any, int]] = {
    "returns": (lambda: None, 0), "exits": (lambda: sys.exit(3), 3), "fails": (fails, 1),
    "exits in a thread": (exits_in_a_thread, 0),
    "is interrupted": (lambda: os.kill(os.getpid(), signal.SIGINT), -signal.SIGINT),
    "is terminated": (lambda: os.kill(os.getpid(), signal.SIGTERM), -signal.SIGTERM),
    "is ended at once": (lambda: os._exit(4), 4),
}  # fmt: skip
"""Ways to end, and the exit code that each is to give."""
ORDERLY = ("returns", "exits", "fails", "exits in a thread", "is interrupted")
"""Those in which exit hooks run."""


def forks(program: Program) -> None:
    """A child that inherits all of it ends in order, and sends nothing of it."""
    pid = os.fork()
    if pid == 0:
        assert all(producer._gate for producer in producers)
        sys.exit(7)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 7, f"a forked child ended with {code}"


def main(path: str, history: str, name: str, seed: str, end: str, *fault: str) -> None:
    """Run."""
    sys.excepthook = tells
    rng = random.Random(int(seed))
    recorder = Recorder(str(Path(history) / f"{name}.jsonl"), name)
    program = Program(path, recorder, rng)
    for _ in range(rng.randint(0, 3)):
        kinds = [
            program.produces,
            program.produces,
            program.consumes,
            program.transacts,
            program.looks,
        ]
        program.beside(rng.choice(kinds))
    if rng.random() < 0.3:
        program.transacts(rng, last=True)
    for sending in [Sending(recorder, producer) for producer in program.shared]:
        for _ in range(rng.randint(0, 40)):
            sending.send(rng)
    time.sleep(rng.choice([0, rng.uniform(0, 0.1)]))
    if rng.random() < 0.1:
        forks(program)
    atexit.register(program.exits, os.getpid(), *fault)
    globals()["kept"] = program
    ENDS[end][0]()
    time.sleep(1 if end.startswith("is ") else 0)  # for a signal to arrive


if __name__ == "__main__":
    main(*sys.argv[1:])
