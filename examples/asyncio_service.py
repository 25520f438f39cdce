"""Serve requests in an asyncio program, and count them exactly once.

A request is answered when its record is durable. A projection writes the totals of a batch and its
position in one transaction. The program can be killed or cancelled at any point.
"""

import asyncio
import sys
import tempfile
from collections import Counter

import eoslog


async def project(log: eoslog.Log) -> None:
    """Count the requests of each user, until the task is cancelled."""
    async with (
        log.async_producer(transactional_id="projection", value="json") as producer,
        log.async_consumer(
            "requests", group_id="projection", auto_offset_reset="earliest", producer=producer
        ) as consumer,
    ):
        totals = Counter(await asyncio.to_thread(lambda: dict(log.table("totals"))))
        async for batch in consumer.batches(4):
            users = [record.key.decode() for record in batch]
            totals.update(users)
            async with producer.transaction() as tx:
                for user in set(users):
                    await tx.send("totals", totals[user], user)
                await tx.commit_offsets(consumer)


async def serve(log: eoslog.Log) -> None:
    """Answer ten requests, and stop when they are counted."""
    async with asyncio.TaskGroup() as tasks, log.async_producer() as producer:
        projection = tasks.create_task(project(log))
        answers = (producer.send_and_wait("requests", "", f"user-{n % 3}") for n in range(10))
        last = max(answer.offset for answer in await asyncio.gather(*answers))
        while await asyncio.to_thread(lambda: sum(log.table("totals").values())) <= last:
            await asyncio.sleep(0.01)
        projection.cancel()


def main(path: str) -> None:
    """Run the service, and compare the totals with the requests."""
    with eoslog.open(path) as log:
        log.create_topic("requests", exist_ok=True)
        log.create_topic("totals", config={"cleanup.policy": "compact"}, exist_ok=True)
        asyncio.run(serve(log))
        requests = Counter(record.key.decode() for record in log.read("requests"))
        print("the totals agree:", dict(log.table("totals")) == requests)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [tempfile.mkdtemp()]))
