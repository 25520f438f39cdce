"""The coordinator of two-phase commits, whose decisions are in a log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from eoslog._util.arguments import as_seconds, shown
from eoslog._util.closing import Closing
from eoslog.client.prepared import pending, register_resolver, resolve
from eoslog.client.producer.numbered_ids import NumberedId
from eoslog.client.producer.producer import Producer
from eoslog.coordinator.checks.checks import Registration
from eoslog.coordinator.transactions.held_outcomes import HELD_UNTIL_MS, held, release
from eoslog.descriptions import PreparedTransaction
from eoslog.engine.engine import Engine
from eoslog.engine.prepared_view import decode_meta, encode_meta
from eoslog.errors import (
    ConfigError,
    EoslogError,
    IllegalState,
    OutcomeConflict,
    UnknownToken,
)
from eoslog.model import Outcome
from eoslog.shown_paths import get_logger
from eoslog.storage.fs.files import failpoint
from eoslog.tpc.participants import (
    DatabaseParticipant,
    Participant,
    ProducerParticipant,
    check_can_take_part,
)
from eoslog.tpc.records import (
    gid_prefix,
    open_meta,
    open_places,
    resolver_name,
    token_of_branch,
    token_of_gid,
)
from eoslog.tpc.transaction import TwoPhaseTransaction

__all__ = ["Coordinator"]

logger = get_logger("eoslog.tpc")

_ID = "eoslog.tpc"


class _Running:
    """The transactions of one log that run in this process.

    `recording` is held from the record of a transaction until `tokens` has its token.
    """

    def __init__(self) -> None:
        self.recording = threading.Lock()
        self.tokens: set[str] = set()


_running: WeakKeyDictionary[Engine, _Running] = WeakKeyDictionary()


class Coordinator(Closing):
    """Commits databases and producers together, and decides in a log.

    The resources are connections of psycopg 3 to any number of PostgreSQL databases, and producers
    of any logs::

        coordinator = eoslog.tpc.Coordinator(log)
        coordinator.recover(bank, shop)
        with coordinator.transaction(bank, shop, producer):
            bank.execute("update account set money = money - 5 where name = 'ada'")
            shop.execute("insert into sale values ('ada', 5)")
            producer.produce("sales", "5", key="ada")

    The log decides, and makes the decision durable before any resource commits. If the process
    dies, what it has prepared hangs in the databases, with its locks. `transaction` and `recover`
    complete it: they commit what was decided. They abort in the log what was not decided, and then
    roll it back in the databases.

    Each database must allow prepared transactions: `max_prepared_transactions` is 0 by default.

    Thread-safe, but use a connection in one thread at a time. Any number of processes can
    coordinate with the same log.

    Args:
        log: the open log that decides.

    Raises:
        ConfigError: if `log` is not an open log, or its decisions do not survive power loss
            (`durability="os"`).
        StorageError: if the log is open for reading only.
    """

    def __init__(self, log: Any) -> None:
        """Answer for the transactions that this log decides from now on."""
        engine = getattr(log, "_engine", None)
        if not isinstance(engine, Engine):
            raise ConfigError(
                f"Coordinator: expected an open log, got {shown(log)}; use eoslog.open()"
            )
        if engine.durability != "strict":
            raise ConfigError(
                f"Coordinator: {engine.path} has durability={engine.durability!r}, so power loss "
                "can take a decision that databases have followed; use a log with "
                "durability='strict'"
            )
        self._log = log
        self._engine: Engine = engine.for_writing()
        self._cluster_id: str = self._engine.properties.cluster_id
        self._resolver = resolver_name(self._cluster_id)
        self._mutex = threading.Lock()
        self._closed = False
        self._producer: Producer | None = None
        self._id = NumberedId(self._engine, _ID)
        self._running = _running.setdefault(self._engine, _Running())
        self._registrations: dict[Engine, Registration] = {}
        self._answer_for(self._engine)

    def __repr__(self) -> str:
        return f"<Coordinator of {self._cluster_id}{', closed' if self._closed else ''}>"

    def transaction(self, *resources: Any) -> TwoPhaseTransaction:
        """Return a transaction of several resources, as a context manager.

        Entering the block first completes what dead processes have left in these resources.

        Args:
            resources: connections of psycopg 3 without an open transaction, and producers with a
                `transactional.id` that are in no transaction.

        Raises:
            ConfigError: if a resource is of another type, or appears twice, or is a producer with
                a `name` or of a log with `durability="os"`. From the block: if
                `max_prepared_transactions` of a database is 0, or its commits are not durable.
                Then nothing has begun.
            IllegalState: if the coordinator is closed. From the block: if a resource is in a
                transaction, or the program has ended one inside the block.
            DatabaseUnavailable: from the block, if a database is down.
            TransactionAborted: from the end of the block, if a recovery has aborted it.
            EoslogError: from the end of the block, if a resource cannot prepare, or the log cannot
                be written. Nothing is committed.

        Durability:
            After the block, the decision survives power loss, and so do all resources that
            committed. A resource that was down commits at the next `recover`.
        """
        self._check_open()
        return TwoPhaseTransaction(self, self._participants(resources))

    def recover(self, *resources: Any, older_than: float | None = None) -> dict[str, Outcome]:
        """Complete what dead processes have left in the resources.

        Call it at the start of a program. Transactions of living processes are left alone.

        Args:
            resources: connections of psycopg 3 without an open transaction, and producers. The
                log of the coordinator is always included.
            older_than: also abort undecided transactions of living processes that were prepared
                more than this number of seconds ago, for example of a suspended one.

        Returns:
            The decisions of the transactions that were completed, by token.

        Raises:
            ConfigError: as `transaction`.
            DatabaseUnavailable: if a database is down; call again.
            DatabaseError: if a transaction was prepared by another user of the database.
            EoslogError: if the log cannot be written.

        Durability:
            Each decision is durable before a resource follows it.
        """
        self._check_open()
        limit = None if older_than is None else as_seconds("older_than", older_than)
        found: dict[str, Outcome] = {}
        self._look(self._participants(resources, some=False), limit, found)
        return found

    def close(self) -> None:
        """Stop answering for transactions of dead processes. A second call does nothing."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            registrations = list(self._registrations.values())
            producer, self._producer = self._producer, None
        for registration in registrations:
            registration.close()
        try:
            if producer is not None:
                producer.close()
        finally:
            self._id.free()

    # -- resources

    def _check_open(self) -> None:
        if self._closed:
            raise IllegalState("the coordinator is closed; create a new one")

    def _participants(self, resources: tuple[Any, ...], some: bool = True) -> list[Participant]:
        if some and not resources:
            raise ConfigError("resources: expected at least one connection or producer, got none")
        found: list[Participant] = []
        for number, resource in enumerate(resources):
            if any(resource is other for other in resources[:number]):
                raise ConfigError(
                    f"resources: {shown(resource)} appears twice; pass each resource once"
                )
            if isinstance(resource, Producer):
                if resource.transactional_id is None:
                    raise ConfigError(
                        "resources: a producer has no transactional.id; create it with "
                        "log.producer(transactional_id=...)"
                    )
                if some:  # a recovery completes what is prepared in any log
                    check_can_take_part("resources", resource)
                found.append(ProducerParticipant(resource, self._resolver))
            else:
                found.append(DatabaseParticipant(resource))
        return found

    # -- recovery

    def _look(
        self, participants: list[Participant], older_than: float | None = None,
        found: dict[str, Outcome] | None = None,
    ) -> None:  # fmt: skip
        """Check the resources, and complete what dead processes have left in them.

        Without `found`, the log is searched only if something is prepared in the resources.
        """
        prefix = gid_prefix(self._cluster_id)
        databases = [one for one in participants if isinstance(one, DatabaseParticipant)]
        hanging = sum(len(database.xacts.look(prefix)) for database in databases)
        engines = {self._engine}
        for participant in participants:
            if isinstance(participant, ProducerParticipant):
                engines.add(participant.engine)
                self._answer_for(participant.engine)
                hanging += participant.has_prepared()
        if found is None:
            if not hanging:
                return
            found = {}
        self._abort_left(older_than, found)
        # A commit that is held now has all its parts prepared, so what is missing below is done.
        commits = {token for token, _ in self._held()}
        for engine in engines:
            left = self._complete_log(engine, older_than, found)
            self._release_all(commits - left, f"log {engine.properties.cluster_id}")
        for database in databases if hanging or commits else ():
            left = self._complete_database(database, prefix, older_than, found)
            self._release_all(commits - left, database.place)

    def _abort_left(self, older_than: float | None, found: dict[str, Outcome]) -> None:
        for prepared in pending(self._engine, self._resolver):
            if open_places(prepared.meta) is None:
                continue
            if self._decision(prepared.token, older_than) is Outcome.ABORT:
                found[prepared.token] = Outcome.ABORT

    def _complete_log(
        self, engine: Engine, older_than: float | None, found: dict[str, Outcome]
    ) -> set[str]:
        """Decide what is prepared in a log; return the tokens that stay."""
        hanging = [
            (token_of_branch(prepared.meta), partial(self._resolve, engine, prepared.token))
            for prepared in pending(engine, self._resolver)
        ]
        return self._complete(hanging, older_than, found)

    def _complete_database(
        self, database: DatabaseParticipant, prefix: str, older_than: float | None,
        found: dict[str, Outcome],
    ) -> set[str]:  # fmt: skip
        """Complete what is prepared in a database; return the tokens that stay."""
        hanging = [
            (token_of_gid(gid, self._cluster_id), partial(database.xacts.finish, gid))
            for gid in database.xacts.look(prefix)
        ]
        return self._complete(hanging, older_than, found)

    def _complete(
        self,
        hanging: Iterable[tuple[str | None, Callable[[bool], object]]],
        older_than: float | None,
        found: dict[str, Outcome],
    ) -> set[str]:
        """Commit or abort what hangs, as decided; return the tokens that are undecided."""
        left = set()
        for token, end in hanging:
            if token is None:
                continue
            outcome = self._decision(token, older_than)
            if outcome is Outcome.UNKNOWN:
                left.add(token)
                continue
            end(outcome is Outcome.COMMIT)
            failpoint("tpc.recovered")
            found[token] = outcome
        return left

    @staticmethod
    def _resolve(engine: Engine, token: str, commit: bool) -> None:
        resolve(engine, token, Outcome.COMMIT if commit else Outcome.ABORT)

    def _decision(self, token: str, older_than: float | None = None) -> Outcome:
        """Return the decision; decide to abort if the process that should decide is dead.

        A token that the log does not know was aborted: a commit is kept until all have followed it.
        """
        outcome: Outcome | None = self._log.outcome(token)
        if outcome is None:
            return Outcome.ABORT
        if outcome is not Outcome.UNKNOWN or not self._abandoned(token, older_than):
            return outcome
        try:
            self._log.resolve(token, Outcome.ABORT)
        except OutcomeConflict:
            return Outcome.COMMIT
        except UnknownToken:
            pass
        failpoint("tpc.abort_decided")
        return Outcome.ABORT

    def _abandoned(self, token: str, older_than: float | None) -> bool:
        engine = self._engine
        try:
            _, entry = engine.transactions.prepared.index.find(token)
        except UnknownToken:
            return True
        age_ms = engine.clock_ms() - entry.prepared_at_ms
        if older_than is not None and age_ms >= older_than * 1000:
            return True
        if entry.owner == (engine.process_number, engine.process_nonce):
            with self._running.recording:
                return token not in self._running.tokens
        return not engine.process_alive(*entry.owner)

    def _answer_for(self, engine: Engine) -> None:
        """Decide what is prepared in a log, when its checks are due."""
        with self._mutex:
            if engine not in self._registrations:
                self._registrations[engine] = register_resolver(
                    engine, self._resolver, self._answer, {}
                )

    def _answer(self, prepared: PreparedTransaction) -> Outcome:
        return self._decision(token_of_branch(prepared.meta) or prepared.token)

    # -- the records of a transaction

    def _record(self, participants: list[Participant]) -> str:
        """Write an undecided transaction, and return its token."""
        meta = open_meta(participant.place for participant in participants)
        with self._running.recording, self._mutex:
            self._check_open()
            if self._producer is None:
                producer: Producer = self._log.producer(transactional_id=str(self._id))
                producer.init_transactions()
                self._producer = producer
            try:
                self._producer.begin_transaction(mode="staged")
                token = self._producer.prepare_transaction(
                    meta, self._resolver, HELD_UNTIL_MS
                ).token
            except BaseException:
                self._renew()
                raise
            self._running.tokens.add(token)
            return token

    def _renew(self) -> None:
        """Drop the producer after an error; the next transaction creates a new one."""
        producer, self._producer = self._producer, None
        assert producer is not None
        try:
            producer.close(0)
        except EoslogError as error:
            logger.warning("coordinator of %s: close failed: %s", self._cluster_id, error)

    def _ended(self, token: str | None) -> None:
        self._running.tokens.discard(token or "")

    def _held(self) -> list[tuple[str, Any]]:
        return held(self._engine.transactions.prepared, self._resolver)

    def _release_all(self, tokens: set[str], place: str) -> None:
        for token, entry in self._held():
            if token in tokens and place in (open_places(decode_meta(entry.meta)) or ()):
                self._release(token, {place})

    def _release(self, token: str, places: set[str]) -> None:
        """Note that places have committed; after the last one, the outcome may expire."""

        def change(meta: bytes | None) -> bytes | None:
            left = set(open_places(decode_meta(meta)) or ()) - places
            return encode_meta(open_meta(left)) if left else None

        try:
            release(self._engine.transactions.prepared, token, change, self._engine.clock_ms())
        except EoslogError as error:
            logger.warning("token %s: not released, leaving it to a recovery: %s", token, error)
