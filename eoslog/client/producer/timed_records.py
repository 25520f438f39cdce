"""Records with a time of delivery: `Producer.send(..., deliver_at=)`.

Each record is a staged transaction of its own. It has no resolver, so the clock commits it. It
belongs to the transactional id of its producer. A producer without such an id has a second producer
for these records, which the first of them creates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from eoslog.client.prepared import prepare_arguments
from eoslog.client.producer.delivery import Delivery
from eoslog.client.producer.numbered_ids import NumberedId
from eoslog.errors import CommitOutcomeUnknown, EoslogError, IllegalState
from eoslog.model import RecordMetadata
from eoslog.shown_paths import get_logger

if TYPE_CHECKING:
    from eoslog.config.keys import ProducerConfig
    from eoslog.descriptions import PreparedTransaction
    from eoslog.engine.engine import Engine

__all__ = ["SecondProducer", "check_no_time", "send_at"]

logger = get_logger("eoslog.client.producer")

_STATES_THAT_ABORT = frozenset({"IN_TRANSACTION", "ABORTABLE_ERROR"})
_OWN_KEYS = frozenset(
    {
        "acks", "enable.idempotence", "linger.ms", "max.in.flight.requests.per.connection",
        "retries", "transactional.id",
    }
)  # fmt: skip
"""Keys that a second producer does not take from the first."""


class TransactionalClient(Protocol):
    """The part of a `Producer` that sends a timed record."""

    @property
    def transaction_state(self) -> str | None:
        """Kafka's name for the transaction state."""

    @property
    def send(self) -> Callable[..., Delivery]:
        """Buffer a record."""

    @property
    def prepare_transaction(self) -> Callable[..., PreparedTransaction]:
        """Prepare the open transaction."""

    def init_transactions(self) -> object:
        """Fence earlier producers of the id."""

    def begin_transaction(self, mode: str = "inline") -> None:
        """Begin a transaction."""

    def abort_transaction(self) -> None:
        """Abort the open transaction."""

    def close(self, timeout: float | None = None) -> None:
        """Close the producer."""


class TimedDelivery(Delivery):
    """The result of a record that waits for its time; it is known from the start."""

    __slots__ = ("_token",)

    def __init__(self, token: str, metadata: RecordMetadata) -> None:
        """Set the result."""
        super().__init__()
        self._token = token
        self(None, metadata)

    def __repr__(self) -> str:
        place = self.result()
        return f"<Delivery, {place.topic}-{place.partition}, waits, token {self._token}>"

    @property
    def token(self) -> str:
        """The token of the transaction of the record."""
        return self._token


def check_no_time(deliver_at: int | None) -> None:
    """Check that a record of an open transaction has no time of its own.

    Raises:
        IllegalState: if it has one.
    """
    if deliver_at is not None:
        raise IllegalState(
            "send: deliver_at: a transaction is open; end it first, or begin it with "
            'mode="staged" and call prepare_transaction(deliver_at=...)'
        )


def send_at(producer: TransactionalClient, record: dict[str, Any], deliver_at: int) -> Delivery:
    """Prepare a staged transaction of one record, which the clock commits.

    Args:
        producer: a producer with a transactional id; the caller holds its lock.
        record: the arguments of `send`.
        deliver_at: the time in ms since the epoch.

    Raises:
        IllegalState: if the producer has an open transaction.
        CommitOutcomeUnknown: if an error came after the record may have been prepared.
        EoslogError: as `produce` and `prepare_transaction`; nothing was sent.
    """
    prepare_arguments(None, None, deliver_at, True)
    if producer.transaction_state == "IN_TRANSACTION":
        check_no_time(deliver_at)
    producer.begin_transaction(mode="staged")
    try:
        sent = producer.send(**record)
        prepared = producer.prepare_transaction(deliver_at=deliver_at)
        return TimedDelivery(prepared.token, sent.result())
    except BaseException as error:
        _abort(producer, error)
        raise


def _abort(producer: TransactionalClient, failure: BaseException) -> None:
    """End a transaction that was not prepared.

    Raises:
        CommitOutcomeUnknown: if it may have been.
    """
    if producer.transaction_state == "READY" and isinstance(failure, EoslogError):
        raise CommitOutcomeUnknown(
            f"send: deliver_at: the record is prepared, and an error followed ({failure}); look "
            "for it with log.pending() or in its topic before you send it again"
        ) from failure
    if producer.transaction_state not in _STATES_THAT_ABORT:
        return
    try:
        producer.abort_transaction()
    except EoslogError as error:
        raise CommitOutcomeUnknown(
            f"send: deliver_at: the record may be sent, because its abort failed ({error}) after "
            f"{failure}; look for it with log.pending() or in its topic before you send it again"
        ) from failure


Create = Callable[[dict[str, Any]], TransactionalClient]


class SecondProducer:
    """The producer of the timed records of a producer without a transactional id.

    The first producer's lock guards it.
    """

    def __init__(self, engine: Engine, config: ProducerConfig, create: Create) -> None:
        """Keep the configuration of the first producer; nothing is opened."""
        self._engine = engine
        self._config = config
        self._create_of = create
        self._id = NumberedId(engine, "deliver-at")
        self._producer: TransactionalClient | None = None

    def send(self, record: dict[str, Any], deliver_at: int) -> Delivery:
        """Send a record as `send_at`."""
        producer = self._create() if self._producer is None else self._producer
        try:
            return send_at(producer, record, deliver_at)
        finally:
            if producer.transaction_state != "READY":
                self._drop()

    def _create(self) -> TransactionalClient:
        config = self._config
        keys = {name: getattr(config, name.replace(".", "_")) for name in config.given - _OWN_KEYS}
        keys["transactional.id"] = str(self._id)
        self._engine.in_place()
        producer = self._create_of(keys)
        try:
            producer.init_transactions()
        except BaseException:
            producer.close(0)
            raise
        self._producer = producer
        return producer

    def _drop(self) -> None:
        """Close a producer that had a fatal error; the next record gets a new one."""
        producer, self._producer = self._producer, None
        try:
            if producer is not None:
                producer.close(0)
        except EoslogError as error:
            logger.warning("%r: the producer of timed records failed to close: %s", self, error)

    def close(self) -> None:
        """Close the producer; prepared records stay."""
        self._drop()
        self._id.free()
