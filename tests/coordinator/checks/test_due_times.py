"""The queue of due times: order, replaced entries, and its cost."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from eoslog.coordinator.checks.due_times import DueTimes


class Time(float):
    """A time whose comparisons can be counted."""


def counted(run: Callable[[], object]) -> int:
    """Return how many comparisons of times a call makes."""
    compared = 0

    def less(one: float, other: float) -> bool:
        nonlocal compared
        compared += 1
        return float.__lt__(one, other)

    Time.__lt__ = less  # type: ignore[method-assign]
    try:
        run()
    finally:
        del Time.__lt__
    return compared


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 9)))))
def test_keys_come_up_in_the_order_of_their_last_due_time(
    changes: list[tuple[str, int | None]],
) -> None:
    times, expected = DueTimes(), {}
    for key, due in changes:
        if due is None:
            times.drop(key)
            expected.pop(key, None)
        else:
            times.set(key, due)
            expected[key] = due
    assert len(times) == len(expected)
    assert times.first() == min(expected.values(), default=float("inf"))
    taken = {}
    for now in range(10):
        while (key := times.pop(now)) is not None:
            taken[key] = now
    assert taken == expected


def test_a_key_is_not_due_before_its_time() -> None:
    times = DueTimes()
    times.set("a", 5.0)
    assert times.pop(4.9) is None
    assert times.pop(5.0) == "a"
    assert times.pop(5.0) is None


def cost_of_a_look(waiting: int) -> int:
    """The comparisons of a look that finds one due key, takes it and puts it back."""
    times = DueTimes()
    for number in range(waiting):
        times.set(str(number), Time(100 + number))
    times.set("due", Time(1))

    def look() -> None:
        assert times.pop(2) == "due"
        assert times.pop(2) is None
        times.set("due", Time(99))

    return counted(look)


def test_row_N11_a_look_costs_the_same_with_a_million_waiting() -> None:
    assert 0 < cost_of_a_look(1_000_000) < 3 * cost_of_a_look(1000) < 200


def test_replaced_entries_are_not_kept() -> None:
    times = DueTimes()
    for due in range(10_000):
        times.set("a", due)
    assert len(times._heap) < 100
