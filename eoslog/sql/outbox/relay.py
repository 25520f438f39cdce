"""`OutboxRelay`: each row of a table becomes one record of a topic.

A step publishes a batch of rows. The database decides, as in `log.atomic`:

    1 read rows, without locks
    2 produce their records in a transaction of the log, and prepare it
    3 in one transaction of the database: compare the rows with what was read, delete or mark them,
      and insert the outcome row
    4 decide the transaction of the log to commit

A row is removed if and only if its record is committed, because both follow from step 3. After a
crash, the next relay asks the database for the outcome. If there is none, it inserts a tombstone,
so a relay that was only suspended cannot do step 3 any more.

The relay keeps no position. So a row with a lower id that becomes visible later, and an id that is
used again, are rows as others.

Source: "Transactional outbox" pattern.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from eoslog._util.argument_types import explained_calls
from eoslog._util.arguments import as_int, shown
from eoslog._util.closing import Closing
from eoslog.client.producer.producer import Producer
from eoslog.errors import (
    ConfigError,
    EoslogError,
    IllegalState,
    InvalidPartitions,
    InvalidRecord,
    InvalidTopic,
    OutboxRowRejected,
    RecordTooLarge,
    SerializationError,
    TransactionAborted,
    UnknownTopicOrPartition,
)
from eoslog.shown_paths import get_logger
from eoslog.sql.atomic import AtomicTransaction
from eoslog.sql.database import Database
from eoslog.sql.outbox.leader import FENCED, Leadership, pid_of_claim
from eoslog.sql.outbox.rows import OutboxRow
from eoslog.sql.outbox.table import OutboxTable, RowsChanged
from eoslog.sql.outbox.wakeup import ChangeWaiter

__all__ = ["OutboxRelay", "OutboxStatus"]

logger = get_logger("eoslog.sql")

_OF_THE_ROW = (
    InvalidPartitions, InvalidRecord, InvalidTopic, RecordTooLarge, SerializationError,
    UnknownTopicOrPartition,
)  # fmt: skip
_IDLE_S = 0.5
_STANDBY_S = 0.2
_AGAIN_S = 0.2
_LONGEST_NAME = 200


class OutboxStatus(NamedTuple):
    """The state of an outbox.

    `OutboxRelay.status` returns it::

        print(relay.status().waiting, "rows are not published")
    """

    waiting: int
    """The number of rows that are not published."""
    set_aside: int
    """The number of rows that were set aside."""
    leader: int | None
    """The id of the process whose relay works; None if there is none."""


class _Step(NamedTuple):
    published: int
    idle: bool = False
    """Whether there was nothing to do."""
    leads: bool = True


@explained_calls()
class OutboxRelay(Closing):
    """Publishes the rows of a database table as records, each row once.

    The program inserts rows in its own transactions. The relay publishes rows whose transaction has
    committed, and deletes them::

        with eoslog.sql.OutboxRelay(database, log, name="shop") as relay:
            relay.create()
            relay.run()

    Rows of a transaction come after all rows of transactions that committed before it began. Rows
    of one transaction come in the order of their ids. Order holds within a partition.

    Several relays of a name may run, in several processes. One works. If it is closed or its
    process dies, another one takes over within a second. If its process is suspended, another one
    takes over after 3 s.

    Thread-safe.

    Args:
        database: the database with the table.
        log: the log with the topics.
        name: the name of the relay. It stays the same across restarts. Use one name for each table.
        table: the table, as TABLE or SCHEMA.TABLE.
        columns: the names of the columns of a table that exists, by "id", "topic", "value", "key",
            "headers", "partition", "transaction" and "published"; None as a name means that the
            relay does not use such a column. With a column "published", rows are marked in it
            with the time, and not deleted.
        on_error: what to do with a row that cannot become a record: "stop" raises
            OutboxRowRejected; "set_aside" moves it to TABLE_set_aside with the error.
        records: the most rows of one transaction.
        config: keys of the producer, for example {"max.request.size": 5000000}.

    Raises:
        ConfigError: if an argument is invalid. From `step` and `run`: if the table does not exist
            or lacks columns, or the settings of the database do not allow durable commits.
    """

    def __init__(
        self,
        database: Database,
        log: Any,
        *,
        name: str,
        table: str = "outbox",
        columns: Mapping[str, str | None] | None = None,
        on_error: Literal["stop", "set_aside"] = "stop",
        records: int = 500,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Check the arguments; the first step connects."""
        if not isinstance(database, Database):
            raise ConfigError(f"database: expected an eoslog.sql.Database, got {shown(database)}")
        database._refuse_async("OutboxRelay")
        if not hasattr(log, "_engine") or not hasattr(log, "atomic"):
            raise ConfigError(f"log: expected a Log, got {shown(log)}")
        if not isinstance(name, str) or not 0 < len(name.encode(errors="replace")) <= _LONGEST_NAME:
            raise ConfigError(
                f"name: expected a text of 1 to {_LONGEST_NAME} bytes, got {shown(name)}"
            )
        if on_error not in ("stop", "set_aside"):
            raise ConfigError(f'on_error: expected "stop" or "set_aside", got {shown(on_error)}')
        if as_int("records", records, "1 or more") < 1:
            raise ConfigError(f"records: expected 1 or more, got {records}")
        self.name = name
        self._table = OutboxTable(table, columns)
        self._database = database
        self._log = log
        self._stops = on_error == "stop"
        self._records = records
        self._alone = 0  # rows that are published one by one, to find the one that is rejected
        for key in ("transactional.id", "transactional_id", "name"):
            if key in (config or {}):
                raise ConfigError(
                    f"config: {key}: the relay sets it from its own name; leave it out"
                )
        self._config = {**(config or {}), "transactional.id": f"eoslog-outbox-{name}"}
        self._leadership = Leadership(log, name, lambda: log.producer(self._config))
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._waiter = ChangeWaiter(database, self._table.channel, self._closed)

    def __repr__(self) -> str:
        return f"OutboxRelay({self.name!r}, table={self._table.name!r})"

    def create(self, *, notify: bool = True) -> None:
        """Create what does not exist of the table, TABLE_set_aside and the trigger.

        Args:
            notify: on PostgreSQL, create a trigger that wakes the relay at each insert. Such a
                transaction cannot be prepared with PREPARE TRANSACTION.

        Raises:
            DatabaseUnavailable: if the database is down or too slow; call again.
            DatabaseError: if the database is read-only.
            ConfigError: if the table exists and lacks columns.
        """
        with self._database._session() as session:
            self._table.create(session, notify=notify)
            self._table.inspect(session)

    def status(self) -> OutboxStatus:
        """Return how many rows wait, and which process works.

        Raises:
            DatabaseUnavailable: if the database is down or too slow; call again.
            ConfigError: if the table does not exist, or lacks columns.
        """
        self._database._require_file("outbox")
        with self._database._session() as session:
            waiting = self._table.waiting(session)
            aside = self._table.aside(session)
        return OutboxStatus(waiting, aside, pid_of_claim(self._log, self.name))

    def step(self) -> int:
        """Publish one batch of rows.

        Returns:
            The number of rows that were published; 0 if none wait, or if another relay of the name
            works.

        Raises:
            OutboxRowRejected: if the next row cannot become a record, with `on_error="stop"`.
            DatabaseUnavailable: if the database is down or too slow. Call again.
            ConfigError: if the table does not exist or lacks columns.
            IllegalState: if the relay or the log is closed.

        Durability:
            The records are durable, and the rows are deleted or marked, when the call returns.
        """
        return self._step().published

    def run(self, until: Literal["caught_up"] | None = None) -> int:
        """Publish rows until the relay is closed.

        The relay waits for new rows, and for the end of another relay of the name. It repeats what
        failed because the database was down or busy.

        Args:
            until: "caught_up" returns when no row waits, and raises errors of the database; None
                returns after `close`, which another thread may call.

        Returns:
            The number of rows that this relay has published in the call.

        Raises:
            OutboxRowRejected: if a row cannot become a record, with `on_error="stop"`.
            ConfigError: if `until` has another value, or as `step`.
            IllegalState: if the relay or the log is closed.

        Durability:
            As `step`, for each batch.
        """
        if until not in (None, "caught_up"):
            raise ConfigError(f'until: expected None or "caught_up", got {shown(until)}')
        self._check_open()
        try:
            return self._run(caught_up=until is not None)
        finally:
            self._waiter.close()

    def _run(self, *, caught_up: bool) -> int:
        published, failure = 0, ""
        while not self._closed.is_set():
            try:
                if not caught_up:
                    self._database._require_file("outbox")  # the waiter would create an empty one
                    self._waiter.arm()
                step = self._step()
                published += step.published
                if failure and step.leads:  # others do not use the database
                    logger.info("outbox %r: working again", self.name)
                failure = ""
                if not step.idle:
                    continue
                if caught_up and self._caught_up():
                    break
            except EoslogError as error:
                if self._closed.is_set():
                    break
                if caught_up or not getattr(error, "retriable", False):
                    raise
                if str(error) != failure:  # a database that is down fails in the same way each time
                    failure = str(error)
                    logger.warning("outbox %r: trying again: %s", self.name, failure)
                self._closed.wait(_AGAIN_S)
                continue
            if step.leads and not caught_up:
                self._waiter.wait(_IDLE_S)
            else:
                self._closed.wait(_STANDBY_S)
        return published

    def _caught_up(self) -> bool:
        with self._database._session() as session:
            return self._table.waiting(session) == 0

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise IllegalState(f"outbox {self.name!r}: the relay is closed; create a new one")

    # One step.

    def _step(self) -> _Step:
        with self._lock:
            self._check_open()
            self._database._require_file("outbox")
            try:
                producer = self._leadership.producer(self._recover)
                if producer is None:
                    return _Step(0, idle=True, leads=False)
                with self._database._session() as session:
                    rows = self._table.read(session, 1 if self._alone else self._records)
                return self._publish(producer, rows) if rows else _Step(0, idle=True)
            except FENCED as error:
                logger.info("outbox %r: this relay is fenced: %s", self.name, error)
                self._leadership.lose()
                return _Step(0, idle=True, leads=False)

    def _recover(self, producer: Producer) -> None:
        AtomicTransaction(self._log, producer, self._database)._decide_earlier()

    def _publish(self, producer: Producer, rows: Sequence[OutboxRow]) -> _Step:
        try:
            return self._publish_unchanged(producer, rows)
        except (RowsChanged, TransactionAborted) as changed:
            logger.info("outbox %r: reading again: %s", self.name, changed)
            return _Step(0)

    def _publish_unchanged(self, producer: Producer, rows: Sequence[OutboxRow]) -> _Step:
        published: list[OutboxRow] = []
        aside: list[tuple[OutboxRow, OutboxRowRejected]] = []
        transaction = _RelayTransaction(self._log, producer, self._database, self._table)
        try:
            with transaction as tx:
                for row in rows:
                    try:
                        self._produce(tx, row)
                    except OutboxRowRejected as rejected:
                        if self._stops or row.id is None:
                            if not published and not aside:
                                raise
                            break  # first publish the rows before it
                        aside.append((row, rejected))
                    else:
                        published.append(row)
                transaction.changes(published, aside)
        except _OF_THE_ROW as rejection:
            return self._isolate(producer, rows, rejection)
        self._alone = max(0, self._alone - len(published) - len(aside))
        for row, error in aside:
            logger.warning("outbox %r: row %s set aside: %s", self.name, row.id, error)
        return _Step(len(published))

    def _produce(self, tx: AtomicTransaction, row: OutboxRow) -> None:
        if row.id is None:
            raise self._rejected(row, "the id is NULL; give the row an id")
        try:
            topic, content = row.record()
            tx.produce(topic, **content)
        except _OF_THE_ROW as error:
            raise self._rejected(row, str(error)) from error

    def _rejected(self, row: OutboxRow, why: str) -> OutboxRowRejected:
        return OutboxRowRejected(f"table {self._table.name}, row {row.id}: {why}", row.id)

    def _isolate(self, producer: Producer, rows: Sequence[OutboxRow], error: EoslogError) -> _Step:
        """Find the row that the log has rejected after it was buffered."""
        if len(rows) > 1:
            self._alone = len(rows)
            return _Step(0)
        self._alone = 0
        rejected = self._rejected(rows[0], str(error))
        if self._stops:
            raise rejected from error
        transaction = _RelayTransaction(self._log, producer, self._database, self._table)
        with transaction:
            transaction.changes((), [(rows[0], rejected)])
        logger.warning("outbox %r: row %s set aside: %s", self.name, rows[0].id, rejected)
        return _Step(0)

    def close(self) -> None:
        """Stop `run`, and let another relay of the name work. A second call does nothing."""
        self._closed.set()
        with self._lock:
            self._leadership.resign()


class _RelayTransaction(AtomicTransaction):
    """A transaction whose database part begins after the log's part is prepared.

    So no lock of the database is held while the log waits for its disk.
    """

    def __init__(
        self, log: Any, producer: Producer, database: Database, table: OutboxTable
    ) -> None:
        super().__init__(log, producer, database)
        self._table = table
        self._published: Sequence[OutboxRow] = ()
        self._aside: Sequence[tuple[OutboxRow, OutboxRowRejected]] = ()

    def changes(
        self, published: Sequence[OutboxRow], aside: Sequence[tuple[OutboxRow, OutboxRowRejected]]
    ) -> None:
        """The rows to remove at the end of the block."""
        self._published, self._aside = published, aside

    def _join_database(self) -> None:
        pass

    def _commit_database(self, token: str) -> None:
        session = self._begun()
        for row, rejected in self._aside:
            self._table.set_aside(session, row, rejected.message)
        self._table.take(session, [*self._published, *(row for row, _ in self._aside)])
        super()._commit_database(token)
