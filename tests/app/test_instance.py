"""Numbers of workers, and applications of one id."""

from __future__ import annotations

import os

import pytest

import eoslog
from eoslog.errors import TopologyChanged
from tests.waiting import until


def app_of(log, topic="numbers"):
    app = eoslog.App(log, "shop")

    @app.task(topic)
    def work(record, ctx): ...

    return app


def ids(log):
    return sorted(one.transactional_id for one in log.transactions(open_only=False))


def test_workers_take_the_lowest_number_that_is_free(log):
    first, second, third = (app_of(log) for _ in range(3))
    first.step()
    second.step()
    assert ids(log) == ["shop-0", "shop-1"]
    first.stop()
    third.step()
    assert ids(log) == ["shop-0", "shop-1"]
    second.stop()
    third.stop()


def test_the_partitions_are_shared_by_the_workers(log):
    first, second = app_of(log), app_of(log)
    first.step()

    def shared() -> bool:
        members = log.describe_group("shop").members
        return sorted(len(member.assigned) for member in members) == [1, 1]

    until(shared, step=lambda: (first.step(), second.step()))
    first.stop()
    second.stop()


def test_apps_of_one_id_with_other_tasks_do_not_run_together(log):
    log.create_topic("others")
    first, second = app_of(log), app_of(log, "others")
    first.step()
    with pytest.raises(TopologyChanged, match="app 'shop': worker 0 runs with other tasks"):
        second.step()
    first.stop()
    second.step()
    second.stop()


def test_apps_of_one_id_with_other_formats_of_a_table_do_not_run_together(log):
    """They would write values that the other one cannot read."""
    apps = []
    for value in ("json", "integer"):
        app = app_of(log)
        app.table("counts", value=value)
        apps.append(app)
    apps[0].step()
    with pytest.raises(TopologyChanged, match="table 'counts' is .*'json'.* there and .*'integer'"):
        apps[1].step()
    apps[0].stop()
    apps[1].step()
    apps[1].stop()


def test_a_forked_child_does_not_hold_the_number_of_its_parent(log):
    first = app_of(log)
    first.step()
    ready, released = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(ready[1], b"1")
        os.read(released[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    first.stop()
    second = app_of(log)
    second.step()
    assert ids(log) == ["shop-0"]
    second.stop()
    os.write(released[1], b"1")
    os.waitpid(pid, 0)


def test_a_run_does_not_end_before_a_record_that_waits_has_an_owner(log):
    """Its owner is gone, and its partition is not yet assigned to the other worker."""

    def app():
        made = eoslog.App(log, "shop")

        @made.task("one", to="out", retries=(3600.0,))
        def work(record, ctx):
            if ctx.attempt == 1:
                raise ValueError("no")
            return record.value

        return made

    first, second = app(), app()
    first.create_topics()
    with log.producer() as producer:
        producer.produce("one", "value")
    with first, second:
        while first.step() == 0:
            pass
        while len(log.describe_group("shop").members) < 2:
            second.step()
        log._engine.use_clock(lambda: 1e12)
        [gone] = [one for one in log.describe_group("shop").members if one.assigned]
        log._engine.groups.leave("shop", gone.member_id)
        second.run(until="caught_up")
        assert [record.value for record in log.read("out")] == [b"value"]


def two_workers(log):
    """Two workers with a partition each, and the partition of the first."""

    def app():
        made = eoslog.App(log, "shop")

        @made.task("numbers", value="json", to="out", retries=(3600.0,))
        def work(record, ctx):
            if record.value == 100 and ctx.attempt == 1:
                raise ValueError("no")
            return record.value

        return made

    first, second = app(), app()
    first.create_topics()
    while True:
        idle = first.step() + second.step() == 0
        owned = {one.client_id: one.assigned for one in log.describe_group("shop").members}
        if idle and sorted(map(len, owned.values())) == [1, 1]:
            return first, second, owned["shop-0"][0].partition


def test_a_worker_is_not_caught_up_while_a_record_of_another_waits(log):
    first, second, partition = two_workers(log)
    with first, second:
        with log.producer() as producer:
            producer.produce("numbers", "100", partition=partition)
        while not first.step():
            pass
        while second.step():
            pass
        assert not second._begun().caught_up()
        log._engine.use_clock(lambda: 1e12)
        while not first.step():
            pass
        assert second._begun().caught_up()
    assert sorted(int(record.value) for record in log.read("out")) == [*range(20), 100]


def test_a_worker_is_not_caught_up_while_a_transaction_is_undecided(log):
    """It may have committed, and its record that waits is not visible yet."""
    first, second, partition = two_workers(log)
    log.create_topic("shop.retries", partitions=2)
    with first, second, log.producer(transactional_id="shop-9") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("shop.retries", "value", "[]", partition=partition)
        producer.flush()
        while second.step():
            pass
        assert not second._begun().caught_up()
        producer.abort_transaction()
        assert second._begun().caught_up()
