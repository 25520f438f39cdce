"""What `make quality-bench-spark` prints is worth what its arithmetic is."""

import itertools
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

pytest.importorskip("pyspark")
from bench.spark.measure import Measured, in_turns, ratio, table


def test_a_ratio_is_the_median_of_neighbouring_rounds():
    ours = Measured(walls=[1.0, 2.0, 1.0], processor=[1.0, 1.0, 1.0])
    peer = Measured(walls=[4.0, 8.0, 1.0], processor=[3.0, 2.0, 2.5])
    assert ratio(ours, peer).walls == 4.0, "a load that fell on one round of each weighs on neither"
    assert ratio(ours, peer).processor == 2.5


def test_cases_alternate_and_the_first_round_does_not_count():
    seen, made = [], []
    cases = {name: lambda number, name=name: seen.append((number, name)) for name in "abc"}
    found = in_turns(cases, 20, before=lambda name, number: made.append((number, name)))
    rounds = [[name for number, name in seen if number == at] for at in range(21)]
    assert [one for names in rounds for one in sorted(names)] == list("abc") * 21
    assert made == seen
    assert [len(found[name].walls) for name in "abc"] == [20, 20, 20]


def test_every_case_follows_every_other_case():
    seen = []
    cases = {name: lambda number, name=name: seen.append((number, name)) for name in "abc"}
    in_turns(cases, 20)
    # An order that turns keeps its neighbours within a round: only ab, bc and ca.
    behind = {(one, two) for (at, one), (then, two) in itertools.pairwise(seen) if at == then}
    assert behind == set(itertools.permutations("abc", 2))


BURN = "import time\nwhile time.process_time() < 0.6: pass"


def processor_seconds_of_a_child_and_of_nothing() -> tuple[float, float]:
    cases = {
        "child": lambda number: subprocess.run([sys.executable, "-c", BURN], check=True),
        "nothing": lambda number: None,
    }
    found = in_turns(cases, 1)
    return found["child"].processor[0], found["nothing"].processor[0]


@pytest.mark.slow
def test_cpu_time_of_a_child_counts_towards_its_case():
    # A process of its own: a JVM of an earlier test may end now, and its time leaves the sum.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        child, nothing = pool.submit(processor_seconds_of_a_child_and_of_nothing).result()
    # The kernel's clock of other processes is coarse: a tick, or a stolen one, may be missing.
    assert child - nothing > 0.2


def test_report_columns_are_as_wide_as_needed():
    assert table([("", "x"), ("long", "1"), ("a", "22")]) == ["       x", "long   1", "a     22"]
