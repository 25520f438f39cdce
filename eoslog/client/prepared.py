"""The calls of producers and of `Log` for prepared transactions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from eoslog._util.arguments import as_int, shown
from eoslog.coordinator.checks.check_calls import ResolverFunction
from eoslog.coordinator.checks.check_policy import CheckPolicy
from eoslog.coordinator.checks.checks import Registration
from eoslog.coordinator.transactions.held_outcomes import HELD_UNTIL_MS
from eoslog.coordinator.transactions.prepared_records import NEVER
from eoslog.engine.prepared_view import describe, encode_meta
from eoslog.errors import (
    ConcurrentTransactions,
    ConfigError,
    IllegalState,
    RequestTimedOut,
)
from eoslog.model import Outcome

if TYPE_CHECKING:
    from eoslog.descriptions import PreparedTransaction
    from eoslog.engine.engine import Engine

__all__ = [
    "described", "pending", "prepare_arguments", "prepared_of", "register_resolver",
    "resolve", "staged_of", "token_of",
]  # fmt: skip

_MODES = ("inline", "staged")
_TIMES_OF_DELIVERY = range(10**11, HELD_UNTIL_MS + 1)
"""In ms since 1970. Smaller and larger numbers are seconds, microseconds or nanoseconds."""
_RESOLVE_S = 60.0
_PAUSE_S = 0.02


def staged_of(what: str, mode: str) -> bool:
    """Check the mode of a transaction, and return whether it is staged.

    Raises:
        ConfigError: if the mode is unknown.
    """
    if mode not in _MODES:
        raise ConfigError(f"{what}: mode: expected 'inline' or 'staged', got {shown(mode)}")
    return mode == "staged"


def prepare_arguments(
    meta: Any, resolver: str | None, deliver_at: int | None, staged: bool
) -> tuple[str | None, bytes | None, int]:
    """Check and encode the arguments of `prepare_transaction`.

    Raises:
        ConfigError: if one is invalid.
        IllegalState: if an inline transaction has a time of delivery.
    """
    if resolver is not None and not (isinstance(resolver, str) and resolver):
        raise ConfigError(
            f"resolver: expected the name of a resolver or None, got {shown(resolver)}"
        )
    when = NEVER
    if deliver_at is not None:
        if not staged:
            raise IllegalState(
                "deliver_at: the records of an inline transaction are in their topics already; "
                "begin it with begin_transaction(mode='staged')"
            )
        when = as_int("deliver_at", deliver_at, "ms since 1970 as int")
        if when not in _TIMES_OF_DELIVERY:
            raise ConfigError(
                f"deliver_at: expected ms since 1970, in the years 1973 to 9999, got {when}; "
                "int(time.time() * 1000) is now"
            )
    return resolver, encode_meta(meta), when


def token_of(what: str, state: PreparedTransaction | str) -> str:
    """Return the token of a prepared transaction, or the token itself.

    Raises:
        ConfigError: if `state` is neither.
    """
    token = state if isinstance(state, str) else getattr(state, "token", None)
    if not isinstance(token, str):
        raise ConfigError(
            f"{what}: expected a prepared transaction or its token, got {shown(state)}"
        )
    return token


def described(engine: Engine, token: str) -> PreparedTransaction:
    """Return the description of a token.

    Raises:
        UnknownToken: if the log knows no such transaction.
    """
    _, entry = engine.transactions.prepared.index.find(token)
    return describe(engine, token, entry)


def prepared_of(engine: Engine, transactional_id: str) -> list[PreparedTransaction]:
    """Return the undecided transactions of a transactional id, the oldest first."""
    found = engine.transactions.prepared.index.of_id(transactional_id)
    return [describe(engine, token, entry) for token, entry in found]


def pending(engine: Engine, resolver: str | None) -> list[PreparedTransaction]:
    """Return the undecided transactions, of one resolver or all, the oldest first."""
    return [
        describe(engine, token, entry)
        for token, entry in engine.transactions.prepared.index.pending()
        if resolver is None or entry.resolver == resolver
    ]


def register_resolver(
    engine: Engine, name: str, fn: ResolverFunction, settings: Mapping[str, Any]
) -> Registration:
    """Ask a function about the prepared transactions that name a resolver.

    Raises:
        ConfigError: if an argument is invalid.
    """
    return engine.checks.register(name, fn, CheckPolicy.of(**settings), partial(describe, engine))


def resolve(engine: Engine, token: str, outcome: Outcome) -> None:
    """Decide a prepared transaction, and wait until it is complete.

    Raises:
        ConfigError: if `outcome` is neither COMMIT nor ABORT.
        RequestTimedOut: if it is decided, but not complete within a minute.
        EoslogError: as `PreparedTransactions.resolve`.
    """
    if not isinstance(outcome, Outcome) or outcome is Outcome.UNKNOWN:
        raise ConfigError(
            f"outcome: expected Outcome.COMMIT or Outcome.ABORT, got {shown(outcome)}"
        )
    deadline = time.monotonic() + _RESOLVE_S
    while True:
        try:
            engine.transactions.prepared.resolve(str(token), outcome is Outcome.COMMIT)
            return
        except ConcurrentTransactions as error:
            if time.monotonic() > deadline:
                raise RequestTimedOut(
                    f"token {str(token)!r}: not complete within {_RESOLVE_S:.0f} s: {error}; call "
                    "again"
                ) from error
        time.sleep(_PAUSE_S)
