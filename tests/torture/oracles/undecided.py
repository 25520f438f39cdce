"""Prepared transactions, positions and publishing ids, with right results.

`fill` adds them to the directory of `operations.fill`. The topic `d` has the records of a named
producer, and gets those of staged transactions. The topic `e` has inline transactions. The last two
of those are undecided, so readers stop before them.

A damage may lead to one of eoslog's errors. It never leads to another list of what is pending,
another outcome, another position, a second record of a publishing id, or a part of a transaction.
An error that denies what the log knows (an unknown token, a conflict) is wrong, too: a database
would decide by it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import eoslog
from eoslog import Outcome, Producer, TopicPartition
from eoslog.client.producer.named.producer import NamedProducer
from eoslog.errors import (
    ConcurrentTransactions,
    EoslogError,
    ErrorCode,
    KafkaError,
    OutcomeConflict,
    PositionConflict,
    PreparedTransactionPending,
    UnknownToken,
)
from tests.torture.oracles.results import Known, Wrong, same

Row = tuple[str, int, int, bytes | None, bytes | None]

NAME, SOURCE, STAGED_GROUP = "n", "source", "s"
IDS = range(10, 190, 10)
READ = TopicPartition("b", 0)
UNDECIDED = (11, 13)
"""Numbers of undecided transactions, each with an offset of its own group."""
_FAR_MS = 4_102_444_800_000
"""In the year 2100."""


class _Abort(Exception):
    """Aborts a transaction."""


# --- the directory --------------------------------------------------------------------------------


def fill(log: eoslog.Log) -> dict[str, Outcome]:
    """Write the two topics and the positions; return each token with its outcome."""
    small = {"segment.bytes": 900, "index.interval.bytes": 200}
    log.create_topic("d", 2, small)
    log.create_topic("e", 2, small)
    tokens: dict[str, Outcome] = {}
    with _named(log) as named:
        for number in IDS:
            named.produce("d", b"id %d" % number, partition=number // 10 % 2, publishing_id=number)
            if number % 30 == 0:
                named.flush()
    with _producer(log, "till") as till, _producer(log, "other") as other:
        for number in range(8):
            _set_positions(other, number)
            mode = "staged" if number % 2 else "inline"
            prepared = _prepared(till, mode, number, meta={"number": number}, resolver="database")
            outcome = Outcome.ABORT if number % 4 == 2 else Outcome.COMMIT
            log.resolve(prepared.token, outcome)
            tokens[prepared.token] = outcome
            if number == 4:
                for topic in ("__transaction_state", "__positions", "__staged_transactions"):
                    _roll(log, topic)
        for number in range(10, 14):
            staged = _prepared(other, "staged", number, meta=b"%d" % number, resolver="half")
            tokens[staged.token] = Outcome.UNKNOWN
        log._engine.transactions.prepared.note_check(
            staged.token, log._engine.transactions.prepared.index.find(staged.token)[1],
            3, _FAR_MS, parked=True,
        )  # fmt: skip
        later = _prepared(other, "staged", 14, deliver_at=_FAR_MS)
        tokens[later.token] = Outcome.UNKNOWN
        decided = _prepared(other, "staged", 15, deliver_at=_FAR_MS)
        log.resolve(decided.token, Outcome.COMMIT)
        tokens[decided.token] = Outcome.COMMIT
        tokens[_prepared(till, "inline", 20, meta={"number": 20}).token] = Outcome.UNKNOWN
        tokens[_prepared(other, "inline", 21, resolver="half").token] = Outcome.UNKNOWN
    return tokens


def _named(log: eoslog.Log) -> NamedProducer:
    return NamedProducer({"log.dir": str(log.path), "name": NAME, "linger.ms": 60_000})


@contextlib.contextmanager
def _producer(log: eoslog.Log, name: str) -> Iterator[Producer]:
    with Producer({"log.dir": str(log.path), "transactional.id": name, "linger.ms": 0}) as made:
        made.init_transactions()
        yield made


def _prepared(producer: Producer, mode: Any, number: int, **arguments: Any) -> Any:
    producer.begin_transaction(mode=mode)
    topic = "d" if mode == "staged" else "e"
    for part in range(3):
        value = b"%s %d.%d" % (mode.encode(), number, part) + b"z" * 40
        producer.produce(topic, value, b"k%d" % number, partition=part % 2)
        if part == 1:
            producer.flush()
    if number % 2 and mode == "staged":
        # A group has one undecided offset of a partition, so those stay apart.
        group = f"{STAGED_GROUP}-{number}" if number in UNDECIDED else STAGED_GROUP
        producer.send_offsets_to_transaction({READ: number}, group)
    return producer.prepare_transaction(**arguments)


def _set_positions(producer: Producer, number: int) -> None:
    with contextlib.suppress(_Abort), producer.transaction() as tx:
        tx.set_position(SOURCE, number)
        tx.set_position(f"text {number}", f"after {number}")
        tx.set_position("bytes", b"%d" % number)
        if number % 3 == 2:
            raise _Abort


def _roll(log: eoslog.Log, topic: str) -> None:
    for part in range(len(log._engine.topic(topic).partitions)):
        log._engine.partition(topic, part).roll()


# --- readers --------------------------------------------------------------------------------------


def _rows(records: Any) -> list[Row]:
    return [(r.topic, r.partition, r.offset, r.key, r.value) for r in records]


def pending_of(log: eoslog.Log) -> dict[str, Any]:
    """What is undecided, by token, with its records."""
    return {
        p.token: (p.mode, p.state, p.checks, p.meta, p.resolver, p.due_at, _rows(p.records))
        for p in log.pending()
    }


def pending(log: eoslog.Log, known: Known) -> None:
    """The list of undecided transactions, and the records of each."""
    same(pending_of(log), known["pending"], "pending")


def outcomes(log: eoslog.Log, known: Known) -> None:
    """The outcome of each token."""
    found = {token: log.outcome(token) for token in known["outcomes"]}
    same(found, known["outcomes"], "outcomes")


def positions(log: eoslog.Log, known: Known) -> None:
    """All positions, and one by its name."""
    same(log.positions(), known["positions"], "positions")
    same(log.position(SOURCE), known["positions"][SOURCE], "position")


def last_ids(log: eoslog.Log) -> dict[int, int | None]:
    """The last publishing ids, by partition."""
    return {part: log.last_publishing_id(NAME, "d", part) for part in (0, 1)}


def ids(log: eoslog.Log, known: Known) -> None:
    """The last publishing ids."""
    same(last_ids(log), known["ids"], "publishing ids")


def read_all(log: eoslog.Log) -> dict[str, list[Row]]:
    """The records of both topics, by isolation and topic."""
    return {
        f"{isolation} {topic}": _rows(log.read(topic, isolation=isolation))
        for topic in "de"
        for isolation in ("read_committed", "read_uncommitted")
    }


def read(log: eoslog.Log, known: Known) -> None:
    """The records of both topics."""
    same(read_all(log), known["undecided"], "read")


def staged_offset(log: eoslog.Log, group: str = STAGED_GROUP) -> int | None:
    """The offset that transactions have committed for a group; None without one."""
    try:
        found = log._engine.groups.fetch_offsets(group, [READ], timeout=0.0)
    except KafkaError as error:
        if error.code != ErrorCode.UNSTABLE_OFFSET_COMMIT:
            raise
        return None
    return found[READ].offset if READ in found else None


def offset_of_transactions(log: eoslog.Log, known: Known) -> None:
    """The offsets that transactions have committed for groups."""
    same(staged_offset(log), known["staged offset"], "the offset of the group")
    for number in UNDECIDED:
        same(staged_offset(log, f"{STAGED_GROUP}-{number}"), None, "an undecided offset")


READERS: dict[str, Callable[[eoslog.Log, Known], None]] = {
    "pending": pending,
    "outcomes": outcomes,
    "positions": positions,
    "publishing ids": ids,
    "read prepared": read,
    "group of transactions": offset_of_transactions,
}


# --- decisions ------------------------------------------------------------------------------------


def decide(outcome: Outcome, log: eoslog.Log, known: Known) -> None:
    """Decide all that is undecided: each transaction is visible whole, or not at all."""
    commit, done = outcome is Outcome.COMMIT, set()
    for token in known["pending"]:
        try:
            log._engine.transactions.prepared.resolve(token, commit)
            if log._engine.transactions.prepared.index.find(token)[1].commit is not None:
                log._engine.transactions.prepared.resolve(token, commit)  # delivers
            done.add(token)
        except (UnknownToken, OutcomeConflict) as error:
            raise Wrong(f"resolve: {type(error).__name__}: {error}") from error
        except ConcurrentTransactions:
            pass  # decided, and not complete
        except EoslogError:
            pass
    for token, before in known["outcomes"].items():
        try:
            found = log.outcome(token)
        except EoslogError:
            continue
        wanted = {before} if before is not Outcome.UNKNOWN else {outcome}
        if before is Outcome.UNKNOWN and token not in done:
            wanted.add(Outcome.UNKNOWN)
        if found not in wanted:
            raise Wrong(f"outcome of {token} after {outcome}: {found}")
    delivered(log, known, done if commit else set(), may=commit)
    same(staged_offset(log), known["staged offset"], "the offset of the group")
    for token, about in known["pending"].items():
        for number in UNDECIDED:
            if about[3] != b"%d" % number:
                continue
            offset = staged_offset(log, f"{STAGED_GROUP}-{number}")
            wanted = {number} if commit and token in done else {None, number} if commit else {None}
            if offset not in wanted:
                raise Wrong(f"the offset of transaction {number} after {outcome} is {offset}")


def delivered(log: eoslog.Log, known: Known, done: set[str], *, may: bool) -> None:
    """Check the records after decisions.

    Args:
        log: the log.
        known: the correct results.
        done: the transactions that must be visible.
        may: whether the others may be visible.
    """
    staged = {
        token: [(row[1], *row[3:]) for row in found[-1]]
        for token, found in known["pending"].items()
        if found[0] == "staged" and (found[4] is not None or found[5] is None)
    }
    for part in (0, 1):
        base = [r for r in known["undecided"]["read_committed d"] if r[1] == part]
        found = _rows(log.read("d", partitions=[part]))
        same(found[: len(base)], base, f"the records of d-{part} before the delivered ones")
        rest = [(r[1], *r[3:]) for r in found[len(base) :]]
        for token, rows in staged.items():
            mine = [row for row in rows if row[0] == part]
            times = sum(row in mine for row in rest)
            if times not in ({len(mine)} if token in done else {0, len(mine)} if may else {0}):
                raise Wrong(f"d-{part}: {times} of {len(mine)} records of {token}")
            rest = [row for row in rest if row not in mine]
        same(rest, [], f"the records of d-{part} after the delivered ones")
    inline = [t for t, found in known["pending"].items() if found[0] == "inline"]
    every = known["undecided"]["read_uncommitted e"]
    hidden = {row[1:3] for t in inline for row in known["pending"][t][-1]}
    visible = known["undecided"]["read_committed e"]
    for part in (0, 1):
        found = _rows(log.read("e", partitions=[part]))
        base = [row for row in visible if row[1] == part]
        same(found[: len(base)], base, f"the records of e-{part}")
        more = [row for row in every if row[1:3] in hidden and row[1] == part]
        if all(t in done for t in inline):
            same(found[len(base) :], more, f"the records of e-{part} after a commit")
        elif not may:
            same(found[len(base) :], [], f"the records of e-{part} after an abort")
        elif [row for row in found[len(base) :] if row not in more]:
            raise Wrong(f"e-{part}: {found[len(base) :]}")


def repeat(log: eoslog.Log, known: Known) -> None:
    """Produce all publishing ids again, and a new one."""
    base = known["undecided"]["read_committed d"]
    new: list[Any] = []
    failed = None
    try:
        with _named(log) as named:
            again = [named.send("d", b"again", partition=n // 10 % 2, publishing_id=n) for n in IDS]
            new = [named.send("d", b"new", partition=p, publishing_id=IDS.stop + p) for p in (0, 1)]
            named.flush()
            for number, delivery in zip(IDS, again, strict=True):
                if not delivery.result(10).duplicate:
                    raise Wrong(f"publishing id {number} was stored again")
            for part, delivery in enumerate(new):
                if delivery.result(10).duplicate:
                    raise Wrong(f"the new publishing id in d-{part} counts as a duplicate")
    except EoslogError as error:
        failed = error
    for part in (0, 1):
        found = _rows(log.read("d", partitions=[part]))
        old = [row for row in base if row[1] == part]
        same(found[: len(old)], old, f"the records of d-{part}")
        more = [row[-1] for row in found[len(old) :]]
        if more != [b"new"] and not (failed is not None and more == []):
            raise Wrong(f"d-{part} has {more} after its last record")
    if failed is not None:
        raise failed


def compare_and_set(log: eoslog.Log, known: Known) -> None:
    """Set a position on a wrong and on the right condition."""
    now = known["positions"][SOURCE]
    with _producer(log, "setter") as setter:
        with contextlib.suppress(PositionConflict), setter.transaction() as tx:
            tx.set_position(SOURCE, 99, expected=now + 1)
            raise Wrong(f"position {now + 1} was expected, and {now} replaced")
        try:
            with setter.transaction() as tx:
                tx.set_position(SOURCE, 99, expected=now)
        except PositionConflict as error:
            raise Wrong(str(error)) from error
    same(log.positions(), known["positions"] | {SOURCE: 99}, "positions after a set")


def initialise(log: eoslog.Log, known: Known) -> None:
    """Take over ids that have an undecided inline transaction."""
    for name, number in (("till", 20), ("other", 21)):
        wanted = [
            t for t, p in known["pending"].items() if p[-1] and p[-1][0][3] == b"k%d" % number
        ]
        with Producer({"log.dir": str(log.path), "transactional.id": name}) as taken:
            try:
                taken.init_transactions()
            except PreparedTransactionPending:
                pass
            else:
                raise Wrong(f"init of {name!r} ignored {wanted}")
            left = taken.init_transactions(keep_prepared=True)
            if not set(wanted) <= {p.token for p in left or []}:
                raise Wrong(f"init of {name!r} returned {left} instead of {wanted}")


def swept(log: eoslog.Log, known: Known) -> None:
    """Free what no transaction needs, and clean; what is undecided keeps its records."""
    for chore in (log._engine.staged.sweep, log._engine.transactions.prepared.expire, log.clean):
        with contextlib.suppress(EoslogError):
            chore()
    for reader in READERS.values():
        reader(log, known)
    decide(Outcome.COMMIT, log, known)


DECISIONS: dict[str, Callable[[eoslog.Log, Known], None]] = {
    "commit all": partial(decide, Outcome.COMMIT),
    "abort all": partial(decide, Outcome.ABORT),
    "repeat ids": repeat,
    "compare and set": compare_and_set,
    "initialise": initialise,
    "swept": swept,
}


# --- what is right --------------------------------------------------------------------------------


def learn(log: eoslog.Log) -> Known:
    """What the undamaged directory gives."""
    wanted = pending_of(log)
    return {
        "pending": wanted,
        "outcomes": {token: log.outcome(token) for token in tokens_of(log)},
        "positions": log.positions(),
        "ids": last_ids(log),
        "undecided": read_all(log),
        "staged offset": staged_offset(log),
    }


def tokens_of(log: eoslog.Log) -> list[str]:
    """All tokens."""
    return [token for token, _ in log._engine.transactions.prepared.index.known()]


def require_variety(known: Known) -> None:
    """Raise where the directory does not hold what makes the operations differ."""
    states = [(found[0], found[1]) for found in known["pending"].values()]
    assert states.count(("inline", "PREPARED")) == 2
    assert states.count(("staged", "PREPARED")) == 4
    assert states.count(("staged", "PARKED")) == 1
    assert known["staged offset"] == 15
    outcomes = list(known["outcomes"].values())
    assert outcomes.count(Outcome.COMMIT) == 7 and outcomes.count(Outcome.ABORT) == 2, outcomes
    assert known["positions"][SOURCE] == 7
    assert known["ids"] == {
        0: IDS[-2] if IDS[-1] // 10 % 2 else IDS[-1],
        1: IDS[-1] if IDS[-1] // 10 % 2 else IDS[-2],
    }
    assert len(known["undecided"]["read_committed e"]) < len(
        known["undecided"]["read_uncommitted e"]
    )
