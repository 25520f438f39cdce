"""What notebooks show for a log and its parts, and what a second run holds."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import eoslog


def cells(shown: str) -> tuple[str, list[list[str]]]:
    """The caption and the rows of a table; fails if it is not well-formed."""
    root = ElementTree.fromstring(shown)
    rows = [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]
    return "".join(root.find("caption").itertext()), rows


@pytest.fixture
def shop(path: str):
    with eoslog.open(path) as log:
        log.create_topic("orders", 2, {"retention.ms": -1})
        log.create_topic("payments")
        with log.producer() as producer:
            producer.produce_many("orders", map(str, range(1200)), partition=0)
            producer.produce("orders", "1", partition=1)
        yield log


def test_a_log_shows_its_topics_and_their_records(shop):
    caption, rows = cells(shop._repr_html_())
    assert shop.path in caption and "durability strict" in caption
    assert rows[1:] == [["orders", "2", "1,201"], ["payments", "1", "0"]]


def test_a_closed_an_outdated_and_a_read_only_log_say_so(shop):
    with eoslog.open(shop.path, read_only=True) as reader:
        assert "read-only" in cells(reader._repr_html_())[0]
    caption, rows = cells(reader._repr_html_())
    assert caption.endswith("closed")
    assert rows == []
    shop.close()
    with eoslog.open(shop.path, read_only=True) as reader:
        program = f"import eoslog; eoslog.open({shop.path!r}).close()"
        subprocess.run([sys.executable, "-c", program], check=True)
        caption, rows = cells(reader._repr_html_())
        assert reader.outdated and "open the log again" in caption.lower()
        assert rows == []


def test_a_topic_shows_its_partitions_and_settings(shop):
    caption, rows = cells(shop.describe_topic("orders")._repr_html_())
    assert caption == "Topic orders, retention.ms=-1"
    assert rows[0] == ["partition", "log start", "last stable offset", "log end"]
    assert rows[1:] == [["0", "0", "1,200", "1,200"], ["1", "0", "1", "1"]]


def test_a_group_shows_its_offsets_and_members(shop):
    with shop.consumer(
        "orders", group_id="<g>", client_id="<me>", auto_offset_reset="earliest"
    ) as consumer:
        left = 1201
        while left:
            left -= len(consumer.consume(left, timeout=30))
        consumer.commit()
        caption, rows = cells(shop.describe_group("<g>")._repr_html_())
    assert caption == "Group <g>: Stable, 1 members"
    assert rows[1:] == [["orders-0", "1,200", "<me>"], ["orders-1", "1", "<me>"]]


def test_a_scan_shows_its_ranges_and_reads_nothing(shop):
    scan = shop.scan("orders", columns=["key", "value"])
    shop.delete_topic("orders")
    caption, rows = cells(scan._repr_html_())
    assert caption == "Scan of key, value"
    assert rows[1:] == [["orders-0", "0", "1,200"], ["orders-1", "0", "1"]]


def test_a_table_shows_its_rows_and_a_damaged_value_raw(shop):
    shop.create_topic("prices", config={"cleanup.policy": "compact"})
    with shop.producer() as producer:
        producer.produce("prices", '{"eur": 3}', "<ada>")
        producer.produce("prices", "{", "bob")
    caption, rows = cells(shop.table("prices")._repr_html_())
    assert caption == "Table 'prices', 2 keys"
    assert rows == [["key", "value"], ["<ada>", "{'eur': 3}"], ["bob", "b'{'"]]
    assert cells(shop.table("orders", key="bytes", value="bytes")._repr_html_())


NOTEBOOK = """
import os, threading
import eoslog

path = {path!r}
with eoslog.open(path) as log:
    log.create_topic("orders", 2)
    with log.producer() as producer:
        producer.produce_many("orders", map(str, range(1000)))

def held():
    maps = [line for line in open("/proc/self/maps") if path in line]
    return len(os.listdir("/proc/self/fd")), threading.active_count(), len(maps)

names, counts = {{}}, []
for _ in range(12):
    exec({cell!r}, names)
    counts.append(held())
# Work in the background may open some files once. What a cell leaves comes with each run.
print(all(last - third < 9 for third, last in zip(counts[2], counts[-1])), counts)
"""
READS = """
import eoslog
log = eoslog.open({path!r}, read_only=True)
records = log.read("orders")
first = next(records)
scan = log.scan("orders")
batches = iter(scan)
batch = next(batches)
log._repr_html_(), scan._repr_html_(), log.describe_topic("orders")._repr_html_()
"""
CONSUMES = """
import eoslog
log = eoslog.open({path!r})
consumer = log.consumer("orders", group_id="g", auto_offset_reset="earliest",
                        enable_auto_commit=False)
records = consumer.consume(10, timeout=30)
assert len(records) == 10, records
log.describe_group("g")._repr_html_()
"""
WRITES = """
import eoslog
log = eoslog.open({path!r})
with log.producer(transactional_id="notebook") as producer:
    producer.init_transactions()
    with producer.transaction() as tx:
        tx.produce("orders", "more")
"""


@pytest.mark.process
@pytest.mark.parametrize("cell", [READS, CONSUMES, WRITES], ids=["reads", "consumes", "writes"])
def test_a_cell_that_runs_again_holds_no_more_than_before(cell: str, tmp_path: Path) -> None:
    path = str(tmp_path / "shop")
    program = NOTEBOOK.format(path=path, cell=cell.format(path=path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split()[:1] == ["True"], (done.stdout, done.stderr)
