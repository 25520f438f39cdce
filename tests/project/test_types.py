"""What a type checker knows of a program that uses eoslog, and what it refuses."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import SOURCE as ROOT

pytest.importorskip("mypy")

PROGRAM = """
import eoslog
from eoslog import TopicPartition

def f(log: eoslog.Log, p: eoslog.Producer) -> None:
    tp = TopicPartition("t", 0)
    with log.consumer("t", group_id="g") as c:
        reveal_type(c.poll(1))              # eoslog._core.Record[Any, Any] | None
        reveal_type(c.consume(10))          # list[eoslog._core.Record[Any, Any]]
        for record in c:
            reveal_type(record)             # eoslog._core.Record[Any, Any]
            record.vlaue                    # error
        reveal_type(c.committed(tp))        # int | None
        reveal_type(c.committed([tp]))      # list[eoslog.model.TopicPartition]
        reveal_type(c.position(tp))         # int | None
        reveal_type(c.current_lag(tp))      # int | None
        reveal_type(c.current_lag())        # dict[eoslog.model.TopicPartition, int | None]
        with p.transaction() as tx:
            reveal_type(tx)                 # eoslog.client.producer.transactions.transaction.Transaction
            tx.commit_offsets(c)
            tx.commit_offsets(5)            # error
            tx.send_offsets({tp: 5}, "g")
            tx.send_offsets({tp: 5}, 7)     # error
            p.send_offsets_to_transaction([tp], c)
            p.send_offsets_to_transaction(5, c)     # error
    def work(tx: eoslog.Transaction) -> str:
        return "done"
    reveal_type(log.run_transaction(work, transactional_id="x"))  # str
    log.run_transaction(lambda tx: tx.prodcue("t"), transactional_id="x")  # error

async def g(d: eoslog.Delivery) -> None:
    reveal_type(await d)                    # eoslog.model.RecordMetadata
"""


@pytest.mark.slow
def test_a_type_checker_knows_results_and_rejects_wrong_arguments(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    examples = sorted(map(str, (ROOT / "examples").glob("*.py")))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file=",
         f"--cache-dir={tmp_path}", str(program), *examples],
        capture_output=True, text=True, cwd=tmp_path, timeout=500, check=False,
    )  # fmt: skip
    found: dict[int, str] = {}
    for line in done.stdout.splitlines():
        place = re.fullmatch(
            rf"{program.name}:(\d+): (?:(error)|note: Revealed type is \"(.*)\").*", line
        )
        assert place, line  # anything else is an error in an example
        found[int(place[1])] = place[2] or place[3]
    told = {n: line.split("# ") for n, line in enumerate(PROGRAM.splitlines(), 1)}
    assert found == {n: parts[1].strip() for n, parts in told.items() if len(parts) > 1}, done
