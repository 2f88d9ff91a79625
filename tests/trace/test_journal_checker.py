"""The checker of groups with recorders: each promise broken by hand is reported, and only that."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from roundelay.core.bundle import Bundle
from roundelay.core.engine import COMMITTED
from roundelay.core.events import DISK, NOTHING_LEFT
from roundelay.core.grsb.base import GrsbDelivery
from roundelay.core.grsb.pdu import END, SINGLE, START, Message
from roundelay.core.grsb.stable import GrsbStable, Stored
from roundelay.core.notices import GapUnavailable, OwnPlaced, Retracted
from roundelay.core.selection import Selection
from roundelay.trace.checkers.journal import JournalChecker

USERS = (0, 1)
RECORDERS = (5, 6)


class Group:
    """Users 0 and 1, recorders 5 and 6; user 0 says `a`, `b`, and `c` to conference 7."""

    def __init__(self, **options: Any) -> None:
        self.checker = JournalChecker(**options)
        self.messages: list[Message] = []
        self.archives = {site: GrsbStable() for site in RECORDERS}
        for data, conference in ((b"a", 0), (b"b", 0), (b"c", 7)):
            self.checker.asked(0, 0, 1, (data,), conference, 0)
            self.messages.append(self.stamped(data, conference))
        for stable in self.archives.values():
            for message in self.messages:
                stable.apply(Stored(message))

    def stamped(
        self, data: bytes, conference: int = 0, mtype: int = SINGLE, gid: int = 0
    ) -> Message:
        at = len(self.messages)
        return Message(1, at, at, 0, 1, at, conference, mtype, gid, 0, Bundle.of(data))

    def deliver(self, user: int, *positions: int, **changes: Any) -> None:
        for at in positions:
            m = self.messages[at]
            given = GrsbDelivery(
                at, m.sender, m.number, m.bundle, COMMITTED, m.conference, m.kind, m.time, m.end, -1
            )
            self.checker.delivered(at, user, structs.replace(given, **changes))

    def judge(self, users: tuple[int, ...] = USERS) -> list[str]:
        self.checker.archived(99, self.archives, users)
        return sorted({one.invariant for one in self.checker.violations})


@pytest.fixture
def group() -> Group:
    return Group()


def test_what_is_right_is_not_complained_about(group: Group) -> None:
    group.checker.selected(0, 1, Selection(frozenset((7,))))
    group.checker.noticed(1, 0, OwnPlaced(1, 2, 1))
    group.deliver(0, 0, 1, 2)
    group.deliver(1, 2)
    assert group.judge() == []
    assert group.checker.committed == 3


def test_a_position_that_holds_two_messages(group: Group) -> None:
    group.deliver(0, 0, 1, 2)
    group.deliver(1, 0, 1)
    group.deliver(1, 2, seq=2, bundle=Bundle.of(b"b"), conference=0)
    assert group.judge() == ["I1"]


def test_positions_out_of_order_and_twice(group: Group) -> None:
    group.deliver(0, 0, 1, 2)
    group.deliver(1, 0, 2, 1)
    assert group.judge() == ["I1"]
    again = Group()
    again.deliver(0, 0, 1, 2)
    again.deliver(1, 0, 1, 1, 2)
    assert again.judge() == ["I1", "I4"]


def test_a_disk_that_is_lost_may_be_given_everything_again(group: Group) -> None:
    group.deliver(0, 0, 1, 2)
    group.deliver(1, 0, 1)
    group.checker.crashed(5, 1, NOTHING_LEFT)
    group.deliver(1, 0, 1, 2)
    assert group.judge() == []


def test_what_nobody_submitted_so(group: Group) -> None:
    group.deliver(0, 0, 1, 2)
    group.deliver(1, 0, 1)
    group.deliver(1, 2, conference=0)
    assert group.judge() == ["I4"]


def test_what_is_missing_unwanted_or_nowhere(group: Group) -> None:
    group.deliver(0, 0, 1, 2)
    group.deliver(1, 0, 1)
    assert group.judge() == ["I2"]
    choosy = Group()
    choosy.checker.selected(0, 1, Selection(frozenset((7,))))
    choosy.deliver(0, 0, 1, 2)
    choosy.deliver(1, 1, 2)
    assert choosy.judge() == ["I8"]
    gone = Group()
    gone.checker.noticed(3, 1, GapUnavailable(0, 2))
    assert gone.judge(()) == ["I2"]


def test_a_run_that_did_not_settle_owes_its_users_nothing(group: Group) -> None:
    assert group.judge(()) == []


def test_what_a_submitter_was_told_stands_there(group: Group) -> None:
    group.checker.noticed(1, 0, OwnPlaced(1, 2, 0))
    assert group.judge(()) == ["I5"]


def test_recorders_that_differ_or_leave_a_position_out(group: Group) -> None:
    other = structs.replace(group.messages[2], sender=1)
    for log in ((*group.messages[:2], other), group.messages[1:]):
        group.archives[6] = GrsbStable()
        for message in log:
            group.archives[6].apply(Stored(message))
        assert group.judge(()) == ["I1"]
        group.checker.violations.clear()


def test_a_unit_is_due_whole_at_the_position_of_its_end(group: Group) -> None:
    for data, mtype in ((b"d", START), (b"e", END)):
        group.checker.asked(0, 0, 1, (data,), 0, 0)
        group.messages.append(group.stamped(data, 0, mtype, 9))
        for stable in group.archives.values():
            stable.apply(Stored(group.messages[-1]))
    group.deliver(0, 0, 1, 2)
    group.deliver(0, 4, bundle=Bundle.of(b"d", b"e"))
    group.deliver(1, 0, 1, 2)
    group.deliver(1, 4)
    found = group.judge()
    assert found == ["I1"]
    assert {one.site for one in group.checker.violations} == {1}


def test_what_is_taken_back_and_what_is_too_much(group: Group) -> None:
    group.checker.noticed(1, 1, Retracted(0, 1))
    group.checker.sampled(1, 1, {"held": 3}, {"held": 2})
    assert group.judge(()) == ["I1", "I6"]


def test_a_node_that_does_not_repair_may_lack_what_it_said() -> None:
    group = Group(wide=True, excused=(1,))
    group.checker.noticed(3, 1, GapUnavailable(1, 2))
    group.deliver(0, 0, 1, 2)
    group.deliver(1, 0, 2)
    assert group.judge() == []
    silent = Group(wide=True, excused=(1,))
    silent.deliver(0, 0, 1, 2)
    silent.deliver(1, 0, 2)
    assert silent.judge() == ["I2"]
    hurt = Group(wide=True, excused=(1,))
    hurt.checker.crashed(2, 1, DISK)
    hurt.deliver(0, 0, 1, 2)
    hurt.deliver(1, 0, 2)
    assert hurt.judge() == []
