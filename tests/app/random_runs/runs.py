"""Random runs of an application."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import eoslog
from eoslog.app.instance import Instance, folder_of
from eoslog.app.topology import described
from eoslog.errors import TaskFailed
from eoslog.storage.fs import files
from tests.app.counting import ended, forked

KEYS = ("a", "b", "c", None)
FAULTS = ("raise",) * 6 + ("slow", "after", "first", "leave", "stop", "produce", "end")
EVENTS = ("step",) * 8 + ("produce", "advance", "advance", "reopen", "leave", "interrupt", "run")
POINTS = (
    "app.processed", "app.offsets", "app.output_first", "app.attempt_begun", "app.applying",
    "app.applied", "txn.flushed", "txn.prepared", "txn.decided",
)  # fmt: skip
POISON = 99
EVENTS_OF_A_RUN = 25
LAST_STEPS = 3000


class Wrong(AssertionError):
    """A run broke a guarantee."""


@dataclass
class Kind:
    """The options of a task."""

    topic: str
    batch: int | None
    retries: tuple[float, ...]
    on_error: str
    counts: bool


class Ended(BaseException):
    """What a task raises in place of the end of its process."""


class Run:
    """An application with random options, and a random script of what happens to it."""

    def __init__(self, seed: int, path: str) -> None:
        """Draw the options."""
        self.random = draw = random.Random(seed)
        self.path = path
        self.guarantee = draw.choice(
            ["exactly_once"] * 4 + ["at_least_once", "at_most_once", "at_most_once"]
        )
        self.partitions = draw.randint(1, 3)
        self.interval = draw.choice([0.0, 0.002, 0.05])
        self.most = draw.choice([1, 2, 3, 5, 1000])
        self.table = draw.choice([None, None, "memory", "memory", "sqlite"])
        self.workers = draw.choice([1, 1, 2])
        self.kinds = [self._kind(f"in{number}") for number in range(draw.choice([1, 1, 2]))]
        self.faults_of = draw.sample(sorted(set(FAULTS)), draw.randint(1, 5))
        self.kills = draw.random() < 0.1
        self.events = [event for event in EVENTS if event == "step" or draw.random() < 0.6]
        self.faults: dict[int, list[str]] = {}
        self.failed: Counter[int] = Counter()
        """Calls that failed with only this record."""
        self.happened: Counter[str] = Counter()
        self.excused: set[int] = set()
        """Records of calls that at_most_once may drop."""
        self.script: list[str] = []
        self.produced = 0
        self.now = time.time()
        self.forked = False
        self.apps: list[eoslog.App] = []

    def _kind(self, topic: str) -> Kind:
        draw = self.random
        delays = (0.0, 0.0, 0.002, 5.0)
        return Kind(
            topic,
            draw.choice([None, 2, 3, 4]),
            tuple(draw.choices(delays, k=draw.choice([0, 1, 2]))),
            draw.choice(["dead_letter", "dead_letter", "skip", "retry", "stop"]),
            self.table is not None and (topic == "in0" or draw.random() < 0.5),
        )

    def __str__(self) -> str:
        return (
            f"{self.guarantee}, {self.partitions} partitions, commit_interval={self.interval}, "
            f"max_records={self.most}, {self.workers} workers, table={self.table}, {self.kinds}\n"
            + "\n".join(self.script)
        )

    # The application.

    def open(self) -> None:
        """Open the log, and declare the applications."""
        self.log = eoslog.open(self.path, durability="os")
        self.log._engine.use_clock(lambda: self.now)
        for topic in [*(kind.topic for kind in self.kinds), "out"]:
            self.log.create_topic(topic, self.partitions, exist_ok=True)
        self.apps = [self._app() for _ in range(self.workers)]
        self.apps[0].create_topics()

    def close(self) -> None:
        """Close the applications and the log."""
        for app in self.apps:
            app.close()
        self.log.close()

    def _app(self) -> eoslog.App:
        app = eoslog.App(
            self.log, "shop", self.guarantee, self.interval, max_records=self.most
        )  # fmt: skip
        table = app.table("counts", default=int, store=self.table) if self.table else None
        for kind in self.kinds:
            options: dict[str, Any] = {
                "batch": kind.batch, "retries": kind.retries, "on_error": kind.on_error,
                "tables": [table] if kind.counts else [], "key": "string", "value": "json",
            }  # fmt: skip
            app.task(kind.topic, **options)(
                self._handler(app, table if kind.counts else None, kind)
            )
        return app

    def _handler(self, app: eoslog.App, table: Any, kind: Kind) -> Callable[..., None]:
        def handle(got: Any, ctx: eoslog.Context) -> None:
            records = [got] if kind.batch is None else got
            self._call(app, table, records, ctx)

        handle.__name__ = f"handle_{kind.topic}"
        return handle

    def _call(self, app: eoslog.App, table: Any, records: list[Any], ctx: eoslog.Context) -> None:
        ids = [record.value for record in records]
        faults = {number: fault for number in ids if (fault := self._fault(number))}
        self.say(f"    call {ids} {ctx.attempt} {faults or ''}")
        sent = False
        for record in records:
            number = record.value
            fault = faults.get(number)
            if fault is not None:
                self._cause(fault, app, ids, sent)
            if fault == "first":
                ctx.send("missing", number)
            if table is not None and record.key is not None:
                table[record.key] += 1
            ctx.send("out", number, record.key)
            sent = True
            if fault == "after":
                ctx.send("missing", number)

    def _fault(self, number: int) -> str | None:
        left = self.faults.get(number)
        return None if not left else left[0] if len(left) >= POISON else left.pop(0)

    def _cause(self, fault: str, app: eoslog.App, ids: list[int], sent: bool) -> None:
        """Do what a fault says, before the output of its record."""
        self.happened[fault] += 1
        if fault in ("raise", "first", "after") and len(ids) == 1:
            self.failed[ids[0]] += 1
        if fault in ("after", "end") or fault == "first" and sent:
            self.excused.update(ids)
        if fault == "slow":
            time.sleep(0.004)
        elif fault == "produce" and not self.forked:
            self._produce(2)
        elif fault == "leave":
            self._leave()
        elif fault == "stop":
            app.stop()
        elif fault == "raise":
            raise ValueError("no")
        elif fault == "end":
            raise Ended

    # The script.

    def say(self, what: str) -> None:
        """Note what happens."""
        self.script.append(what)

    def _produce(self, count: int) -> None:
        draw = self.random
        with self.log.producer(value="json") as producer:
            for _ in range(count):
                number, key = self.produced, draw.choice(KEYS)
                self.produced += 1
                if draw.random() < 0.4:
                    times = draw.choice([1, 1, 2, 3, POISON])
                    fault = draw.choice(self.faults_of)
                    limited = times if fault in ("raise", "after", "first") else 1
                    self.faults[number] = [fault] * limited
                where = None if key is not None else draw.randrange(self.partitions)
                topic = draw.choice(self.kinds).topic
                producer.produce(topic, number, key, partition=where)
                self.say(f"  {topic}: {number} {key} {self.faults.get(number, [])[:3]}")

    def _leave(self) -> None:
        with contextlib.suppress(eoslog.errors.GroupNotFound):
            members = self.log.describe_group("shop").members
            if members:
                member = self.random.choice(sorted(one.member_id for one in members))
                self.log._engine.groups.leave("shop", member)

    def _step(self, app: eoslog.App, do: Callable[[], object] | None = None) -> None:
        try:
            (do or app.step)()
        except TaskFailed as error:
            if not any(kind.on_error == "stop" for kind in self.kinds):
                raise
            self.say(f"    {error}")
        except (Ended, KeyboardInterrupt) as error:
            self.say(f"    {error!r}")
            if self.random.random() < 0.7:
                app.close()
        finally:
            files.disarm_failpoints()

    def _event(self, event: str) -> None:
        app = self.random.choice(self.apps)
        self.say(f"{event} {self.apps.index(app)}")
        if event == "step":
            self._step(app)
        elif event == "produce":
            self._produce(self.random.randint(1, 6))
        elif event == "advance":
            self.now += self.random.choice([0.01, 10.0])
        elif event == "reopen":
            self._reopen(app)
        elif event == "leave":
            self.happened[event] += 1
            self._leave()
        elif event == "interrupt":
            self.happened[event] += 1
            point, nth = self.random.choice(POINTS), self.random.choice([1, 1, 2])
            self.say(f"    {point}:{nth}")
            files.arm_failpoint(point, "interrupt", nth)
            self._step(app)
        elif event == "run":
            self._run(app)
        elif event == "kill":
            self._kill()

    def _reopen(self, app: eoslog.App) -> None:
        """Begin again with new objects, and perhaps with another number."""
        app.close()
        at = self.apps.index(app)
        self.apps[at] = new = self._app()
        if self.random.random() < 0.5:
            self.say("    another number")
            topology = described(list(new._tasks.values()), new._tables.values())
            with Instance(folder_of(self.log.path, "shop"), "shop", topology):
                self._step(new)

    def _run(self, app: eoslog.App) -> None:
        """Run until a record stops the application, which owns all partitions."""
        for other in self.apps:
            other.close()
        number, self.produced = self.produced, self.produced + 1
        self.faults[number] = ["stop"] * POISON
        with self.log.producer(value="json") as producer:
            producer.produce(self.kinds[0].topic, number, partition=0)
        self._step(app, app.run)
        self.faults.pop(number)

    def _kill(self) -> None:
        """Let a process end at a failpoint, or after some steps."""
        self.close()
        point, nth = self.random.choice(POINTS), self.random.choice([1, 2, 3])
        self.say(f"    {point}:{nth}")
        self.happened["kill"] += 1

        def work() -> None:
            self.forked = True
            self.open()
            files.arm_failpoint(point, "kill", nth)
            for _ in range(5):
                with contextlib.suppress(TaskFailed, Ended):
                    self.apps[0].step()
            os._exit(0)

        self.say(f"    {ended(forked(work))}")
        for number in self.faults:
            self.failed[number] += POISON  # its calls are not known
        self.open()

    def run(self, check: Callable[[Run], None]) -> None:
        """Run the script, remove all causes, process what is left, and check.

        Raises:
            Wrong: if a guarantee is broken.
        """
        self.open()
        try:
            self._produce(self.random.randint(4, 12))
            events = [*self.events, "kill"] if self.kills else self.events
            for _ in range(EVENTS_OF_A_RUN):
                self._event(self.random.choice(events))
            self._finish()
            check(self)
        finally:
            files.disarm_failpoints()
            self.close()

    def _finish(self) -> None:
        self.say("finish")
        self.faults.clear()
        if self.random.random() < 0.5:
            while len(self.apps) > 1:
                self.apps.pop().close()
        for _ in range(LAST_STEPS):
            for app in self.apps:
                self._step(app)
            self.now += 10.0
            if all(app._worker and app._worker.caught_up() for app in self.apps):
                return
            time.sleep(0.002)  # members that have left are noticed after some time
        raise Wrong(f"records are left after {LAST_STEPS} steps: {self.log.lag('shop')}")
