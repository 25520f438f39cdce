"""Why a partition takes no records: said once when it begins, and again when a batch expires."""

from __future__ import annotations

import copy
import logging
from typing import Any

from eoslog.client.identity import Place
from eoslog.errors import DeliveryTimeout, EoslogError, StorageError

__all__ = ["Refusals"]

logger = logging.getLogger("eoslog.client.sender")


class Refusals:
    """The last refusal of each partition since its last append. Guarded by the sender's lock."""

    def __init__(self) -> None:
        """Nothing was refused yet."""
        self._last: dict[Place, EoslogError] = {}

    def note(self, batch: Any, error: EoslogError, again: bool) -> None:
        """A batch was refused; `again` says whether it will be tried again."""
        place = (batch.topic, batch.partition)
        known = isinstance(self._last.get(place), StorageError)
        # A copy has no traceback, whose frames would hold the batches and their memory.
        self._last[place] = copy.copy(error)
        if isinstance(error, StorageError) and not known:
            logger.warning(
                "%s-%d: the disk refuses records%s: %s",
                *place,
                ", they are tried again until delivery.timeout.ms" if again else "",
                error,
            )

    def forget(self, place: Place) -> None:
        """The partition took a batch."""
        if self._last:
            self._last.pop(place, None)

    def timeout(self, batch: Any, delivery_timeout_ms: int) -> DeliveryTimeout:
        """What becomes of a batch that waited for too long, with the last refusal as its cause."""
        state = "its outcome is unknown" if batch.doubtful else "it was not written"
        last = self._last.get((batch.topic, batch.partition))
        error = DeliveryTimeout(
            f"{batch.topic}-{batch.partition}: {batch.count} records not delivered within "
            f"delivery.timeout.ms = {delivery_timeout_ms} after {batch.attempts} attempts; {state}"
            + ("" if last is None else f"; the last refusal: {type(last).__name__}: {last}")
        )
        error.__cause__ = last
        return error
