"""`eoslog.App`: the declarations of an application, and its runs."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import re
import signal
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from eoslog._util.argument_types import explained_calls
from eoslog._util.arguments import as_directory, as_int, as_list_of, as_seconds, shown
from eoslog._util.closing import Closing
from eoslog.app.clients import guarantee_of, longest_step_s
from eoslog.app.instance import Instance, folder_of
from eoslog.app.tables.table import AppTable
from eoslog.app.task_watch import watched
from eoslog.app.tasks import Task, task_of
from eoslog.app.topology import check_topics, create_topics, described
from eoslog.app.worker import AppWorker
from eoslog.errors import ConfigError, IllegalState
from eoslog.log import Log
from eoslog.opening import open as open_log
from eoslog.reports import RunReport
from eoslog.shown_paths import get_logger

if TYPE_CHECKING:
    from eoslog.app.supervisor import Watch
    from eoslog.app.task_calls import TaskCalls
    from eoslog.options import BatchFormat, Format, Guarantee, OnError

__all__ = ["App"]

logger = get_logger("eoslog.app")

F = TypeVar("F", bound=Callable[..., Any])

_LEGAL_ID = re.compile(r"[A-Za-z0-9._-]{1,200}")
_WAIT_S = 0.5
_CAUGHT_UP_WAIT_S = 0.05


@explained_calls()
class App(Closing):
    """An application: functions over topics that commit with their positions.

    Output, tables and the position in the input are one transaction. After a crash, the next run
    continues at the position of the last transaction that has committed::

        app = eoslog.App("shop", "billing")

        @app.task("orders", key="string", value="string", to="bills")
        def bill(order, ctx):
            return f"bill for {order.value}"

        app.create_topics()
        app.run(until="caught_up")

    Any number of processes can run an application with the same id. They are members of one
    consumer group, which has that id, and share the partitions of the input topics.

    Args:
        path_or_log: the directory of the log, which is opened at the first use, or a `Log`.
        id: the id of the application, and of its consumer group: letters, digits, ".", "_", "-".
        processing_guarantee: "exactly_once", "at_least_once" or "at_most_once".
        commit_interval: the longest time of a transaction in seconds, unless a task takes longer.
        max_records: the most input records of a transaction.

    Raises:
        ConfigError: if an argument is invalid.
    """

    def __init__(
        self,
        path_or_log: str | os.PathLike[str] | Log,
        id: str,  # noqa: A002
        processing_guarantee: Guarantee = "exactly_once",
        commit_interval: float = 0.1,
        *,
        max_records: int = 1000,
    ) -> None:
        """Declare an application without tasks; nothing is opened."""
        if not isinstance(id, str) or not _LEGAL_ID.fullmatch(id) or id in (".", ".."):
            raise ConfigError(
                f"id: expected 1 to 200 letters, digits, '.', '_' and '-', got {shown(id)}"
            )
        self._given = path_or_log if isinstance(path_or_log, Log) else None
        self._path = path_or_log.path if isinstance(path_or_log, Log) else as_directory(path_or_log)
        self._id = id
        self._guarantee = guarantee_of(processing_guarantee)
        self._commit_interval = as_seconds("commit_interval", commit_interval)
        self._longest_s = longest_step_s(self._guarantee)
        if self._commit_interval >= self._longest_s:
            raise ConfigError(
                f"app {id!r}: commit_interval: expected less than {self._longest_s:g} s with "
                f"processing_guarantee={self._guarantee!r}, got {self._commit_interval:g}"
            )
        if as_int("max_records", max_records, "1 or more") < 1:
            raise ConfigError(f"max_records: expected 1 or more, got {max_records}")
        self._max_records = max_records
        self._tasks: dict[str, Task] = {}
        self._tables: dict[str, AppTable] = {}
        self._watch: Callable[[TaskCalls], AbstractContextManager[None]] = watched
        self._reset()
        _apps.add(self)

    def _reset(self) -> None:
        """Have no run and no handles, as in a new application."""
        self._opened: Log | None = None
        self._worker: AppWorker | None = None
        self._lock = threading.RLock()
        """Held where a run begins, ends or is stopped; a signal handler may stop it there too."""
        self._running = False
        self._stopping = False
        """Whether the run that is current, or the next one, must end."""

    @classmethod
    def _of_handler(
        cls,
        log: Log,
        id: str,  # noqa: A002
        topic: str,
        handler: Callable[..., Any],
        options: Mapping[str, Any],
    ) -> App:
        """Declare an application with one task; see `Log.process`."""
        own = inspect.signature(cls.__init__).parameters
        app = cls(log, id, **{name: options[name] for name in options if name in own})
        app.task(topic, **{name: options[name] for name in options if name not in own})(handler)
        return app

    def __repr__(self) -> str:
        return f"<App {self._id!r} of {self._path!r}, {len(self._tasks)} tasks>"

    @property
    def id(self) -> str:
        """The id of the application, and of its consumer group."""
        return self._id

    @property
    def path(self) -> str:
        """The directory of the log."""
        return self._path

    @property
    def log(self) -> Log:
        """The log, which is opened at the first use.

        Raises:
            EoslogError: if the directory cannot be opened.
        """
        if self._given is not None:
            return self._given
        if self._opened is None:
            self._opened = open_log(self._path)
        return self._opened

    # Declarations.

    def task(
        self,
        topic: str,
        *,
        key: Format = None,
        value: Format = None,
        to: str | None = None,
        tables: Sequence[AppTable] = (),
        batch: int | None = None,
        batch_format: BatchFormat = "records",
        retries: Sequence[float] = (),
        on_error: OnError = "stop",
        max_deaths: int = 3,
        task_timeout: float | None = None,
    ) -> Callable[[F], F]:
        """Declare a function as the task of a topic; use it as a decorator.

        The function gets a record and a `Context`. What it sends, and what it changes in tables,
        commits together with the position after the record. If it raises, none of it remains.

        Args:
            topic: the input topic.
            key: the format of keys: "string", "json", "integer", "long", "double", "uuid",
                "msgpack", or a callable that takes the bytes. None: keys stay bytes. Keys that
                the function sends have the same format, unless they are bytes.
            value: the format of values, as `key`.
            to: the topic of the returned value, with the key of the record; None means that the
                result is not used. A function that yields sends a record for each value.
            tables: the tables that the function uses.
            batch: the most records of a call. The function then gets a list of records.
            batch_format: "records", or "arrow" for a pyarrow RecordBatch.
            retries: the delays before further attempts, in seconds.
            on_error: what happens to a record after the last attempt: "stop", "skip", "retry" or
                "dead_letter".
            max_deaths: how many processes a record may end before it goes to the dead letters.
            task_timeout: the longest call in seconds; None means 60. With "exactly_once", it is at
                most 870 minus `commit_interval`.

        Returns:
            A decorator, which returns the function unchanged.

        Raises:
            ConfigError: if an option is invalid, or the topic has a task already.
            InvalidTopic: if the name of a topic is invalid.
        """
        if callable(topic):
            raise ConfigError(
                f"app {self._id!r}: a task needs the topic of its records, got {shown(topic)}; "
                'write @app.task("topic")'
            )
        options = {
            "key": key, "value": value, "to": to, "batch": batch, "batch_format": batch_format,
            "retries": retries, "on_error": on_error, "max_deaths": max_deaths,
            "task_timeout": task_timeout,
        }  # fmt: skip

        def declare(handler: F) -> F:
            if not callable(handler):
                raise ConfigError(f"task: expected a function, got {shown(handler)}")
            task = task_of(handler, topic, options, self._own(tables))
            most = self._longest_s - self._commit_interval
            if task.task_timeout > most:
                raise ConfigError(
                    f"app {self._id!r}, task {task.name!r}: task_timeout: expected at most "
                    f"{most:g} s with processing_guarantee={self._guarantee!r} and commit_interval="
                    f"{self._commit_interval:g}, got {task.task_timeout:g}; let the task do less"
                )
            for other in self._tasks.values():
                if other.topic == topic:
                    raise ConfigError(
                        f"app {self._id!r}, task {task.name!r}: topic {topic!r} has task "
                        f"{other.name!r}; call both from one function, or declare another "
                        "application"
                    )
                if other.name == task.name:
                    raise ConfigError(
                        f"app {self._id!r}, task {task.name!r}: the task of topic "
                        f"{other.topic!r} has the same name; use functions with other names"
                    )
            self._tasks[task.name] = task
            return handler

        return declare

    def _own(self, tables: Sequence[AppTable]) -> list[AppTable]:
        found = as_list_of(AppTable, "tables", "tables", tables)
        for table in found:
            if self._tables.get(table.topic) is not table:
                raise ConfigError(
                    f"app {self._id!r}: {table} is not a table of this application; declare it "
                    "with app.table"
                )
        return found

    def table(
        self,
        topic: str,
        key: Format = "string",
        value: Format = "json",
        default: Callable[[], Any] | None = None,
        store: Literal["memory", "sqlite"] = "memory",
    ) -> AppTable:
        """Declare a table: state of tasks that commits with the position.

        A table is a topic with `cleanup.policy=compact`, with as many partitions as the topics of
        its tasks. A worker reads its partitions when it gets them.

        Args:
            topic: the topic.
            key: the format of keys, as for `task`, but not a function.
            value: the format of values, as `key`.
            default: a function without arguments that gives the value of a missing key; None raises
                KeyError for one.
            store: "memory" has the rows in memory, and reads the topic when a worker gets a
                partition. "sqlite" has them in files in the directory of the log. It can have more
                rows than memory, and reads only what a file does not have.

        Returns:
            The table. Name it in the `tables` of each task that uses it.

        Raises:
            ConfigError: if an option is invalid, or the topic is a table already.
            InvalidTopic: if the name of the topic is invalid.
        """
        table = AppTable(self._id, topic, key, value, default, store)
        if topic in self._tables:
            raise ConfigError(
                f"app {self._id!r}: topic {topic!r} is a table already; use the table that "
                "app.table has returned"
            )
        self._tables[topic] = table
        return table

    def create_topics(self, partitions: int = 1) -> list[str]:
        """Create the topics of the tasks and tables that do not exist.

        A table gets the partitions of its task's topic, and is compacted.

        Args:
            partitions: the number of partitions of new input topics.

        Returns:
            The names of the topics that were created.

        Raises:
            ConfigError: if the topics that exist do not fit.
        """
        return create_topics(self.log, self._id, self._tasks.values(), partitions)

    # Runs.

    def run(
        self,
        processes: int = 1,
        until: Literal["caught_up"] | None = None,
        *,
        watch: Watch | None = None,
    ) -> RunReport:
        """Process records until `stop` is called, or until no record is left.

        In the main thread, SIGTERM and SIGINT end the run after the current transaction. A third
        signal has its usual effect, which also ends a task that hangs.

        With more than one process, or with `watch`, this process only starts the others, by forks
        that open the log themselves. A process that is killed is started again, after a delay that
        doubles up to 10 s. What it has committed in its last half second is not in the report.

        Args:
            processes: the number of processes.
            until: "caught_up" ends the run when no input record is left, and none waits for another
                attempt, also in other processes; None continues.
            watch: called twice a second with a list of `ProcessStatus`, one for each process.

        Returns:
            What the run has done.

        Raises:
            TaskFailed: if a task has failed for a record, and its `on_error` is "stop".
            TopologyChanged: if another process runs this application with other tasks or tables.
            UnknownTopicOrPartition: if a topic does not exist.
            ConfigError: if an argument is invalid, or the topics do not fit.
            IllegalState: if the application runs already.
            EoslogError: if the log cannot be used.
        """
        if until not in (None, "caught_up"):
            raise ConfigError(f"until: expected 'caught_up' or None, got {shown(until)}")
        if as_int("processes", processes, "1 or more") < 1:
            raise ConfigError(f"processes: expected 1 or more, got {processes}")
        with self._exclusive(leaves=True):
            if self._stopping:
                logger.warning("app %s: stop() came before run(), the run ends", self._id)
            if processes > 1 or watch is not None:
                return self._supervise(processes, until, watch)
            began = time.monotonic()
            worker = self._begun()
            wait = _WAIT_S if until is None else _CAUGHT_UP_WAIT_S
            with self._signals(worker.calls), self._watch(worker.calls):
                while not self._stopping:
                    worker.step(wait, linger=until is None)
                    if until is not None and worker.caught_up():
                        break
        worker.report.seconds = time.monotonic() - began
        return worker.report

    def _supervise(self, processes: int, until: str | None, watch: Watch | None) -> RunReport:
        from eoslog.app.supervisor import Supervisor

        if not self._tasks:
            raise ConfigError(f"app {self._id!r}: it has no task; declare one with @app.task")
        self._handles().close()  # the processes open the log themselves
        return Supervisor(self, processes, until, watch).run()

    def step(self) -> int:
        """Process the available records in one transaction, without waiting for more.

        Returns:
            The number of records; 0 if there are none, or the transaction was rolled back.

        Raises:
            EoslogError: as `run`.
        """
        with self._exclusive(leaves=False):
            return self._begun().step(0, linger=False)

    @contextlib.contextmanager
    def _exclusive(self, *, leaves: bool) -> Iterator[None]:
        """Refuse other runs in the block, and end it.

        Args:
            leaves: leave the group after the block, also if `stop` was not called.
        """
        with self._lock:
            if self._running:
                raise IllegalState(f"app {self._id!r}: the application runs already; stop it first")
            self._running = True
        try:
            yield
        finally:
            with self._lock:
                self._running = False
                handles = self._handles() if leaves or self._stopping else contextlib.ExitStack()
                self._stopping = False
            handles.close()

    def stop(self) -> None:
        """End a run after its current transaction; any thread can call it.

        Without a run, it ends the membership in the group that `step` has begun. Without that too,
        it ends the next run before its first transaction, so a run that is about to begin ends.
        """
        with self._lock:
            self._stopping = self._running or self._worker is None
            handles = contextlib.ExitStack() if self._running else self._handles()
            if self._worker is not None:
                self._worker.wakeup()
        handles.close()

    def close(self) -> None:
        """Leave the group, and close the log if the application has opened it.

        Raises:
            IllegalState: if the application runs, for example if a task calls it; use `stop`.
        """
        with self._lock:
            if self._running:
                raise IllegalState(
                    f"app {self._id!r}: close was called during a run; call stop first"
                )
            handles = self._handles()
        handles.close()

    def _handles(self) -> contextlib.ExitStack:
        """Give up the worker and the log, which the returned stack closes."""
        handles = contextlib.ExitStack()
        if self._opened is not None:
            handles.callback(self._opened.close)
        if self._worker is not None:
            handles.callback(self._worker.close)
        self._opened = self._worker = None
        return handles

    def _begun(self) -> AppWorker:
        """The worker of this process, which is created at the first use."""
        log = self.log
        if self._worker is None:
            tasks = list(self._tasks.values())
            if not tasks:
                raise ConfigError(f"app {self._id!r}: it has no task; declare one with @app.task")
            if any(task.is_async for task in tasks):
                self._refuse_in_event_loop()
            check_topics(log, self._id, tasks)
            topology = described(tasks, self._tables.values())
            instance = Instance(folder_of(log.path, self._id), self._id, topology)
            try:
                self._worker = AppWorker(
                    log, self._id, tasks, instance, self._guarantee, self._commit_interval,
                    self._max_records, lambda: self._stopping,
                )  # fmt: skip
            except BaseException:
                instance.close()
                raise
        return self._worker

    def _refuse_in_event_loop(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise IllegalState(
            f"app {self._id!r}: a task is a coroutine function, which cannot run in a thread that "
            "runs an event loop already, as in a notebook; use await asyncio.to_thread(app.run)"
        )

    @contextlib.contextmanager
    def _signals(self, calls: TaskCalls) -> Iterator[None]:
        """End the run after its transaction at SIGTERM and SIGINT, in the main thread.

        The second one says what the run waits for. A third one has its usual effect.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGTERM, signal.SIGINT)
        before: dict[int, Any] = {}
        came = Counter[int]()  # by number: a supervisor sends one of its own

        def handle(number: int, _: object) -> None:
            came[number] += 1
            self.stop()
            if came[number] == 1:
                logger.info("app %s: the run ends after its transaction", self._id)
            elif came[number] == 2:
                logger.warning(
                    "app %s: the run waits for its transaction: %s; a third signal interrupts it",
                    self._id, calls.running_call() or "no task runs",
                )  # fmt: skip
            else:
                signal.signal(number, before[number])
                signal.raise_signal(number)

        for number in numbers:
            before[number] = signal.signal(number, handle)
        try:
            yield
        finally:
            for old, handler in before.items():
                signal.signal(old, handler)


_apps: weakref.WeakSet[App] = weakref.WeakSet()


def _after_fork() -> None:
    for app in list(_apps):
        app._given = None  # a handle of the parent, as those that it has opened
        app._reset()


os.register_at_fork(after_in_child=_after_fork)
