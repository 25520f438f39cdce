"""Remedies for a shell: Python calls become commands, and commands name the log."""

from __future__ import annotations

import re
import shlex
from functools import partial

_CREATE = r"create it with log\.create_topic\(%s\) \(producing does not create topics\)"
_LIST = "`{eoslog} topic list` lists the topics"
_MISSING = (
    r"create the missing topics with app\.create_topics\(\), or this one with "
    r"log\.create_topic\(.*?\)"
)
_COMMANDS = {
    _CREATE % r"'(-[\w.-]*)'": "`{eoslog} topic create -- {0}` creates it, " + _LIST,
    _CREATE % r"'([\w.-]+)'": "`{eoslog} topic create {0}` creates it, " + _LIST,
    _CREATE % ".*": _LIST,  # not a name that a topic can have
    r"log\.topics\(\)": "`{eoslog} topic list`",
    r"log\.groups\(\)": "`{eoslog} group list`",
    r"log\.describe_group\(\)": "`{eoslog} group describe`",
    r"log\.pending\(\)": "`{eoslog} txn pending`",
    r"`eoslog (?!-|init\b|config\b)": "`{eoslog} ",
    r"create (?:it|the table) with relay\.create\(\)": "create it with --create of `outbox run`",
    r"pass columns=\{'(\w+)': NAME\}": "pass --column {0}=NAME",
    _MISSING: "--create-topics creates the missing topics",
    r"; give create=True to create one": "",
    r", or open the log with read_only=True": "",
}
"""The command for each call or command without -d, by its pattern."""


def for_a_shell(message: str, directory: str | None = None) -> str:
    """Return a message with commands that a shell runs as they are.

    Args:
        message: the message of an error.
        directory: the value of the option `-d`, which the commands repeat; None without it.
    """
    eoslog = "eoslog" if directory is None else f"eoslog -d {shlex.quote(directory)}"
    for call, command in _COMMANDS.items():
        put = partial(_put, command, eoslog)
        message = re.sub(call, put, message, flags=re.ASCII)
    return message


def _put(command: str, eoslog: str, found: re.Match[str]) -> str:
    return command.format(*found.groups(), eoslog=eoslog)
