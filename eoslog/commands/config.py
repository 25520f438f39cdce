"""`eoslog config`: the configuration keys and what they mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from difflib import get_close_matches

import click

from eoslog.commands.context import CliContext
from eoslog.config.documented import KINDS, DocumentedKey, keys_of


@click.command("config")
@click.argument("kind", required=False, metavar="[KIND]")
@click.argument("key", required=False, metavar="[KEY]")
@click.pass_obj
def config(context: CliContext, kind: str | None, key: str | None) -> None:
    r"""Explain configuration keys.

    KIND is producer, consumer, topic or log. KEY is one key, or a part of its name. A KEY without
    a KIND is looked up in all kinds.

    Exit code 3 if there is no such key.

    \b
    Examples:
      eoslog config
      eoslog config topic retention.ms
      eoslog config linger
    """
    if kind is not None and kind not in KINDS:
        if key is not None:
            raise click.BadParameter(f"expected one of {', '.join(KINDS)}, got {kind!r}")
        kind, key = None, kind
    found = list(_found(kind, key))
    if not found:
        where = f"{kind} " if kind else ""
        near = get_close_matches(_dotted(key or ""), _names(kind), n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`eoslog config` lists all keys"
        raise FileNotFoundError(f"no {where}key contains {key!r}; {hint}")
    if len(found) == 1:
        context.show_one(asdict(found[0]))
    else:
        context.show(map(_row, found), ("kind", "key", "default", "values", "meaning"))


def _found(kind: str | None, key: str | None) -> Iterator[DocumentedKey]:
    wanted = None if key is None else _dotted(key)
    for name in [kind] if kind else KINDS:
        keys = keys_of(name)
        exact = [one for one in keys if wanted in (one.name, *one.aliases)]
        yield from exact or [one for one in keys if wanted is None or wanted in one.name]


def _names(kind: str | None) -> list[str]:
    return [one.name for name in ([kind] if kind else KINDS) for one in keys_of(name)]


def _dotted(key: str) -> str:
    return key.replace("_", ".").lower()


def _row(key: DocumentedKey) -> dict[str, str]:
    unit = f" ({key.unit})" if key.unit else ""
    return {
        "kind": key.kind, "key": key.name, "default": key.default, "values": key.values + unit,
        "meaning": key.meaning,
    }  # fmt: skip


COMMANDS = (config,)
