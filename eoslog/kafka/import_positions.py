"""Positions of import jobs, stored as named positions of the log.

The position of a partition is named `kafka-import/JOB/TOPIC-PARTITION`. Its value is JSON text: the
next offset in the cluster, the id of the topic there, and the id of the topic in the log. If the
topic in the log was deleted, its position does not count any more. An int is a position that a user
has set.

Jobs of earlier versions kept committed offsets of the group with the job's name. The first run
takes them over: one transaction sets the positions, and commits the same offsets again with a
metadata text, so that they do not count a second time.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from eoslog.client.producer.transactions.transaction import Transaction
from eoslog.errors import GroupNotFound, IllegalState
from eoslog.kafka.log import MovedLog
from eoslog.kafka.positions import positions_in
from eoslog.model import OffsetAndMetadata, TopicPartition
from eoslog.storage.format.checkpoints import id_text

_TAKEN_OVER = "eoslog position "
"""Prefix of the metadata of committed offsets that are named positions now."""


class ImportPositions:
    """The positions of one import job.

    Args:
        log: the log, which is the target.
        job: the name of the job.
        partitions: the partitions that the job imports.
        ids: ids of the cluster's topics, by name; empty text if unknown.
    """

    def __init__(
        self,
        log: MovedLog,
        job: str,
        partitions: Collection[TopicPartition],
        ids: Mapping[str, str],
    ) -> None:
        """Keep the job, and the ids of the log's topics; no position is read."""
        self._log, self._job, self._partitions, self._ids = log, job, partitions, ids
        self._stored: dict[TopicPartition, Any] = {}
        self._targets = {tp.topic: id_text(log.topic_id(tp.topic)) for tp in partitions}
        self._earlier: dict[TopicPartition, OffsetAndMetadata] = {}

    def name(self, tp: TopicPartition) -> str:
        """Return the name of a partition's position."""
        return f"kafka-import/{self._job}/{tp}"

    def read(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions to resume from; new partitions have none.

        Raises:
            IllegalState: if a position is not one of an import job.
        """
        earlier = self._committed()
        found = {}
        for tp in self._partitions:
            stored = self._stored[tp] = self._log.position(self.name(tp))
            if stored is None and tp in earlier:
                found[tp] = self._earlier[tp] = earlier[tp]
            elif stored is not None:
                offset, source, target = self._decoded(tp, stored)
                if not target or target == self._targets[tp.topic]:
                    found |= positions_in({tp: offset}, {tp.topic: source})
        return found

    @property
    def earlier(self) -> Collection[TopicPartition]:
        """The partitions whose position is a committed offset of an earlier version."""
        return self._earlier

    def set(self, transaction: Transaction, positions: Mapping[TopicPartition, int]) -> None:
        """Set positions in the transaction of the records before them.

        Raises:
            PositionConflict: if another program has changed one.
            IllegalState: if a topic of the log was re-created since. The new one lacks the records
                of earlier transactions.
        """
        for tp, offset in positions.items():
            target = self._targets[tp.topic]
            if id_text(self._log.topic_id(tp.topic)) != target:
                raise IllegalState(
                    f"job {self._job!r}: topic {tp.topic!r} of the log was deleted and re-created "
                    "during the import; run the import again"
                )
            value = json.dumps(
                {
                    "offset": offset,
                    "source": self._ids.get(tp.topic, ""),
                    "target": target,
                },
                separators=(",", ":"),
            )
            transaction.set_position(self.name(tp), value, expected=self._stored.get(tp))
            self._stored[tp] = value
        if self._earlier:
            taken = {
                tp: OffsetAndMetadata(at.offset, metadata=f"{_TAKEN_OVER}{self.name(tp)}")
                for tp, at in self._earlier.items()
            }
            transaction.send_offsets(taken, self._job)
            self._earlier = {}

    def _committed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what an earlier version has committed and no run has taken over."""
        try:
            committed = self._log.describe_group(self._job).offsets
        except GroupNotFound:
            return {}
        return {
            tp: at
            for tp, at in committed.items()
            if not (at.metadata or "").startswith(_TAKEN_OVER)
        }

    def _decoded(self, tp: TopicPartition, stored: Any) -> tuple[int, str, str]:
        """Return the offset, the id of the cluster's topic and that of the log's topic."""
        if isinstance(stored, int):
            return stored, "", ""
        try:
            value = json.loads(stored)
            return int(value["offset"]), str(value["source"]), str(value["target"])
        except (ValueError, TypeError, KeyError):
            raise IllegalState(
                f"position {self.name(tp)!r}: {stored!r:.200} is not a position of an import job; "
                "set it to the first source offset that is not copied yet, as an int"
            ) from None
