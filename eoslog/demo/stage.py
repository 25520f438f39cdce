"""The parent process of the demo: starts processes, causes faults, and reports."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

import eoslog
from eoslog.demo import (
    arrow_job,
    dataset,
    evidence,
    faults,
    plan,
    plot,
    report,
    tables,
    verify,
)
from eoslog.demo.child import Child, ChildFailed
from eoslog.model import TopicPartition

PATIENCE = 420.0
"""Seconds that any one step may take; all together must stay below ten minutes."""

TOPICS = {
    plan.SOURCE: 1,
    plan.FAULTS: 1,
    plan.FLIGHTS: plan.FLIGHTS_PARTITIONS,
    plan.DELAYS: plan.DELAYS_PARTITIONS,
    plan.CARRIER_DELAYS: plan.CARRIER_DELAYS_PARTITIONS,
}


class Stage:
    """One run of the demo in one directory.

    Invariants: every child is reaped at exit, whatever happens; the parent itself writes nothing
    but the notes on the kills that it did.
    """

    def __init__(self, directory: Path, limit: int | None) -> None:
        self.directory = directory
        self.limit = limit
        self._cleanup = contextlib.ExitStack()
        self._children: list[Child] = []
        self._console = Console(stderr=True)
        self._out = Console(width=None if Console().is_terminal else 110)

    def __enter__(self) -> Self:
        try:
            self._set_up()
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def _set_up(self) -> None:
        self._progress = self._cleanup.enter_context(
            Progress(
                TextColumn("{task.description:<28}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self._console,
            )
        )
        loading = self._progress.add_task("read the data set", total=1)
        self.table = dataset.load(self.limit)
        self._progress.advance(loading)
        self.script = plan.Script.for_rows(self.table.num_rows)
        self.log = self._cleanup.enter_context(eoslog.open(self.directory, plan.SETTINGS))
        for topic, partitions in TOPICS.items():
            self.log.create_topic(topic, partitions)
        self.notes = faults.Notes(self.log)
        self._cleanup.callback(self.notes.close)
        self._cleanup.callback(self._end_children)

    def __exit__(self, kind: object, *rest: object) -> None:
        self._cleanup.close()
        if kind is not None:
            self.print(f"kept for a look: {self.directory}")

    def print(self, text: str) -> None:
        """Print a message to the user above the progress bars."""
        self._console.print(text, highlight=False)

    # -- step 1: ingest and transform, with all the faults

    def ingest_and_transform(self) -> None:
        """Run producer instances and workers until both topics have every flight."""
        rows = self.script.rows
        self._ingested = self._progress.add_task("ingest into flights", total=rows)
        self._transformed = self._progress.add_task("transform into delays", total=rows)
        self._workers = [
            self._worker(1, 1, "--pause-after", str(self.script.worker_rows)),
            self._worker(2, 1),
        ]
        self._doomed: Child | None = self._workers[0]
        self._done_before = 0
        joined = self._workers[:]
        self._until(lambda: all("joined" in worker.said for worker in joined), *joined)

        zombie = self._ingest(1, "--pause-at", str(self.script.zombie_row))
        self._until(lambda: "paused" in zombie.said, zombie)
        heir = self._ingest(2, "--pause-at", str(self.script.kill_row))
        self._until(lambda: "ready" in heir.said, heir)
        zombie.tell("go on")
        self._until(lambda: not zombie.running)
        zombie.expect(plan.EXIT_FENCED)

        self._until(lambda: "paused" in heir.said, heir)
        self._kill(heir, "ingest-2")
        last = self._ingest(3)
        self._until(lambda: not last.running)
        last.expect(0)

        self._until(self._all_transformed)
        for worker in self._workers:
            worker.tell("stop")
        self._until(lambda: not any(worker.running for worker in self._workers))
        for worker in self._workers:
            worker.expect(0)
        self._progress.update(self._transformed, completed=rows)

    def _ingest(self, instance: int, *options: str) -> Child:
        limit = () if self.limit is None else ("--limit", str(self.limit))
        return self._start("ingest", instance, *limit, *options)

    def _worker(self, slot: int, instance: int, *options: str) -> Child:
        chunk = str(self.script.chunk)
        return self._start("worker", instance, "--slot", str(slot), "--chunk", chunk, *options)

    def _start(self, module: str, instance: int | None, *options: str) -> Child:
        number = () if instance is None else ("--instance", str(instance))
        child = Child(
            f"{module} {instance or ''}".strip(),
            f"eoslog.demo.{module}",
            "--dir",
            str(self.directory),
            *number,
            *options,
        )
        self._children.append(child)
        return child

    def _kill(self, child: Child, role: str) -> None:
        """Kill a process that paused in a transaction, and note the kill."""
        name, _, instance = role.rpartition("-")
        status = child.kill()
        if status != -9:
            raise ChildFailed(f"{child.name}: exit status {status} after SIGKILL")
        writer = plan.writer_name(name, int(instance), child.pid)
        self.notes.note(faults.KILLED, writer, status=status)

    def _replace_worker(self) -> None:
        """Kill the first worker when it pauses in a transaction; start another."""
        doomed = self._doomed
        if doomed is None or "paused" not in doomed.said:
            return
        self._doomed = None
        self._done_before = doomed.said["paused"]["done"]
        self._kill(doomed, "worker1-1")
        self._workers[0] = self._worker(1, 2)

    def _all_transformed(self) -> bool:
        """Say whether the group has committed past the last flight of each partition."""
        if self._doomed is not None:
            return False
        if not hasattr(self, "_ends"):
            self._ends = last_offsets(self.log, plan.FLIGHTS)
            self._reader = self._cleanup.enter_context(
                self.log.consumer(group_id=plan.WORKER_GROUP)
            )
        committed = self._reader.committed([TopicPartition(*place) for place in self._ends])
        return all(
            found.offset is not None and found.offset > self._ends[found.topic, found.partition]
            for found in committed
        )

    # -- step 2: join and aggregate

    def aggregate(self, *, spark: bool) -> None:
        """Join both topics and write the aggregate, with Spark or without."""
        if not spark:
            task = self._progress.add_task("join and aggregate", total=1)
            arrow_job.run(self.log)
            self._progress.advance(task)
            return
        task = self._progress.add_task("Spark: join and aggregate", total=4)
        job = self._start("spark_job", None)
        steps = ("started", "aggregated", "written", "done")

        def over() -> bool:
            self._progress.update(task, completed=sum(step in job.said for step in steps))
            return not job.running

        self._until(over)
        job.expect(0)
        self._progress.update(task, completed=len(steps))
        told = job.said["done"]
        if told["differing"] or told["read_back"] != told["groups"]:
            raise ChildFailed(f"Spark wrote {told['groups']} groups and read back: {told}")

    # -- step 3: the reckoning

    def reckon(self, picture: Path, started: float) -> bool:
        """Check everything against the data set, draw, print; True if nothing differs."""
        task = self._progress.add_task("check against the data set", total=3)
        found = evidence.gather(self.directory, [plan.FLIGHTS, plan.DELAYS, plan.CARRIER_DELAYS])
        self._progress.advance(task)
        checks = verify.run(self.log, self.table, found)
        self._progress.advance(task)
        plot.draw(tables.read(self.log, plan.CARRIER_DELAYS), picture)
        self._progress.advance(task)
        self._progress.stop()
        happened = report.rows(found)
        self._out.print(faults_table(happened))
        self._out.print(checks_table(checks))
        zeros = [row.what for row in happened if not row.count]
        wrong = [check.what for check in checks if not check.ok]
        for what in zeros:
            self.print(f"[red]nothing in the log shows:[/red] {what}")
        for what in wrong:
            self.print(f"[red]differs:[/red] {what}")
        seconds = time.monotonic() - started
        verdict = "exactly once" if not zeros and not wrong else "FAILED"
        self.print(f"{verdict}: {len(checks)} checks in {seconds:.0f} s; see {picture}")
        return not zeros and not wrong

    # -- waiting

    def _until(self, condition: Callable[[], bool], *needed: Child) -> None:
        """Keep bars and faults going until `condition` holds.

        Raises:
            ChildFailed: A process in `needed`, or a worker, ended before; or it took too long.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            self._tick()
            if condition():
                return
            for child in needed:
                if not child.running and not condition():
                    child.wait(10)
                    raise ChildFailed(f"{child.name} ended too early\n{child.errors()}")
            if time.monotonic() > deadline:
                running = ", ".join(child.name for child in self._children if child.running)
                raise ChildFailed(f"no progress for {PATIENCE:.0f} s; running: {running}")
            time.sleep(0.05)

    def _tick(self) -> None:
        for child in self._children:
            child.drain()
        if hasattr(self, "_workers"):
            self._replace_worker()
            for worker in self._workers:
                if not worker.running and worker.wait(5) != 0:
                    raise ChildFailed(f"{worker.name} failed\n{worker.errors()}")
            done = self._done_before + sum(said(w, "progress", "done") for w in self._workers)
            self._progress.update(self._transformed, completed=done)
            row = max((said(c, "progress", "row") for c in self._children), default=0)
            self._progress.update(self._ingested, completed=row)

    def _end_children(self) -> None:
        for child in self._children:
            child.close()


