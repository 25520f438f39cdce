"""Which relay of a name works.

The leader has its claim in the log, as the named position `outbox/NAME`:

    PROCESS:NONCE:RELAY    its number and nonce in the process table, and a random id

A relay becomes the leader in three steps:

    1 initialise the transactional id, which fences the earlier leader
    2 decide what the earlier leader left prepared
    3 set the position, if it is still the one that was read before 1

It does so if there is no claim, or if the claim's process has exited or is suspended (its heartbeat
is older than `STALL_S`). A claim only decides which relay works. That no row is published twice
follows from the transactional id and the outcome in the database, so a wrong claim costs only time.
"""

from __future__ import annotations

import contextlib
import uuid
import weakref
from collections.abc import Callable
from typing import Any

from eoslog.client.producer.producer import Producer
from eoslog.errors import (
    EoslogError,
    InvalidProducerEpoch,
    PositionConflict,
    ProducerFenced,
)
from eoslog.shown_paths import get_logger

__all__ = ["FENCED", "Leadership", "pid_of_claim", "position_of"]

logger = get_logger("eoslog.sql")

STALL_S = 3.0
"""A process whose last heartbeat is older is suspended; each process has one each second."""
FENCED = (ProducerFenced, InvalidProducerEpoch, PositionConflict)

_relays: weakref.WeakValueDictionary[str, Leadership] = weakref.WeakValueDictionary()


def position_of(name: str) -> str:
    """The name of the position with the leader's claim."""
    return f"outbox/{name}"


class Leadership:
    """The claim of one relay. The caller has a lock."""

    def __init__(self, log: Any, name: str, create: Callable[[], Producer]) -> None:
        """Watch the claims of a name; `create` creates a producer."""
        self._log = log
        self._position = position_of(name)
        self._create = create
        self._id = uuid.uuid4().hex
        self._producer: Producer | None = None
        self._mine = ""
        _relays[self._id] = self

    def producer(self, recover: Callable[[Producer], None]) -> Producer | None:
        """Return the producer of the leader; None if another relay leads.

        Args:
            recover: initialises a producer, and decides what its id has left prepared.
        """
        claim = self._log.position(self._position)
        if self._producer is not None:
            if claim == self._mine:
                return self._producer
            self.lose()
        if claim != self._mine and self._leads(claim):
            return None
        return self._claim(claim, recover)

    def _leads(self, claim: Any) -> bool:
        found = _parsed(claim)
        if found is None:
            return False
        number, nonce, relay = found
        engine = self._log._engine
        if (number, nonce) == (engine.process_number, engine.process_nonce):
            return relay in _relays
        alive: bool = engine.process_alive(number, nonce)
        return alive and engine.process_heartbeat_age(number) < STALL_S

    def _claim(self, claim: Any, recover: Callable[[Producer], None]) -> Producer | None:
        engine = self._log._engine
        producer = self._create()
        try:
            recover(producer)
            mine = f"{engine.process_number}:{engine.process_nonce}:{self._id}"
            with producer.transaction() as tx:
                tx.set_position(self._position, mine, expected=claim)
        except FENCED as error:
            logger.info("%s: another relay became the leader: %s", self._position, error)
            _close(producer)
            return None
        except BaseException:
            _close(producer)
            raise
        self._producer, self._mine = producer, mine
        logger.info("%s: this relay is the leader now", self._position)
        return producer

    def lose(self) -> None:
        """Stop leading: another relay has fenced this one."""
        producer, self._producer = self._producer, None
        if producer is not None:
            logger.info("%s: another relay is the leader now", self._position)
            _close(producer)

    def resign(self) -> None:
        """Let another relay lead immediately."""
        producer, self._producer = self._producer, None
        _relays.pop(self._id, None)
        if producer is None:
            return
        _close(producer)
        with contextlib.suppress(EoslogError):
            if self._log.position(self._position) == self._mine:
                self._log.delete_position(self._position)


def pid_of_claim(log: Any, name: str) -> int | None:
    """The process id of the leader; None if no living process leads."""
    found = _parsed(log.position(position_of(name)))
    if found is None or not log._engine.process_alive(*found[:2]):
        return None
    pid: int | None = log._engine.process_pid(*found[:2])
    return pid


def _parsed(claim: Any) -> tuple[int, int, str] | None:
    try:
        number, nonce, relay = str(claim).split(":")
        return int(number), int(nonce), relay
    except ValueError:
        return None


def _close(producer: Producer) -> None:
    with contextlib.suppress(EoslogError):
        producer.close()
