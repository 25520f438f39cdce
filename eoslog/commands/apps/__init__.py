"""The commands of applications: `eoslog run` and `eoslog dead`."""

from eoslog.commands.apps import dead, run

__all__ = ["COMMANDS"]

COMMANDS = (run.run, dead.dead)
