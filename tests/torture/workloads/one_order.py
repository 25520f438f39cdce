"""Programs that take one transaction of `Log.atomic`, in which something fails.

The faults begin with the block. Those of the log are armed by the test. One of the database is:

    statement:N   the process dies before the Nth statement, or after the Nth answer
    refused       COMMIT raises an error, and has done nothing
    lost          COMMIT raises an error, and has committed
    down          the same, and the next two connections cannot be opened
    undecided     the log fails to decide after COMMIT
    stale         the process is suspended after it has read inputs, and a second one moves them
    other         nothing fails, and the transactional id is another one, as it is for stale
    unlocked      the connection begins a transaction without locks, and the block writes no row
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import eoslog
from eoslog import Outcome
from eoslog.sql import Database
from eoslog.storage.fs import files
from tests.faults.harness import Child
from tests.sql.databases import Place, end_here
from tests.torture.workloads.halves import Journal, refusals
from tests.torture.workloads.orders import DRIVER_ERRORS, IDS, Seller, look

NAME, OTHER = IDS[:2]
"""The transactional ids; most programs use the first one."""
WORKS = ("order", "log", "database")
"""An order, or moved inputs with their offsets in the log or in the database."""
_OF_COMMIT = ("refused", "lost", "down")


class Fault:
    """A fault of the database, or of the log, in the first block of a process."""

    def __init__(self, child: Child, place: Place, what: str) -> None:
        """Keep what is to fail; nothing fails before `begin`."""
        self._child, self._place = child, place
        self._kind, _, self._number = what.partition(":")
        self._begun = False
        self._down = 0

    def begin(self) -> None:
        """Begin the block."""
        if not self._begun:
            self._begun = True
            self._child.armed()
            if self._kind == "undecided":
                # At the commit of the producer, and at the decision by the token.
                files._armed["txn.flushed"] = ["EIO", "EIO"]
            if self._kind == "stale":
                os.kill(os.getpid(), signal.SIGSTOP)

    def connecting(self) -> Callable[[], Any]:
        """A connection factory of the database that fails."""
        if self._kind == "statement":
            act = end_here(signal.SIGKILL)
            return self._place.at_statement(int(self._number), act, lambda: self._begun)
        if self._kind in _OF_COMMIT:
            connect = self._place.at_commit(self._commit)
            return lambda: self._open(connect)
        return self._place.connect

    def _open(self, connect: Callable[[], Any]) -> Any:
        if self._down:
            self._down -= 1
            raise self._error("the database is down")
        return connect()

    def _commit(self, commit: Callable[[], None]) -> None:
        kind = self._kind if self._begun else ""
        if kind != "refused":
            commit()
        if kind in _OF_COMMIT:
            self._kind = ""
            self._down = 2 if kind == "down" else 0
            raise self._error("the connection was lost")

    def _error(self, text: str) -> Exception:
        """Return an error of the driver; SQLite's means that the file cannot be opened."""
        error = DRIVER_ERRORS[self._place.postgresql](text)
        if isinstance(error, sqlite3.Error):
            error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        return error


def sells_once(
    child: Child, path: Path, place: Place, folder: Path, name: str, seed: int, work: str,
    what: str = "", more: int = 0,
) -> None:  # fmt: skip
    """Take one transaction, and then some orders without a fault."""
    journal, rng, fault = Journal(folder, name), random.Random(seed), Fault(child, place, what)
    used = OTHER if what in ("stale", "other") else NAME
    with refusals(*DRIVER_ERRORS):
        with eoslog.open(path) as log, Database(fault.connecting()) as database:
            seller = Seller(log, database, place, journal, rng, name, child, [used])
            seller.entered, seller.assigned = fault.begin, what == "stale"
            if what == "unlocked":
                seller.take(lambda: unlocked(seller))
            elif work == "order":
                seller.take(lambda: seller.order(0, 0))
            else:
                # Later, it could abort a transaction, so the consumer would have to read again.
                seller.selling().init_transactions(keep_prepared=True)
                seller.take(lambda: seller.move(work, 2))
            for _ in range(more):
                seller.take(lambda: seller.order(0, 0))


def unlocked(seller: Seller) -> None:
    """Commit records with a connection whose transaction has no lock of SQLite yet."""
    connection = seller.place.connect()
    with contextlib.closing(connection):
        connection.execute("begin")
        with seller.log.atomic(seller.selling(), seller.database, connection) as tx:
            seller.entered()
            tx.produce("unlocked", seller.name)


def asks_once(child: Child, path: Path, place: Place, folder: Path, name: str, late: bool) -> None:
    """Ask about what is prepared, and compare.

    A late process is suspended before it asks.
    """
    with refusals(*DRIVER_ERRORS):
        with eoslog.open(path) as log, Database(place.connect) as database:
            assert database.id
            found = log.pending()
            if late:
                os.kill(os.getpid(), signal.SIGSTOP)
            for prepared in found:
                outcome = database.resolve(prepared)
                if outcome is not Outcome.UNKNOWN:
                    log.resolve(prepared.token, outcome)
            look(log, place, Journal(folder, name))
