"""Applications: functions over topics, with state, in transactions.

`app.py` has the declarations of a program. `worker.py` runs them in one process. `clients.py` has
the transaction of each processing guarantee, and `failures.py` decides what happens after a
function has raised.
"""

from eoslog.app.app import App
from eoslog.app.context import Context
from eoslog.app.log_context import RecordContext
from eoslog.app.supervisor import ProcessStatus

__all__ = ["App", "Context", "ProcessStatus", "RecordContext"]
