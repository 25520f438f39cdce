"""SQL over topics, by DuckDB.

DuckDB reads each topic through the Arrow C stream interface, as often as the query needs it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from eoslog._util.arguments import shown
from eoslog._util.extras import package
from eoslog.client.arrow import schema as arrow
from eoslog.client.scan.scan import Scan, StreamKeepingErrors
from eoslog.errors import ConfigError, EoslogError, UnknownTopicOrPartition

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["query"]

_MISSING_TABLE = re.compile(r"Catalog Error: Table with name (.+) does not exist!")


def query(
    sql: str, topics: Iterable[str], scans: Callable[[set[str]], dict[str, Scan]]
) -> pa.Table:
    """Run a statement; `Log.query` describes it.

    Args:
        sql: the statement.
        topics: the names of all topics.
        scans: returns scans of some topics, as of one moment.
    """
    if not isinstance(sql, str):
        raise ConfigError(f"query: expected SQL as str, got {shown(sql)}")
    arrow.require_pyarrow()
    duckdb: Any = package("duckdb", "query", "duckdb")
    failed: list[EoslogError] = []
    # Otherwise DuckDB takes the name of a missing topic for a variable of this function.
    with duckdb.connect(":memory:", config={"python_enable_replacements": False}) as connection:
        try:
            names = _topics_of(connection.get_table_names(sql), set(topics))
            for name, scan in scans(set(names.values())).items():
                for written in (one for one, topic in names.items() if topic == name):
                    connection.register(written, StreamKeepingErrors(scan, failed))
            result = connection.sql(sql)
            return arrow.require_pyarrow().table({}) if result is None else result.to_arrow_table()
        except duckdb.Error as error:
            if failed:
                raise failed[0] from error
            missing = _MISSING_TABLE.match(str(error))
            if missing is not None:
                near = difflib.get_close_matches(missing[1], topics, 1)
                hint = f"did you mean {near[0]!r}?" if near else "log.topics() lists all topics"
                if near == [missing[1]]:
                    hint = "a topic has no schema in SQL: write its name alone"
                raise UnknownTopicOrPartition(
                    f"query: topic {shown(missing[1])} does not exist; {hint}"
                ) from error
            raise ConfigError(f"query: {error}") from error


def _topics_of(written: Iterable[str], topics: set[str]) -> dict[str, str]:
    """Return the topic that each name of a statement means; SQL does not distinguish case.

    Raises:
        ConfigError: if a name means several topics, or two names differ in case only.
    """
    found: dict[str, str] = {}
    for name in written:
        same = {topic for topic in topics if topic.lower() == name.lower()}
        if name in same:
            same = {name}
        if len(same) > 1:
            raise ConfigError(
                f"query: {shown(name)} means several topics, {', '.join(sorted(same))}; write the "
                "name as it is"
            )
        if same:
            found[name] = same.pop()
    alike: dict[str, str] = {}
    for name, topic in found.items():
        other = alike.setdefault(name.lower(), topic)
        if other != topic:
            raise ConfigError(
                "query: SQL does not distinguish case, so one statement cannot read "
                f"{' and '.join(sorted((other, topic)))}; read them with Log.scan"
            )
    return found
