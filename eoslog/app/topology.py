"""The topics of an application: their creation, and checks at the start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from eoslog.errors import ConfigError, UnknownTopicOrPartition

if TYPE_CHECKING:
    from eoslog.app.tables.table import AppTable
    from eoslog.app.tasks import Task
    from eoslog.log import Log
    from eoslog.options import TopicOptions

__all__ = ["check_topics", "create_topics", "described"]


def described(tasks: Iterable[Task], tables: Iterable[AppTable]) -> dict[str, Any]:
    """Return what all workers of an application must have in common, as JSON values."""
    return {
        "task": {
            task.name: {
                "topic": task.topic,
                "tables": sorted(table.topic for table in task.tables),
            }
            for task in tasks
        },
        "table": {table.topic: {"store": table.store, **table._formats} for table in tables},
    }


def create_topics(log: Log, app_id: str, tasks: Iterable[Task], partitions: int) -> list[str]:
    """See `App.create_topics`."""
    tasks = list(tasks)
    made = []

    def create(name: str, count: int, config: TopicOptions | None = None) -> None:
        if name not in log.topics():
            log.create_topic(name, partitions=count, config=config, exist_ok=True)
            made.append(name)

    for task in tasks:
        create(task.topic, partitions)
    _check_inputs(log, app_id, tasks)
    for task in tasks:
        count = len(log.partitions_of(task.topic))
        for table in task.tables:
            create(table.topic, count, {"cleanup.policy": "compact"})
        if task.to is not None:
            create(task.to, count)
    check_topics(log, app_id, tasks)
    return made


def check_topics(log: Log, app_id: str, tasks: Iterable[Task]) -> None:
    """Check the topics of an application.

    Raises:
        UnknownTopicOrPartition: if a topic does not exist.
        ConfigError: if the topics of a table's tasks have different numbers of partitions, or the
            topic of a table has another number than they have, or is not compacted.
    """
    tasks = list(tasks)
    known = set(log.topics())
    for task in tasks:
        for topic in (task.topic, task.to, *(table.topic for table in task.tables)):
            if topic is not None and topic not in known:
                raise UnknownTopicOrPartition(
                    f"app {app_id!r}, task {task.name!r}: topic {topic!r} does not exist; create "
                    f"the missing topics with app.create_topics(), or this one with "
                    f"log.create_topic({topic!r})"
                )
    _check_inputs(log, app_id, tasks)
    for task in tasks:
        count = len(log.partitions_of(task.topic))
        for table in task.tables:
            _check_table(log, f"app {app_id!r}, task {task.name!r}", task.topic, count, table.topic)


def _check_inputs(log: Log, app_id: str, tasks: Iterable[Task]) -> None:
    """Check that the topics whose tasks share a table have as many partitions."""
    first_of: dict[str, tuple[str, int]] = {}
    for task in tasks:
        count = len(log.partitions_of(task.topic))
        for table in task.tables:
            other, others = first_of.setdefault(table.topic, (task.topic, count))
            if others != count:
                raise ConfigError(
                    f"app {app_id!r}, task {task.name!r}: topic {task.topic!r} has {count} "
                    f"partitions, and topic {other!r} has {others}, but their tasks share table "
                    f"{table.topic!r}; write the records of one of them to a topic with as many "
                    "partitions as the other"
                )


def _check_table(log: Log, subject: str, topic: str, count: int, table: str) -> None:
    description = log.describe_topic(table)
    found = len(description.partitions)
    if found != count:
        if any(partition.offsets.log_end for partition in description.partitions):
            remedy = (
                "its rows have their keys in other partitions now, so use another topic for the "
                "table, and another id for the application, which then reads the input again"
            )
        else:
            remedy = (
                f"it is empty: delete it with log.delete_topic({table!r}), and create it again "
                "with app.create_topics()"
            )
        raise ConfigError(
            f"{subject}: topic {topic!r} has {count} partitions, and table {table!r} has {found}; "
            f"a table needs as many partitions as the topics of its tasks; {remedy}"
        )
    if "compact" not in description.config.get("cleanup.policy", ""):
        raise ConfigError(
            f"{subject}: topic {table!r} of a table is not compacted; set it with "
            f"log.alter_topic({table!r}, {{'cleanup.policy': 'compact'}})"
        )
