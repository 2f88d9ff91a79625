"""A GRSB group in a test: a world, what its users delivered, and what was sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from roundelay.core.engine import MS, SECOND, Notice, Pdu
from roundelay.core.grsb.base import REPLAYED, GrsbDelivery
from roundelay.core.grsb.config import FAILSAFE, GrsbConfig, Roles
from roundelay.core.grsb.pdu import Message
from roundelay.core.grsb.site import GrsbSite
from roundelay.sim.grsb_check import GrsbCheck
from roundelay.sim.grsb_world import GrsbWorld, Lines, grsb_world
from roundelay.sim.links import Fate, Link


class Group:
    """`roles` may be a profile's name; times are those of the default configuration."""

    def __init__(
        self, roles: Roles | str = FAILSAFE, sites: int = 9, config: GrsbConfig | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        self.roles = Roles.profile(roles, sites) if isinstance(roles, str) else roles
        self.logs: dict[int, list[GrsbDelivery]] = {user: [] for user in self.roles.users}
        self.answers: dict[int, list[GrsbDelivery]] = {user: [] for user in self.roles.users}
        self.notices: list[tuple[int, Notice]] = []
        self.kinds: Counter[str] = Counter()
        self.sends: list[tuple[int, int, int, Pdu]] = []
        self.spoken = 0
        self.wrong: list[tuple[str, str, int]] = []
        self.check = GrsbCheck(lambda *what: self.wrong.append(what))
        config = config or GrsbConfig()
        self.world: GrsbWorld = grsb_world(
            self.roles, config, observers=[self, self.check], **options
        )
        self.config = config
        self.users = self.roles.users

    # -- looking on ------------------------------------------------------------------------

    def delivered(self, time: int, site: int, delivery: GrsbDelivery) -> None:
        place = self.answers if delivery.stage == REPLAYED else self.logs
        place[site].append(delivery)

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
        """Now, or at a time in seconds."""
        if at is None:
            assert self.world.send(user, parts, conference, kind)
        else:
            self.world.at(at, lambda: self.world.send(user, parts, conference, kind))

    def chat(
        self, messages: int, gap_ns: int = 20 * MS, users: Sequence[int] | None = None,
        conference: Callable[[int], int] = lambda i: i % 3,
    ) -> None:  # fmt: skip
        """Messages of all users in turn."""
        who = users or self.users
        start = self.world.now
        for i in range(messages):
            user = who[i % len(who)]
            self.spoken += 1
            data = b"%d of %d" % (self.spoken, user)
            self.say(user, data, conference=conference(i), at=start + i * gap_ns)

    def run(self, seconds: float) -> None:
        self.world.run(self.world.now + int(seconds * SECOND))

    def until(self, done: Callable[[], bool], seconds: float = 120) -> None:
        limit = self.world.now + int(seconds * SECOND)
        assert self.world.run_until(done, limit, 50 * MS), "it did not come to that"

    # -- asking ----------------------------------------------------------------------------

    def site(self, number: int) -> GrsbSite:
        return self.world.site(number)

    @property
    def ruler(self) -> GrsbSite:
        ruling = []
        for number in self.roles.retransmitters:
            if self.world.sites[number].engine is not None:
                site = self.site(number)
                if site.retransmitter is not None and site.retransmitter.reigning:
                    ruling.append(site)
        return max(ruling, key=lambda site: site.reign.epoch)

    def reigns(self, but: int) -> bool:
        """Whether somebody else than `but` reigns."""
        others = [number for number in self.roles.retransmitters if number != but]
        sites = [self.site(n) for n in others if self.world.sites[n].engine is not None]
        return any(site.retransmitter and site.retransmitter.reigning for site in sites)

    @property
    def cr(self) -> Any:
        return self.ruler.retransmitter

    @property
    def da(self) -> Any:
        return self.site(self.ruler.reign.da).acknowledger

    def recorder(self, index: int = 0) -> Any:
        return self.site(self.roles.recorders[index]).recorder

    def user(self, number: int) -> Any:
        return self.site(number).user

    def texts(self, user: int) -> list[bytes]:
        return [data for one in self.logs[user] for data in one.bundle]

    def archive(self, index: int = 0) -> list[Message]:
        disk = self.world.sites[self.roles.recorders[index]].disk
        assert disk is not None
        log: list[Message] = disk.stable.log
        return log

    def everybody_has(self, messages: int) -> bool:
        return all(
            len(self.texts(user)) >= messages
            for user in self.users
            if self.world.sites[user].engine is not None
        )

    def judge(self) -> None:
        """Everything has settled: the checker finds nothing wrong."""
        archives = {}
        for number in self.roles.recorders:
            disk = self.world.sites[number].disk
            assert disk is not None
            archives[number] = disk.stable
        self.check.finish(archives, self.users)
        assert not self.wrong, self.wrong[0]


class Hook(Link):
    """Decides about every copy: `rule(time, src, dst, pdu)` says whether it is lost."""

    kind = "hook"

    def __init__(self, rule: Callable[[int, int, int, Pdu], bool]) -> None:
        self.rule = rule

    def carry(self, time: int, src: int, dst: int, pdu: Pdu, ref: int) -> Fate:
        return "hook" if self.rule(time, src, dst, pdu) else None


def lines(group: Group) -> Any:
    assert isinstance(group.world.medium, Lines)
    return group.world.medium.lines
