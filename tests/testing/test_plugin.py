"""The pytest plugin in other runs of pytest: fixtures, marker, comparisons."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest_plugins = ("pytester",)

pytestmark = pytest.mark.process

LOADED = """
import sys
import pytest
before = set(sys.modules)
import eoslog.testing.plugin
print(*sorted(set(sys.modules) - before))
"""


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Run a test file in another process; return its result."""

    def run(text: str, *words: str) -> pytest.RunResult:
        pytester.makepyfile(text)
        command = ["-p", "no:cacheprovider", "-p", "no:xdist", "-q", "--strict-markers", *words]
        return pytester.runpytest_subprocess(*command, timeout=120)

    return run


def test_an_installation_offers_the_plugin_to_pytest():
    found = {item.value for item in entry_points(group="pytest11") if item.name == "eoslog"}
    assert found == {"eoslog.testing.plugin"}


def test_the_plugin_loads_three_modules_of_eoslog_and_no_other():
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["eoslog", "eoslog.testing", "eoslog.testing.plugin",
                                   "eoslog.version"]  # fmt: skip


def test_a_run_without_the_fixtures_loads_no_more_of_eoslog(run):
    result = run("""
        import sys

        def test_nothing():
            loaded = {name for name in sys.modules if name.startswith("eoslog")}
            assert [1] == [1]
            assert loaded == {"eoslog", "eoslog.testing", "eoslog.testing.plugin", "eoslog.version"}
    """)
    result.assert_outcomes(passed=1)


def test_each_test_gets_a_log_of_its_own_that_is_closed_and_removed(run, tmp_path):
    result = run(f"""
        import pathlib, pytest

        @pytest.mark.eoslog_topics("orders", {{"web-clicks": 2}}, payments=3)
        def test_a_log(eoslog_log, eoslog_dir):
            assert eoslog_log.durability == "os"
            counts = {{name: len(eoslog_log.partitions_of(name)) for name in eoslog_log.topics()}}
            assert counts == {{"orders": 1, "web-clicks": 2, "payments": 3}}
            assert pathlib.Path(eoslog_log.path).parent == eoslog_dir
            with eoslog_log.producer() as producer:
                producer.send("orders", "1").result(timeout=60)
            pathlib.Path({str(tmp_path / "place")!r}).write_text(str(eoslog_dir))

        def test_another(eoslog_log):
            assert eoslog_log.topics() == []
    """)
    result.assert_outcomes(passed=2)
    assert not Path((tmp_path / "place").read_text()).exists()


def test_the_log_is_on_a_disk_if_memory_has_no_room(run):
    result = run("""
        import eoslog.testing.temporary as temporary

        temporary._LEAST_FREE = 1 << 60

        def test_a_log(eoslog_log, tmp_path_factory):
            assert eoslog_log.path.startswith(str(tmp_path_factory.getbasetemp()))
    """)
    result.assert_outcomes(passed=1)


def test_the_factory_creates_logs_with_options_of_open(run):
    result = run("""
        import eoslog, pytest

        def test_two_logs(eoslog_factory):
            one = eoslog_factory(["orders"], durability="strict", pending_max_count=5)
            two = eoslog_factory(topics={"orders": 2})
            three = eoslog_factory("orders")
            assert [len(log.partitions_of("orders")) for log in (one, two, three)] == [1, 2, 1]
            assert (one.durability, two.durability) == ("strict", "os")
            assert len({log.path for log in (one, two, three)}) == 3
            with pytest.raises(eoslog.errors.ConfigError):
                eoslog_factory(pending_max_cuont=5)
    """)
    result.assert_outcomes(passed=1)


def test_a_directory_of_the_users_choice_holds_the_logs(run):
    result = run("""
        import pytest

        @pytest.fixture
        def eoslog_dir(tmp_path):
            return tmp_path

        def test_a_log(eoslog_log, tmp_path):
            assert eoslog_log.path == str(tmp_path / "log-1")
    """)
    result.assert_outcomes(passed=1)


def test_the_clock_fixture_moves_the_clock_of_the_log_fixture(run):
    result = run("""
        import pytest
        from eoslog.testing import assert_records

        @pytest.mark.eoslog_topics("reminders")
        def test_a_reminder(eoslog_log, eoslog_clock):
            with eoslog_log.producer() as producer:
                producer.send("reminders", "tea", deliver_at=eoslog_clock.ms + 3_600_000)
            assert_records(eoslog_log, "reminders", [])
            eoslog_clock.advance(3600)
            assert_records(eoslog_log, "reminders", ["tea"])
    """)
    result.assert_outcomes(passed=1)


def test_the_kill_fixture_ends_a_process_inside_of_a_transaction(run):
    result = run("""
        import pytest
        from eoslog.testing import assert_records

        def pay(log):
            with log.producer(transactional_id="pay") as producer:
                producer.init_transactions()
                with producer.transaction() as tx:
                    tx.produce("payments", "10")

        @pytest.mark.eoslog_topics("payments")
        @pytest.mark.parametrize(("point", "expected"), [("txn.flushed", []), ("txn.decided", ["10"])])
        def test_a_payment(eoslog_log, eoslog_kill, point, expected):
            eoslog_kill(pay, eoslog_log, at=point)
            with eoslog_log.producer(transactional_id="pay") as producer:
                producer.init_transactions()
            assert_records(eoslog_log, "payments", expected)
    """, "-W", "error")  # fmt: skip
    result.assert_outcomes(passed=2)


def test_unequal_lists_of_records_are_shown_field_by_field(run):
    result = run("""
        from eoslog import Record

        def test_lists():
            left = [Record("t", 0, 0, value=b"same"), Record("t", 0, 1, key=b"k", value=b"1 pear")]
            right = [Record("t", 0, 0, value=b"same"), Record("t", 0, 1, key=b"k", value=b"2 pears"),
                     Record("t", 0, 2, value=b"more")]
            assert left == right

        def test_records_beside_values():
            assert [Record("t", 0, 0, value=b"1")] == [b"1"]

        def test_two_records():
            assert Record("t", 0, 7, value=b"1") == Record("t", 0, 8, value=b"1")
    """)
    result.assert_outcomes(failed=3)
    shown = result.stdout.str()
    assert "list of 2 == list of 3" in shown
    assert "at index 1:" in shown and "value: b'1 pear' != b'2 pears'" in shown
    assert "only right, at index 2: t-0 at offset 2: None: b'more'" in shown
    assert "at index 0:" not in shown
    assert "a record is equal to records only" in shown
    assert "offset: 7 != 8" in shown


def test_wrong_records_of_a_topic_are_shown_with_their_places(run):
    result = run("""
        import pytest
        from eoslog.testing import assert_records

        @pytest.mark.eoslog_topics("orders")
        def test_orders(eoslog_log):
            with eoslog_log.producer() as producer:
                producer.produce_many("orders", ["3 apples", "2 pears"], ["ada", "bob"])
            assert_records(eoslog_log, "orders", [("ada", "3 apples"), ("bob", "1 pear")])
    """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E*AssertionError: orders: expected 2 records (-), got 2 (+)",
            "E*  b'ada': b'3 apples'   (partition 0, offset 0)",
            "E*- b'bob': b'1 pear'",
            "E*+ b'bob': b'2 pears'   (partition 0, offset 1)",
        ]
    )
    assert "assertions.py" not in result.stdout.str()
