"""Lines of records that wait: order, times, and what an abort undoes."""

from __future__ import annotations

import random

from eoslog.app.failed_records import FailedRecord, place_key
from eoslog.app.retry_queue import RetryQueue, WaitingRecord


def waiting(offset: int, key: bytes | None = b"k", due: int = 0) -> WaitingRecord:
    record = FailedRecord("shop", "work", "orders", 0, offset, 0, 1, "", key=key)
    return WaitingRecord(record, due, place_key("record", "id", record.place))


def drained(queue: RetryQueue, now: int) -> list[int]:
    offsets = []
    while (found := queue.due(now)) is not None:
        offsets.append(found.record.offset)
        queue.remove(found)
    return offsets


def test_records_of_a_key_are_due_in_order_after_the_first():
    queue = RetryQueue()
    queue.add(waiting(1, due=50))
    queue.add(waiting(2))
    queue.add(waiting(3, b"other", due=10))
    assert (queue.due(9), queue.next_due(), len(queue)) == (None, 10, 3)
    assert queue.blocks("orders", 0, "work", b"k")
    assert not queue.blocks("orders", 1, "work", b"k")
    assert not queue.blocks("orders", 0, "work", None)
    assert drained(queue, 49) == [3]
    assert drained(queue, 50) == [1, 2]
    assert (len(queue), queue.next_due()) == (0, None)


def test_a_record_that_is_put_off_keeps_its_place():
    queue = RetryQueue()
    first = waiting(1)
    queue.add(first)
    queue.add(waiting(2))
    queue.replace(first, waiting(1, due=100))
    assert queue.due(99) is None
    assert drained(queue, 100) == [1, 2]


def test_an_empty_key_is_a_key_and_null_is_none():
    queue = RetryQueue()
    queue.add(waiting(1, b"", due=100))
    assert queue.blocks("orders", 0, "work", b"")
    queue.add(waiting(2, None, due=50))
    queue.add(waiting(3, None, due=20))
    assert drained(queue, 50) == [3, 2]


def test_a_forgotten_partition_leaves_no_record_of_an_open_transaction():
    queue = RetryQueue()
    queue.load(waiting(1))
    queue.add(waiting(2))
    queue.forget("orders", 0)
    queue.abort()
    assert (len(queue), queue.next_due()) == (0, None)


def test_an_abort_undoes_each_sequence_of_changes():
    chance = random.Random(7)
    for _ in range(300):
        queue = RetryQueue()
        numbers = iter(range(1000))
        keys = (b"a", b"b", None)

        def change(queue: RetryQueue = queue, numbers=numbers) -> None:
            head = queue.due(10**6)
            choice = chance.random()
            if head is None or choice < 0.5:
                queue.add(waiting(next(numbers), chance.choice(keys), chance.randrange(100)))
            elif choice < 0.8:
                queue.remove(head)
            else:
                later = WaitingRecord(head.record, chance.randrange(100), head.id)
                queue.replace(head, later)

        for _ in range(chance.randrange(8)):
            change()
        queue.commit()
        before = [(found.id, found.due) for found in queue]
        due = queue.next_due()
        for _ in range(chance.randrange(8)):
            change()
        queue.abort()
        assert sorted((found.id, found.due) for found in queue) == sorted(before)
        assert (queue.next_due(), len(queue)) == (due, len(before))
