"""The order of `processes.atomic`, and the sink of `processes.sink`, as coroutines."""

from __future__ import annotations

import asyncio
import os

import eoslog
from eoslog.sql import Database
from eoslog.storage.fs.files import arm_failpoint
from tests.sql.coroutines.engines import act_at_statement, engine_of, run
from tests.sql.databases import Place, end_here
from tests.sql.processes.exit_codes import CODES, SIGNALS, code_of


def order_async(path: str, place: Place, number: int, point: str, action: str, name: str) -> int:
    """Place one order, and return 0 or the code of an error."""

    async def main() -> None:
        engine = engine_of(place)
        if point.startswith("statement:"):
            act_at_statement(engine, int(point[10:]), end_here(SIGNALS[action]))
        elif point and point != "body":
            arm_failpoint(point, action)
        with eoslog.open(path) as log:
            async with (
                Database(engine) as database,
                log.async_producer(transactional_id=name) as producer,
                log.atomic(producer, database) as tx,
            ):
                await run(tx.connection, f"insert into placed values ({number})")
                await tx.send("orders", f"{number}", partition=number % 2)
                if point == "body":
                    await producer.flush()
                    os.kill(os.getpid(), SIGNALS[action])
        await engine.dispose()

    try:
        asyncio.run(main())
    except tuple(CODES) as error:
        return code_of(error)
    return 0
