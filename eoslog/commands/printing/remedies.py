"""Remedies for a shell: messages of the API name Python calls."""

from __future__ import annotations

import re

_COMMANDS = {
    r"create it with log\.create_topic\(.*\) \(producing does not create topics\)": (
        "`eoslog topic list` lists the topics"
    ),
    r"log\.topics\(\)": "`eoslog topic list`",
    r"log\.groups\(\)": "`eoslog group list`",
    r"log\.describe_group\(\)": "`eoslog group describe`",
    r"log\.pending\(\)": "`eoslog txn pending`",
    r"; give create=True to create one": "",
    r", or open the log with read_only=True": "",
}
"""The command for each call, by the pattern of the call."""


def for_a_shell(message: str) -> str:
    """Return a message with commands in place of the Python calls that it names."""
    for call, command in _COMMANDS.items():
        message = re.sub(call, command, message)
    return message
