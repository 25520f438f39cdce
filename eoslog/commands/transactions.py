"""`eoslog txn`."""

from __future__ import annotations

import time

import click

from eoslog import TransactionDescription
from eoslog.commands.face import Face
from eoslog.errors import TransactionalIdNotFound


@click.group()
def txn() -> None:
    """List, look at and abort transactions."""


def _find(face: Face, name: str) -> TransactionDescription:
    with face.log() as log:
        for found in log.transactions(open_only=False):
            if found.transactional_id == name:
                return found
    raise TransactionalIdNotFound(f"no transactional id {name!r}")


@txn.command("list")
@click.option("--all", "every", is_flag=True, help="Also ids without an open transaction.")
@click.pass_obj
def list_transactions(face: Face, every: bool) -> None:
    """List open transactions, or all transactional ids."""
    now = time.time_ns() // 1_000_000
    with face.log() as log:
        rows = [
            {
                "transactional_id": found.transactional_id,
                "state": found.state,
                "producer_id": found.producer_id,
                "epoch": found.producer_epoch,
                "age_s": None if found.start_time_ms < 0 else (now - found.start_time_ms) // 1000,
                "partitions": len(found.partitions),
            }
            for found in log.transactions(open_only=not every)
        ]
    face.show(rows, ("transactional_id", "state", "producer_id", "epoch", "age_s", "partitions"))


@txn.command("describe")
@click.argument("name", metavar="ID")
@click.pass_obj
def describe(face: Face, name: str) -> None:
    """Show a transactional id."""
    found = _find(face, name)
    face.show_one(
        {
            "transactional_id": found.transactional_id,
            "state": found.state,
            "producer_id": found.producer_id,
            "epoch": found.producer_epoch,
            "timeout_ms": found.timeout_ms,
            "start_time_ms": found.start_time_ms,
            "last_update_ms": found.last_update_ms,
            "partitions": [str(tp) for tp in sorted(found.partitions)],
        }
    )


@txn.command("abort")
@click.argument("name", metavar="ID")
@click.pass_obj
def abort(face: Face, name: str) -> None:
    """Abort an open transaction; its producer is fenced.

    Exit code 3 if none is open.
    """
    _find(face, name)
    with face.log() as log:
        if not log.abort_transaction(name):
            raise TransactionalIdNotFound(f"{name!r} has no open transaction: nothing was aborted")
    face.say(f"aborted {name}")


COMMANDS = (txn,)
