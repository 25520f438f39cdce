"""`eoslog txn`: list, show, abort and decide transactions."""

from __future__ import annotations

import time

import click

from eoslog import Outcome, TransactionDescription
from eoslog.commands.context import CliContext
from eoslog.errors import OutcomeConflict, TransactionalIdNotFound


@click.group()
def txn() -> None:
    """List, show, abort and decide transactions."""


def _find(context: CliContext, name: str, *, reads: bool = False) -> TransactionDescription:
    with context.log(reads=reads) as log:
        for found in log.transactions(open_only=False):
            if found.transactional_id == name:
                return found
    raise TransactionalIdNotFound(
        f"transactional id {name!r} does not exist; `eoslog txn list --all` lists the known ones"
    )


@txn.command("list")
@click.option("--all", "every", is_flag=True, help="List ids without an open transaction too.")
@click.pass_obj
def list_transactions(context: CliContext, every: bool) -> None:
    r"""List open transactions, or all transactional ids.

    \b
    Examples:
      eoslog -d shop txn list
      eoslog -d shop --format jsonl txn list --all | jq .pid
    """
    now = time.time_ns() // 1_000_000
    with context.log(reads=True) as log:
        rows = [
            {
                "transactional_id": found.transactional_id,
                "state": found.state,
                "producer_id": found.producer_id,
                "epoch": found.producer_epoch,
                "age_s": _age_s(found.start_time_ms, now),
                "partitions": len(found.partitions),
                "pid": found.pid,
                "command": found.command,
                "token": found.token,
            }
            for found in log.transactions(open_only=not every)
        ]
    columns = ("transactional_id", "state", "producer_id", "epoch", "age_s", "partitions")
    context.show(rows, (*columns, "pid", "command", "token"))


def _age_s(start_ms: int, now_ms: int) -> int | None:
    """The age of a transaction; 0 if the clock was set back since its start."""
    return None if start_ms < 0 else max(now_ms - start_ms, 0) // 1000


@txn.command("describe")
@click.argument("name", metavar="ID")
@click.pass_obj
def describe(context: CliContext, name: str) -> None:
    """Show the state of a transactional id and its last transaction."""
    found = _find(context, name, reads=True)
    context.show_one(
        {
            "transactional_id": found.transactional_id,
            "state": found.state,
            "producer_id": found.producer_id,
            "epoch": found.producer_epoch,
            "timeout_ms": found.timeout_ms,
            "start_time_ms": found.start_time_ms,
            "last_update_ms": found.last_update_ms,
            "partitions": [str(tp) for tp in sorted(found.partitions)],
            "pid": found.pid,
            "command": found.command,
            "token": found.token,
        }
    )


@txn.command("abort")
@click.argument("name", metavar="ID")
@click.pass_obj
def abort(context: CliContext, name: str) -> None:
    """Abort an open transaction and fence its producer.

    Exit code 3 if the id has no open transaction, 4 if its transaction is prepared: decide that
    with `eoslog txn resolve`.
    """
    _find(context, name)
    with context.log() as log:
        if not log.abort_transaction(name):
            raise TransactionalIdNotFound(f"{name!r} has no open transaction; nothing was aborted")
    context.say(f"aborted {name}")


@txn.command("pending")
@click.option("--resolver", metavar="NAME", help="List only those of this resolver.")
@click.pass_obj
def pending(context: CliContext, resolver: str | None) -> None:
    r"""List the prepared transactions that are undecided.

    The oldest one is first. A state PARKED means that its resolver was asked as often as allowed.
    Decide it with `resolve`, or ask again with `recheck`.

    \b
    Examples:
      eoslog -d shop txn pending
      eoslog -d shop txn pending --resolver orders-db | jq -r .token
    """
    with context.log(reads=True) as log:
        rows = [
            {
                "token": found.token,
                "state": found.state,
                "mode": found.mode,
                "age_s": int(found.age),
                "checks": found.checks,
                "resolver": found.resolver,
                "due_at": found.due_at,
                "meta": found.meta,
            }
            for found in log.pending(resolver)
        ]
    context.show(rows, ("token", "state", "mode", "age_s", "checks", "resolver", "due_at", "meta"))


@txn.command("resolve")
@click.argument("token")
@click.argument("outcome", type=click.Choice(["commit", "abort"]))
@click.pass_obj
def resolve(context: CliContext, token: str, outcome: str) -> None:
    r"""Decide a prepared transaction. The decision is final.

    The same decision again succeeds. Exit code 3 if the log does not know the token, 4 if the
    transaction was decided the other way.

    \b
    Example:
      eoslog -d shop txn resolve xZhUXWMTT9aBmBSkvHEhPA:12:0:3 commit
    """
    with context.log() as log:
        log.resolve(token, Outcome(outcome))
    context.say(f"{outcome}: {token}")


@txn.command("recheck")
@click.argument("token")
@click.pass_obj
def recheck(context: CliContext, token: str) -> None:
    """Ask the resolver of a prepared transaction again.

    The checks of a parked one begin from the start. The next process that has registered the
    resolver asks it. Exit code 3 if the log does not know the token, 4 if the transaction is
    decided.
    """
    with context.log() as log:
        if not log.recheck(token):
            raise OutcomeConflict(
                f"token {token!r}: the transaction is decided already, so no check is needed"
            )
    context.say(f"to be checked: {token}")


COMMANDS = (txn,)
