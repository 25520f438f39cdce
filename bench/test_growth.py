"""Append, scan, commit and seek by time, with up to 100 times the data.

The factors 1, 10 and 100 apply to the data or to the number of partitions.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import eoslog
from bench import data
from bench.contest import Contender, Contest

FACTORS = (100, 10, 1)
RECORDS = 10_000
"""At 1x, in one partition; a segment holds about as many."""
_TIME_MS = 1_700_000_000_000
_ids = itertools.count()


@pytest.fixture(scope="module")
def logs(request: pytest.FixtureRequest) -> Iterator[dict[int, eoslog.Log]]:
    """By factor: a log with that many times the records, or that many partitions.

    The records are in one partition.
    """
    with contextlib.ExitStack() as stack:
        place = data.place_of_benchmarks()
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        made = {}
        for factor in FACTORS:
            partitions = factor if request.param == "partitions" else 1
            log = stack.enter_context(
                data.fresh_log(place, "os", partitions, **{"segment.bytes": 1 << 20})
            )
            for at in range(factor // partitions):
                batches = data.batches(RECORDS, 100, time_ms=_TIME_MS + at * RECORDS, apart_ms=1)
                for number, batch in itertools.product(range(partitions), batches):
                    log._engine.partition(data.TOPIC, number).append(batch)
            made[factor] = log
        yield made


def append(log: eoslog.Log) -> tuple[Contender, int]:
    count, batch = 100, data.batches(10, 10)[0]  # in all about as much as 1x
    partition = log._engine.partition(data.TOPIC, 0)

    def run(_state: Any) -> None:
        for _ in range(count):
            partition.append(batch)

    def check(_state: Any, _result: Any) -> None:
        assert partition.log_end % 10 == 0

    return Contender("append", run, check=check), count


def scan(log: eoslog.Log) -> tuple[Contender, int]:
    everything = sum(
        log.offsets(data.TOPIC, number).log_end
        for number in range(len(log.describe_topic(data.TOPIC).partitions))
    )

    def run(_state: Any) -> int:
        return sum(batch.num_rows for batch in log.scan(data.TOPIC, columns=["value", "offset"]))

    def check(_state: Any, found: int) -> None:
        assert found == everything

    return Contender("scan", run, check=check), everything


def commit(log: eoslog.Log) -> tuple[Contender, int]:
    count = 50

    @contextlib.contextmanager
    def producing() -> Iterator[Any]:
        with log.producer(transactional_id=f"bench-{next(_ids)}") as producer:
            producer.init_transactions()
            yield producer

    def run(producer: Any) -> None:
        for _ in range(count):
            producer.begin_transaction()
            producer.produce(data.TOPIC, b"v", partition=0)
            producer.commit_transaction()

    def check(_state: Any, _result: Any) -> None:
        found = log.offsets(data.TOPIC, 0)
        assert found.last_stable == found.log_end

    return Contender("commit", run, producing, check), count


def seek(log: eoslog.Log) -> tuple[Contender, int]:
    found = log.describe_topic(data.TOPIC).partitions
    places, end = len(found), log.offsets(data.TOPIC, 0).log_end
    dice = random.Random(1)
    wanted = [(dice.randrange(places), dice.randrange(end)) for _ in range(300)]

    def run(_state: Any) -> list[int]:
        return [
            log.offset_for_time(data.TOPIC, partition, _TIME_MS + offset)
            for partition, offset in wanted
        ]

    def check(_state: Any, found: list[int]) -> None:
        assert found == [offset for _, offset in wanted]

    return Contender("seek", run, check=check), len(wanted)


@pytest.mark.parametrize("logs", ["data", "partitions"], indirect=True)
@pytest.mark.parametrize("work", [scan, seek, commit, append])
def test_growth(
    contest: Contest,
    logs: dict[int, eoslog.Log],
    work: Callable[[eoslog.Log], tuple[Contender, int]],
) -> None:
    field = []
    for factor, log in logs.items():
        made, units = work(log)
        field.append(Contender(f"{factor}x", made.run, made.around, made.check, units))
    assert field[0].units is not None
    contest(*field, units=field[0].units, unit="calls", rounds=9)
