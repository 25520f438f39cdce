"""The context of a call: its place, and its output."""

from __future__ import annotations

from types import GeneratorType
from typing import TYPE_CHECKING, Any

from eoslog.errors import IllegalState

if TYPE_CHECKING:
    from eoslog._core import Record
    from eoslog.app.tasks import Task

__all__ = ["Context", "Output"]

Output = tuple[str, Any, Any, Any, "int | None", "int | None"]
"""Topic, value, key, headers, partition and timestamp of a record to send."""


class Context:
    """The place of one call of a task, and its output.

    The second argument of each task is a context::

        app = eoslog.App("shop", "billing")

        @app.task("orders", key="string", value="string")
        def bill(record, ctx):
            ctx.send("bills", f"bill for {record.value}", record.key)

    Attributes:
        app_id: the id of the application.
        task: the name of the task.
        record: the record, with its key and value decoded; the first one of a batch.
        attempt: the number of this attempt to process the record, from 1.
    """

    __slots__ = ("_formats", "_open", "_outputs", "app_id", "attempt", "record", "task")

    def __init__(self, app_id: str, task: Task, record: Record, attempt: int = 1) -> None:
        """Begin a call."""
        self.app_id = app_id
        self.task = task.name
        self.record = record
        self.attempt = attempt
        self._formats = task
        self._outputs: list[Output] = []
        self._open = True

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Send a record in the transaction of the record that is processed.

        It is sent when the function has returned. If the function raises, it is not sent.

        Args:
            topic: the topic.
            value: the value, in the value format of the task. None is a tombstone, and bytes are
                sent as they are.
            key: the key, in the key format of the task, or bytes; None means no key.
            headers: pairs of name and bytes, or a mapping; None means no headers.
            partition: the partition; None lets the partitioner choose.
            timestamp: milliseconds since the epoch; None means now.

        Raises:
            SerializationError: if the key or the value is not in the format.
            IllegalState: if the function has returned, for example in a thread that it started.
        """
        self._check_open("send")
        self._outputs.append(
            (topic, self._formats.value.bytes_of(value), self._formats.key.bytes_of(key), headers,
             partition, timestamp)
        )  # fmt: skip

    def _send_result(self, topic: str, result: Any, key: bytes | None) -> None:
        """Send what the task has returned or yielded, with a key that is encoded already."""
        encode = self._formats.value.bytes_of
        if type(result) is GeneratorType:
            for value in result:
                self._outputs.append((topic, encode(value), key, None, None, None))
        elif result is not None:
            self._outputs.append((topic, encode(result), key, None, None, None))

    def _check_open(self, call: str) -> None:
        if not self._open:
            record = self.record
            raise IllegalState(
                f"app {self.app_id!r}, task {self.task!r}: {call} was called after the task had "
                f"processed {record.topic}-{record.partition} at offset {record.offset}, outside "
                "of its transaction; call it before the task returns"
            )

    def _end(self) -> list[Output]:
        """End the call, and return what it has sent."""
        self._open = False
        return self._outputs

    def __repr__(self) -> str:
        record = self.record
        place = f"{record.topic}-{record.partition} at offset {record.offset}"
        return f"<Context of {self.app_id!r}, task {self.task!r}, {place}, attempt {self.attempt}>"
