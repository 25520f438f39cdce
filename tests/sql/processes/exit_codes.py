"""How a process that places an order says which error ended it."""

from __future__ import annotations

import signal

from eoslog import errors

CODES: dict[type[BaseException], int] = {
    errors.TransactionAborted: 10,
    errors.DatabaseUnavailable: 11,
    errors.PreparedTransactionPending: 12,
    errors.ProducerFenced: 13,
}
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def code_of(error: BaseException) -> int:
    """The exit code for one of the errors of `CODES`."""
    return next(code for kind, code in CODES.items() if isinstance(error, kind))
