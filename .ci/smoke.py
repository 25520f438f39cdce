"""Check a wheel by a first use of the installed package: `python .ci/smoke.py`.

Needs numpy alone. With the extras `arrow` and `cli`, a scan and the command line are used too.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import eoslog
from eoslog import _core


def write(place: Path) -> None:
    """Two orders, and their totals in a transaction; then an aborted one."""
    with eoslog.open(place) as log:
        log.create_topic("orders", partitions=2)
        log.create_topic("totals")
        with log.producer() as producer:
            for amount in (3, 4):
                producer.produce("orders", key="ada", value=str(amount))
        settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        with (
            log.producer(transactional_id="doubler") as producer,
            log.consumer("orders", group_id="doubler", **settings) as orders,
        ):
            producer.init_transactions()
            with producer.transaction() as tx:
                for order in orders.consume(2, timeout=30):
                    tx.produce("totals", value=str(2 * int(order.value)))
                tx.commit_offsets(orders)
            producer.begin_transaction()
            producer.produce("totals", value="1000")
            producer.abort_transaction()


def main() -> int:
    """Use what is installed, and print what was used."""
    done = ["open", "transaction", "read"]
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary, "shop")
        write(place)
        with eoslog.open(place) as log:
            values = [int(record.value) for record in log.read("totals")]
            assert values == [6, 8], values
            if importlib.util.find_spec("pyarrow"):
                table = log.scan("totals").to_table()
                assert [int(value) for value in table["value"].to_pylist()] == [6, 8], table
                done.append("scan")
        if importlib.util.find_spec("click") and importlib.util.find_spec("rich"):
            command = str(Path(sys.executable).with_name("eoslog"))
            for arguments in (["check"], ["topic", "list"]):
                ended = subprocess.run(
                    [command, "--dir", str(place), *arguments], capture_output=True, text=True
                )
                assert ended.returncode == 0, (arguments, ended)
            assert "totals" in ended.stdout, ended
            done.append("command line")
    print(
        f"eoslog {eoslog.__version__}, Python {sys.version.split()[0]}, "
        f"CRC-32C by {_core.crc32c_backend}: {', '.join(done)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
