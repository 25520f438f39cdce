"""Values of prepared transactions, and names of transactions in databases.

    the coordinator's transaction    {"eoslog.tpc": {"open": [PLACE, ...]}}
    a transaction of a producer      {"eoslog.tpc": {"of": TOKEN}}
    a transaction of a database      eoslog/TOKEN/NUMBER

A place is a database or a log that has not confirmed the commit. TOKEN is that of the coordinator's
transaction, which begins with the id of its log. So two logs never mistake each other's names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

__all__ = [
    "branch_meta", "gid_of", "gid_prefix", "open_meta", "open_places", "resolver_name",
    "token_of_branch", "token_of_gid",
]  # fmt: skip

_KEY = "eoslog.tpc"
_GID = re.compile(r"eoslog/(?P<token>[^/]+:\d+:\d+:\d+)/\d+")


def resolver_name(cluster_id: str) -> str:
    """Return the resolver of the transactions that a log decides."""
    return f"{_KEY}.{cluster_id}"


def open_meta(places: Iterable[str]) -> dict[str, Any]:
    """Return the value of a coordinator's transaction: the places that take part."""
    return {_KEY: {"open": sorted(set(places))}}


def open_places(meta: Any) -> list[str] | None:
    """Return the places that have not confirmed; None for another transaction."""
    found = _part(meta, "open")
    return found if isinstance(found, list) else None


def branch_meta(token: str) -> dict[str, Any]:
    """Return the value of a producer's transaction that a token decides."""
    return {_KEY: {"of": token}}


def token_of_branch(meta: Any) -> str | None:
    """Return the token that decides a producer's transaction; None for another one."""
    found = _part(meta, "of")
    return found if isinstance(found, str) else None


def _part(meta: Any, name: str) -> Any:
    inner = meta.get(_KEY) if isinstance(meta, dict) else None
    return inner.get(name) if isinstance(inner, dict) else None


def gid_prefix(cluster_id: str) -> str:
    """Return how the names of a log's transactions in databases begin."""
    return f"eoslog/{cluster_id}:"


def gid_of(token: str, number: int) -> str:
    """Return the name of a transaction in a database."""
    return f"eoslog/{token}/{number}"


def token_of_gid(gid: str, cluster_id: str) -> str | None:
    """Return the token in a name; None if the log has not made the name."""
    found = _GID.fullmatch(gid)
    if found is None or not gid.startswith(gid_prefix(cluster_id)):
        return None
    return found["token"]
