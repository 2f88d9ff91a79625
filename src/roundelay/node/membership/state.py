"""What a node knows of one of its groups: the facts that the parts of its membership share.

`GroupState` decides nothing.  The parts that change it are `settings` (what was agreed on), `epoch`
(rosters and their engines), `reconfiguration`, `fixed_roster` and `recovery`; `GroupMembership`,
which it is the base of, puts them together.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from roundelay.core.families import NONE
from roundelay.core.token.phases import NORMAL
from roundelay.node.driver import engines
from roundelay.node.driver.outbox import LIMIT_BYTES, Outbox
from roundelay.node.driver.roster_member import RosterMember
from roundelay.node.group_host import GroupHost
from roundelay.node.groups import MEMBERS_MAX, GroupSpec
from roundelay.node.membership import settings
from roundelay.node.membership.histories import later_history
from roundelay.node.node_api import Subscriber, View
from roundelay.node.recording.memory import Memory
from roundelay.node.storage.folders import claim_group
from roundelay.node.storage.store import Store
from roundelay.wire.control import FIXED, GroupInfo, Settings, Start

if TYPE_CHECKING:
    from roundelay.node.node import Node

LOOKING = "looking for members"


class GroupState(GroupHost):
    """One group at one node: what it is, which roster it has, and which engines run it."""

    # In the place of what a `GroupHost` has that takes part in nothing.
    deadline = 0
    data: RosterMember | None = None
    """Drives the engine that carries the applications' messages."""
    roster: tuple[str, ...] = ()
    memory: Memory

    def __init__(self, node: Node, spec: GroupSpec, now: int) -> None:
        self.node = node
        self.spec = spec
        """As the group is, once it has settings; before that, as it is asked for."""
        burst = node.medium.burst if spec.family.resilient else 0
        size = engines.bundle_bytes(node.medium.mtu, burst)
        self.outbox = Outbox(spec.name, engines.LARGEST_MESSAGE, size, LIMIT_BYTES)
        self.applications: dict[int, Subscriber] = {}
        self.memory = Memory()
        """What was delivered lately, over all rosters of the present history."""
        self.settings: Settings | None = None
        """What the members have agreed on; None: not founded yet, as far as we know."""
        self.ring: RosterMember | None = None
        """Drives the engine that agrees on rosters; in token groups the same one."""
        self.incarnation = ""
        self.epoch = -1
        self.lives: tuple[bytes, ...] = ()
        """The UUID that the node of each member has, or had when it entered."""
        self.base = 0
        """The position at which the epoch began."""
        self.began_in = ""
        """The history in which the epoch began; empty: its incarnation."""
        self.decreed = False
        """An operator said from where the group goes on (`node.membership.recovery`)."""
        self.delivered_before = 0
        """Messages delivered in earlier epochs of the incarnation."""
        self.recalled = spec.fixed
        self.entered = node.faults.entered(spec.name)
        self.condition = LOOKING
        """For people: what the group is doing while no engine says more."""
        self.since = now
        """When the node began to look for members."""
        self.deadline = now
        self._folder: Path | None = None

    # -- what kind of group it is ------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def is_token(self) -> bool:
        """Whether the group's own order carries its changes: no ring beside it is needed."""
        return self.spec.family.resilient

    @property
    def named(self) -> bool:
        """A token group whose members were named: nobody else is admitted, and nobody left out."""
        return self.spec.fixed and self.is_token

    @property
    def preset(self) -> bool:
        """The roster is that of the file, and nothing else: a token group whose members were
        named, unless an operator had to recover it."""
        return self.named and not self.decreed

    def may_be_member(self, name: str) -> bool:
        return not self.spec.members or name in self.spec.members

    @property
    def needed(self) -> int:
        """Members that the engine beside the ring must have."""
        least = 1 if self.spec.family.order == NONE else 2
        return max(least, self.settings.min_members if self.settings is not None else 1)

    @property
    def nominal_resilience(self) -> int:
        """L that the group has where its size allows it, in the words of earlier versions."""
        return settings.level(self.settings or settings.founded(self.spec), 2 * MEMBERS_MAX)

    # -- the epoch -----------------------------------------------------------------------------

    def begin_epoch(self, start: Start) -> None:
        self.incarnation, self.epoch = start.incarnation, start.epoch
        self.roster, self.lives, self.base = start.roster, start.lives, start.base
        self.began_in, self.decreed = start.history, start.decreed

    def end_epoch(self) -> None:
        """There is no roster until the next one is known."""
        self.ring = self.data = None
        self.incarnation, self.epoch, self.roster, self.lives, self.base = "", -1, (), (), 0

    def founding(self, history: str, base: int, *, decreed: bool = False) -> Start:
        """The first epoch of a history that this member begins, alone."""
        alone, lives, level = (self.node.name,), (self.node.uuid,), self.nominal_resilience
        agreed = self.settings or settings.founded(self.spec)
        return Start(self.name, history, 0, alone, lives, base, level, (), decreed, "", agreed)

    def start_word(self, counted: tuple[tuple[str, int, int], ...]) -> Start:
        """What tells others that the present epoch has begun."""
        return Start(
            self.name,
            self.incarnation,
            self.epoch,
            self.roster,
            self.lives,
            self.base,
            self.nominal_resilience,
            counted,
            self.decreed,
            self.began_in,
            self.settings,
        )

    @property
    def history_id(self) -> str:
        """The history that positions belong to at present; empty: none that is known."""
        if self.preset or self.ring is None or self.ring.token is None:
            return self.incarnation
        began_in = self.began_in or self.incarnation
        return (
            later_history(began_in, self.ring.token.token_list.history, self.base)
            if self.is_token
            else began_in
        )

    @property
    def has_too_few(self) -> bool:
        """Whether nothing is confirmed for want of members."""
        return self.settings is not None and len(self.roster) < self.settings.min_members

    @property
    def is_alone(self) -> bool:
        return self.roster == (self.node.name,)

    def drivers(self) -> list[RosterMember]:
        drivers = [driver for driver in (self.ring, self.data) if driver is not None]
        return drivers[:1] if self.ring is self.data else drivers

    @property
    def cluster(self) -> Any:
        """The engine that carries the messages, where it is one of `core.cluster`."""
        return self.data.engine if self.data is not None and self.spec.family.is_cluster else None

    @property
    def lineage(self) -> str:
        return self.data.lineage if self.data is not None else ""

    def works(self) -> bool:
        """Whether rosters can be agreed on at present."""
        token = self.ring.token if self.ring is not None else None
        return token is not None and token.phase == NORMAL

    # -- the node ------------------------------------------------------------------------------

    @property
    def folder(self) -> Path | None:
        """Where the member keeps what it must not forget; None: it has no disk."""
        base = self.node.config.dir
        if self._folder is None and base is not None:
            self._folder = claim_group(base, self.name, self.node.specs)
        return self._folder

    def store(self, path: Path, make: Callable[[], Any]) -> Store:
        """Open a file in that folder; `make` makes what its records are folded into."""
        return Store(path, make, lambda text: self.node.log("warning", text))

    def wake_at(self, due: int) -> None:
        self.deadline = min(self.deadline, due)
        self.node.wake()

    def info_of(self, member: str) -> GroupInfo | None:
        """What the node of that name says of the group; None: nothing was heard."""
        known = self.node.directory.by_name.get(member)
        return known.groups.get(self.name) if known is not None else None

    # -- who is there --------------------------------------------------------------------------

    def present(self, name: str) -> bool:
        """Whether the member is there: its node is alive, takes part in the group, and answers
        the polls of its engine.
        """
        if name == self.node.name:
            return True
        engine = self.data.engine if self.data is not None else None
        if engine is not None and self.roster.index(name) in engine.given_up():
            return False
        return self.info_of(name) is not None and self.node.alive(name)

    def able(self) -> list[str]:
        """The members that can say something in the ring: those that it has in its list.  Who dies
        while an epoch ends is noticed by the ring alone, and is not waited for."""
        listed = self.ring.members if self.ring is not None and self.works() else ()
        return [
            name
            for place, name in enumerate(self.roster)
            if self.present(name) and (not listed or place in listed)
        ]

    # -- for people and other nodes ------------------------------------------------------------

    def view(self) -> View:
        if self.data is not None:
            view = self.data.view()
            version = f"{max(0, self.epoch)}.{view.version}"
            return structs.replace(view, version=version, state=self._shown(view.state))
        version = str(max(0, self.epoch))
        members = self.roster if self.ring else ()
        return View(self.name, version, members, self._shown(self.condition), self.incarnation)

    def _shown(self, state: str) -> str:
        """`state`, or what the ring beside the group waits for: until it has that, nothing that is
        wrong with the group can be mended."""
        ring = self.ring.state if self.ring is not None else ""
        return ring if ring.startswith("blocked") and state != "open" else state

    def info(self) -> GroupInfo | None:
        if self.preset:
            token = self.data.token if self.data is not None else None
            version = token.reformation.max_joined[0] if token is not None else -1
            size = len(self.spec.members)
            return GroupInfo(self.name, FIXED, version, size, settings=self.settings)
        if self.ring is None:
            return None if self.leaving else GroupInfo(self.name)
        return GroupInfo(
            self.name,
            self.incarnation,
            self.epoch,
            len(self.roster),
            decreed=self.decreed,
            settings=self.settings,
        )

    def trouble(self) -> str:
        state = self.view().state
        if self.ring is not None and not self.works():
            state += ", being reformed"
        return f"no answer in time ({state}); it may still be delivered"

    def status(self) -> dict[str, object]:
        about: dict[str, object] = {
            "group": self.name,
            "service": self.spec.service,
            "incarnation": self.incarnation,
            "epoch": self.epoch,
            "roster": list(self.roster),
            "applications": len(self.applications),
            "slowed_by": self.node.recorders.slowed_by(self.name),
            "settings": settings.status(self.settings),
            "stage": self.spec.stage or engines.stage_of(self.spec) or None,
        }
        engine = self.data.status() if self.data is not None else {}
        return about | engine | {"state": self.view().state}
