"""Serve requests in an asyncio program, and count them exactly once.

Each request becomes a record. A projection reads batches of them, and writes its totals and its
position in one transaction. The program can be killed or cancelled at any point.
"""

import asyncio
import signal
import sys
import tempfile
from collections import Counter

import eoslog
from eoslog.options import ConsumerOptions

READING: ConsumerOptions = {"auto_offset_reset": "earliest", "enable_auto_commit": False}


async def serve(log: eoslog.Log, requests: int) -> int:
    """Answer requests: each one when its record is on the disk."""
    async with log.async_producer() as producer:
        answers = [
            producer.send_and_wait("requests", str(number), f"user-{number % 3}")
            for number in range(requests)
        ]
        return len(await asyncio.gather(*answers))


async def project(log: eoslog.Log, stop: asyncio.Event) -> None:
    """Count the requests of each user, until `stop` is set and all are counted."""
    totals = Counter(await asyncio.to_thread(totals_of, log))
    async with (
        log.async_producer(transactional_id="projection") as producer,
        log.async_consumer("requests", group_id="projection", **READING) as consumer,
    ):
        while True:
            found = await consumer.getmany(timeout_ms=100, max_records=4)
            if not found and stop.is_set() and consumer.assignment():
                return
            users = [record.key for records in found.values() for record in records]
            totals.update(users)
            async with producer.transaction() as tx:
                for user in set(users):
                    await tx.send("totals", str(totals[user]), user)
                await tx.commit_offsets(consumer)


def totals_of(log: eoslog.Log) -> dict[bytes, int]:
    """Return the last total of each user."""
    return {record.key: int(record.value) for record in log.read("totals")}


async def run(log: eoslog.Log) -> None:
    """Serve ten requests, then stop as at SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(project(log, stop))
        print("wrote", await serve(log, 10), end="; ")
        stop.set()


def main(path: str) -> None:
    """Run the service, and compare the totals with the requests."""
    with eoslog.open(path) as log:
        for topic in ("requests", "totals"):
            log.create_topic(topic, exist_ok=True)
        asyncio.run(run(log))
        requests = Counter(record.key for record in log.read("requests"))
        print("the totals agree:", totals_of(log) == requests)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
