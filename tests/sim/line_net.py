"""Sites on lines in a test: what their users delivered, and what was sent.

`grsb_net` and `wide_net` make the worlds.
"""

from __future__ import annotations

from abc import ABC
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from roundelay.core.engine import MS, SECOND, Notice, Pdu
from roundelay.core.events import DISK
from roundelay.core.grsb.base import GrsbDelivery
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import GrsbStable
from roundelay.core.wide.site import WideSite
from roundelay.sim.families.lines import LineApplications
from roundelay.sim.kernel.world import World
from roundelay.sim.network.links import Fate, Link
from roundelay.trace.checkers.journal import JournalChecker

S = TypeVar("S", GrsbSite, WideSite)


class LineNet(ABC, Generic[S]):
    """An observer of a world, and the hands of its applications."""

    applications: LineApplications[S]
    checker: JournalChecker
    step_ns = 50 * MS

    def __init__(self, users: tuple[int, ...]) -> None:
        self.users = users
        self.logs: dict[int, list[GrsbDelivery]] = {user: [] for user in users}
        self.notices: list[tuple[int, Notice]] = []
        self.kinds: Counter[str] = Counter()
        self.sends: list[tuple[int, int, int, Pdu]] = []
        self.spoken = 0

    @property
    def world(self) -> World:
        return self.applications.world

    def archives(self) -> dict[int, GrsbStable]:
        """What all recorders have on disk."""
        return self.applications.recorded()

    # -- looking on ------------------------------------------------------------------------

    def delivered(self, time: int, site: int, delivery: GrsbDelivery) -> None:
        self.logs[site].append(delivery)

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        self.notices.append((site, notice))

    def sent(self, time: int, site: int, destination: int, pdu: Pdu) -> None:
        self.kinds[type(pdu).__name__] += 1
        self.sends.append((time, site, destination, pdu))

    def told(self, kind: str) -> list[tuple[int, tuple[object, ...]]]:
        return [(site, notice.info) for site, notice in self.notices if notice.kind == kind]

    # -- acting ----------------------------------------------------------------------------

    def say(
        self, user: int, *parts: bytes, conference: int = 0, kind: int = 0, at: int | None = None
    ) -> None:
        """Now, or at a time in ns."""
        if at is None:
            assert self.applications.send(user, parts, conference, kind)
        else:
            self.world.at(at, lambda: self.applications.send(user, parts, conference, kind))

    def conference(self, number: int) -> int:
        """Where a message of `chat` belongs."""
        return 0

    def chat(
        self, messages: int, gap_ns: int = 20 * MS, users: Sequence[int] | None = None,
        conference: Callable[[int], int] | None = None,
    ) -> None:  # fmt: skip
        """Messages of all users in turn."""
        who = users or self.users
        where = conference or self.conference
        start = self.world.now
        for i in range(messages):
            user = who[i % len(who)]
            self.spoken += 1
            data = b"%d of %d" % (self.spoken, user)
            self.say(user, data, conference=where(i), at=start + i * gap_ns)

    def chat_without(self, off: int, messages: int, seconds: float) -> None:
        """A user is off for so long, while the others chat."""
        self.world.crash(off, DISK)
        self.chat(messages, users=[user for user in self.users if user != off])
        self.run(seconds)
        self.world.restart(off)

    def run(self, seconds: float) -> None:
        self.world.run(self.world.now + int(seconds * SECOND))

    def until(self, done: Callable[[], bool], seconds: float = 120) -> None:
        limit = self.world.now + int(seconds * SECOND)
        assert self.world.run_until(done, limit, self.step_ns), "it did not come to that"

    # -- asking ----------------------------------------------------------------------------

    def site(self, number: int) -> S:
        site: S | None = self.world.site(number)
        assert site is not None
        return site

    def texts(self, user: int) -> list[bytes]:
        return [data for one in self.logs[user] for data in one.bundle]

    def everybody_has(self, messages: int, users: Sequence[int] | None = None) -> bool:
        who = self.users if users is None else users
        return all(len(self.texts(user)) >= messages for user in who)

    def judge(self) -> None:
        """Everything has settled: the checker finds nothing wrong."""
        self.checker.archived(self.world.now, self.archives(), self.users)
        assert not self.checker.violations, self.checker.violations[0]


class Hook(Link):
    """Decides about every copy: `rule(time, src, dst, pdu)` says whether it is lost."""

    kind = "hook"

    def __init__(self, rule: Callable[[int, int, int, Pdu], bool]) -> None:
        self.rule = rule

    def carry(self, time: int, src: int, dst: int, pdu: Pdu, ref: int) -> Fate:
        return "hook" if self.rule(time, src, dst, pdu) else None
