"""Sequences around a consumer group: members, commits and late requests.

Some commits are offsets inside transactions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.kafka.differential.group_sides import NEVER_GIVEN
from tests.kafka.differential.sequence import Sequence
from tests.kafka.differential.sides import NO_ONE, PARTITIONS, Answer
from tests.kafka.differential.wire import NOBODY, Member

SLOTS = ("a", "b", "static")
INSTANCE = "i"


@dataclass
class Place:
    """A member's place as the sequence knows it from the answers of both sides.

    Both sides agree on all of it.
    """

    member_id: str
    instance: str | None
    epoch: int = 0
    before: int = 0
    assigned: tuple[int, ...] = ()
    owned: set[int] = field(default_factory=set)

    def named(self, epoch: int | None = None) -> Member:
        return (self.member_id, self.epoch if epoch is None else epoch, self.instance)


class GroupSequence(Sequence):
    """One sequence on both sides, which are `KafkaGroupSide` and `EoslogGroupSide`."""

    prefix = "m"
    kafka: Any
    ours: Any

    def __init__(self, kafka: Any, ours: Any, seed: int) -> None:
        super().__init__(kafka, ours, seed)
        self.places: dict[str, Place] = {}
        self.gone: list[Place] = []
        self._made = 0
        self._puts: list[Callable[[], bool]] = []

    def _requests(self) -> dict[Callable[[], bool], int]:
        return {
            self._join: 4, self._beat: 8, self._leave: 2, self._commit: 5, self._commit_in_transaction: 4,
            self._end: 3, self._produce: 2, self._offset: 3, self._describe: 3, self._delete_offset: 1,
            self._delete_group: 1, self._again: 3, self._init_again: 1, self._transaction: 1,
        }  # fmt: skip

    def _both(self, request: str, *arguments: Any) -> tuple[Answer, Answer]:
        return getattr(self.kafka, request)(*arguments), getattr(self.ours, request)(*arguments)

    def _put(self, request: str, *arguments: Any) -> bool:
        """A request with the same arguments on both sides, which may come again later."""

        def put() -> bool:
            return self._note(request, arguments, *self._both(request, self.group, *arguments))

        self._puts.append(put)
        return put()

    def _again(self) -> bool:
        """A request that comes twice, or late."""
        return self.draw.choice(self._puts)() if self._puts else True

    # Members.

    def _join(self) -> bool:
        slot = self.draw.choice(SLOTS)
        old = self.places.get(slot)
        if old is not None and (slot != "static" or self.draw.random() < 0.9):
            return True  # it is there
        self._made += 1
        place = Place(f"m{self._made:02}", INSTANCE if slot == "static" else None)
        kafka, ours = self._both("join", self.group, place.member_id, place.instance)
        if kafka == ours and kafka[0] == 0:
            self.places[slot] = place
            self._follow(place, kafka)
            if old is not None:
                self.gone.append(old)
        return self._note("join", (place.member_id, place.instance), kafka, ours)

    def _follow(self, place: Place, answer: Answer) -> None:
        _, epoch, place.assigned = answer
        if epoch != place.epoch:
            place.before, place.epoch = place.epoch, epoch
        place.owned |= set(place.assigned)

    def _some(self) -> Place | None:
        places = list(self.places.values())
        if self.gone and (not places or self.draw.random() < 0.15):
            return self.draw.choice(self.gone)
        return self.draw.choice(places) if places else None

    def _member(self, place: Place) -> Member:
        """A member with its epoch, at times with the one before or with an unused one."""
        wrong = self.draw.random()
        epoch = place.before if 0.1 < wrong < 0.2 and place.before else place.epoch
        return place.named(NEVER_GIVEN if wrong < 0.1 else epoch)

    def _beat(self) -> bool:
        place = self._some()
        if place is None:
            return self._join()
        member, owned = self._member(place), set(place.owned)
        if self.draw.random() < 0.7:  # it releases what it must not keep
            owned &= set(place.assigned)
        kafka, ours = self._both("beat", self.group, member, tuple(sorted(owned)))
        if kafka[0] == 0:
            place.owned = owned
            self._follow(place, kafka)
        return self._note("beat", (*member, tuple(sorted(owned))), kafka, ours)

    def _leave(self) -> bool:
        if not self.places:
            return True
        slot = self.draw.choice(sorted(self.places))
        place = self.places.pop(slot)
        self.gone.append(place)
        return self._put("leave", place.named())

    def _describe(self) -> bool:
        return self._note("describe", (), *self._both("describe", self.group))

    # Offsets.

    def _committer(self) -> tuple[Member, int]:
        """Who commits, and a partition, mostly one of its own."""
        place = None if self.draw.random() < 0.2 else self._some()
        if place is None:
            return NOBODY, self.draw.randrange(PARTITIONS)
        if self.draw.random() < 0.02:
            return self._member(place), self.draw.randrange(PARTITIONS)
        taken = {p for other in self.places.values() if other is not place for p in other.owned}
        free = place.assigned or [p for p in range(PARTITIONS) if p not in taken]
        return (self._member(place), self.draw.choice(free)) if free else (NOBODY, 0)

    def _commit(self) -> bool:
        member, partition = self._committer()
        return self._put("commit", member, partition, self.draw.randrange(100))

    def _commit_in_transaction(self) -> bool:
        name, offset = self._name(), self.draw.randrange(100)
        theirs, mine = self.who[name].pick(self.draw)
        if theirs == NO_ONE:
            return True
        member, partition = self._committer()
        late = (self.group, offset, member, partition)

        def put() -> bool:
            return self._note(
                "commit_offset", (name, theirs, *late[1:]),
                self.kafka.commit_offset(name, theirs, *late), self.ours.commit_offset(name, mine, *late),
            )  # fmt: skip

        self._puts.append(put)
        return put()

    def _offset(self) -> bool:
        partition = self.draw.randrange(PARTITIONS)
        return self._note("offset", (partition,), *self._both("offset", self.group, partition))

    def _delete_offset(self) -> bool:
        return self._put("delete_offset", self.draw.randrange(PARTITIONS))

    def _delete_group(self) -> bool:
        return self._put("delete_group")

    def _look(self) -> None:
        super()._look()
        self._describe()
        for partition in range(PARTITIONS):
            self._note("offset", (partition,), *self._both("offset", self.group, partition))

    def _leave_all(self) -> None:
        for place in self.places.values():
            for side in (self.kafka, self.ours):
                side.leave(self.group, (place.member_id, place.epoch, None))