def said(child: Child, event: str, name: str) -> int:
    """Return a number that a child said last, 0 if it has not."""
    return int(child.said.get(event, {}).get(name, 0))


def last_offsets(log: eoslog.Log, topic: str) -> dict[tuple[str, int], int]:
    """Return the offset of the last committed record of each partition that has any."""
    found: dict[tuple[str, int], int] = {}
    for batch in log.scan(topic, columns=["partition", "offset"]):
        partitions, offsets = batch.column("partition"), batch.column("offset")
        for partition, offset in _last_of_each(partitions.to_numpy(), offsets.to_numpy()):
            found[topic, partition] = max(offset, found.get((topic, partition), -1))
    return found


def _last_of_each(partitions: Any, offsets: Any) -> Iterator[tuple[int, int]]:
    for partition in set(partitions.tolist()):
        yield partition, int(offsets[partitions == partition].max())


def faults_table(rows: list[report.Row]) -> Any:
    """Lay out the report on the faults."""
    from rich.table import Table

    table = Table(title="What the log shows", title_justify="left")
    table.add_column("what happened")
    table.add_column("times", justify="right")
    table.add_column("records", justify="right")
    table.add_column("seen in the log as")
    for row in rows:
        times = f"{row.count:,}" if row.count else "[red]0[/red]"
        table.add_row(row.what, times, f"{row.records:,}", row.proof)
    return table


def checks_table(checks: list[verify.Check]) -> Any:
    """Lay out the checks."""
    from rich.table import Table

    table = Table(title="Against the data set", title_justify="left")
    table.add_column("check")
    table.add_column("data set", justify="right")
    table.add_column("log", justify="right")
    table.add_column("")
    for check in checks:
        verdict = "ok" if check.ok else "[red]DIFFERS[/red]"
        table.add_row(check.what, f"{check.expected:,}", f"{check.found:,}", verdict)
    return table
