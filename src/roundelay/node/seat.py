"""A group's place at a node: its applications, its engines, and what is known of it."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from roundelay.core.bundle import Bundle
from roundelay.core.engine import NEVER
from roundelay.core.errors import ConfigError, SettingsMismatch, UsageError
from roundelay.core.position import Position, holds
from roundelay.core.token.site import TokenSite
from roundelay.core.token.state import NORMAL
from roundelay.node import earlier, engines, settings
from roundelay.node.catchup import CatchUp, full
from roundelay.node.ending import Tails
from roundelay.node.folders import claim_group
from roundelay.node.groups import TOKEN, GroupSpec, check_options, plain_spec
from roundelay.node.histories import later_history
from roundelay.node.hosted import Hosted
from roundelay.node.memory import Memory
from roundelay.node.outbox import LIMIT_BYTES, Outbox
from roundelay.node.switchboard import NO_TAG, Application, Batch, Missed, Refusal, View
from roundelay.node.words import MARK, Drained, is_word
from roundelay.wire.info import FIXED, GroupInfo, Settings, Start

if TYPE_CHECKING:
    from roundelay.node.node import Node


class Seat:
    """What `Epochs`, `Changes` and `Assembly` share."""

    def __init__(self, node: Node, spec: GroupSpec, now: int) -> None:
        engines.check_stage(check_options(spec))
        self.node = node
        self.spec = spec
        self.own = node.specs.get(spec.name) or plain_spec(spec.name)
        """What the node was told of the group, whatever its applications ask for."""
        self.wishes = spec
        """What was asked for; `spec` is what there is, once the group has settings."""
        self.petitions: dict[int, GroupSpec] = {}
        """By application: what that one asked for."""
        burst = node.medium.burst if spec.protocol == TOKEN else 0
        size = engines.bundle_bytes(node.medium.mtu, burst)
        self.outbox = Outbox(spec.name, engines.LARGEST_MESSAGE, size, LIMIT_BYTES)
        self.applications: dict[int, Application] = {}
        self.memory = Memory()
        """What was delivered lately, over all rosters of the present history."""
        self.data: Hosted | None = None
        """What carries the applications' messages."""
        self.ring: Hosted | None = None
        """What agrees on rosters; in token groups the same thing."""
        self.lingering: list[tuple[int, Hosted]] = []
        self.incarnation = ""
        self.epoch = -1
        self.roster: tuple[str, ...] = ()
        self.lives: tuple[bytes, ...] = ()
        """The UUID that the node of each member has, or had when it entered."""
        self.base = 0
        self.decreed = False
        """An operator said from where the group goes on (`node.recovery`)."""
        self.began_in = ""
        """The history in which the present epoch began; empty: its incarnation."""
        self.request_due = 0
        self.recalled = spec.fixed
        """The member may have forgotten what it delivered last: it goes on from its disk."""
        self.settings: Settings | None = None
        """What the members have agreed on; None: not founded yet, as far as we know."""
        self.told_before = 0
        """Messages delivered in earlier epochs of the incarnation."""
        self.counted: dict[tuple[str, int], int] = {}
        """By member and epoch that is over: how many bundles of the member are in its order."""
        self.reopen = False
        """The engine beside the ring cannot go on: a new epoch, even with the same roster."""
        self.entered: list[str] = node.faults.entered(spec.name)
        """Epochs that this node has been in, the latest ones."""
        self.departed: Start | None = None
        """The epoch that has begun without us, since we leave; we serve those who are behind."""
        self.departed_until = 0
        self.told_waiting = False
        self.since = now
        self.deadline = now
        self.left_alone: tuple[str, int] | None = None
        """The history that we may go on with alone, and how far we have it: we were its only member
        when we stopped, or an operator says so."""
        self.reached: tuple[str, int] = ("", -1)
        """Incarnation, and the position that its applications have reached in it."""
        self.leaving = False
        self.closed = False
        self.state = "looking for members"
        self.asked: dict[str, bool] = {}
        """Who wants in (False) or out (True)."""
        self.asked_lives: dict[str, bytes] = {}
        """The UUIDs of their nodes: the directory may still have those of an earlier life."""
        self.change_due = NEVER
        self.ask_due = now
        self.announce_until = 0
        self.announce_due = NEVER
        self.held_at = 0
        self.living: tuple[str, ...] = ()
        """Who is waited for before the epoch ends."""
        self.drained: dict[str, Drained] = {}
        self.tails = Tails(())
        self.end_due = 0
        """When the end of the epoch may be proposed, once more."""
        self.stopped_at = 0
        """When the cluster stopped, or somebody was last told to look why nothing followed."""
        self.said_drained = 0
        self.behind: Start | None = None
        self.behind_due = NEVER
        self.dead_since: dict[str, int] = {}
        self.kept_in: Path | None = None
        self.strangers: dict[str, Settings] = {}
        """Fixed roster: members that have other settings than this one."""
        self.contacts: dict[str, int] = {}
        """Fixed roster: who has told us of its past with the group."""

    # -- applications ----------------------------------------------------------------------

    def join(
        self, application: Application, since: int | None = None, since_time: int = 0,
        history: str = "",
    ) -> None:  # fmt: skip
        self.leaving = False
        if id(application) in self.applications:
            return
        if since is not None:
            self.node.recorders.replays.check_since(self.spec.name, since)
            if engines.early_stage(self.spec) and not getattr(application, "is_recorder", False):
                raise ConfigError(
                    "since", since, f"none with stage={self.spec.stage}: what is delivered early "
                    "has no place in the order yet",
                )  # fmt: skip
        self.applications[id(application)] = application
        application.viewed(self.view())
        if since is None:
            return
        memory = self.memory
        kept = self.data is not None and not since_time and memory.begin <= since < memory.end
        if getattr(application, "is_recorder", False):
            if self.data is not None:
                self._replay(application, since)
        elif kept and holds(memory.history, Position(history, since)):
            self._replay(application, since)
        else:  # also who is level: another history may begin before it was given anything of this
            self._catch_up(application, since, since_time, history, asked=True)

    def _catch_up(
        self, application: Application, since: int, since_time: int = 0, history: str = "",
        asked: bool = False,
    ) -> None:  # fmt: skip
        replays = self.node.recorders.replays
        replays.catch_up(
            self.applications, application, self.spec.name, since, since_time, history, asked
        )

    def _begin_again(self) -> None:
        """Another history begins: who caught up with the one before may not have with this."""
        for key, one in list(self.applications.items()):
            if isinstance(one, CatchUp) and one.live:
                if not one.looks_anew:
                    self.applications[key] = one.application
                else:
                    at, late = one.asked.position, one.since_time
                    self._catch_up(one.application, at.seq, late, at.history, asked=True)

    def _keep_in_mind(self, data: Hosted) -> None:
        """What `data` delivers can be asked for from now on, and what it knows from its disk."""
        if data.expected < 0:
            return
        data.memory = self.memory
        self.memory.enter(data.lineage, data.expected)
        if self.memory.begin == self.memory.end:
            self._fill_memory(data.lineage, data.base)
            for batch in data.history(0):
                self.memory.add(batch)
            self.memory.enter(data.lineage, data.expected)
        keepers = self.node.recorders.keepers
        keepers.serve()
        keepers.tell(self.spec.name)  # others may wait for what we have of this history

    def _fill_memory(self, history: str, upto: int) -> None:
        """With what earlier rosters have left on our disk, below that position."""
        folder = self._folder() if self.spec.protocol == TOKEN else None
        if folder is not None:
            for batch in earlier.batches(folder, self.spec.name, upto, history):
                self.memory.add(batch)
            self.memory.enter(history, upto)

    def fell_behind(self, application: Application, since: int) -> bool:
        """An application did not read for too long: it may catch up, if somebody records."""
        # Whoever sits there in its place would find no room either.
        here = self.applications.get(id(application)) is application
        if here and since >= 0 and self.node.recorders.known(self.spec.name):
            self._catch_up(application, since)
            return True
        return False

    def lost(self, lo: int, hi: int) -> None:
        """The member goes on behind a gap (CM-R18): applications get it from a recorder, or from
        other members."""
        self.node.log("info", "group.behind", group=self.spec.name, lo=lo, hi=hi)
        for one in list(self.applications.values()):
            if engines.early_stage(self.spec):
                one.missed(Missed(self.spec.name, lo, hi, self.history_id))
            elif isinstance(one, CatchUp):
                self._catch_up(one.application, max(lo, one.at))
            elif not getattr(one, "is_recorder", False):
                self._catch_up(one, lo)

    def history(self, since: int) -> Iterator[Batch]:
        """What the member still keeps from position `since` on."""
        return self.memory.read(since)

    def _replay(self, application: Application, since: int) -> None:
        """What this member still keeps, from where the application left off."""
        for batch in self.memory.read(since):
            if full(application, self.spec.name):
                self._catch_up(application, since)  # the rest follows as it is read
                return
            application.deliver(batch)
            since = batch.seq + len(batch.bundle)

    def part(self, application: Application, now: int) -> None:
        """The application leaves; with the last one the node does, unless it is configured."""
        found = self.applications.pop(id(application), None)
        if found is None:
            return
        if isinstance(found, CatchUp):
            found.stop()
        if self.petitions.pop(id(application), None) is not None:
            self._wish_anew()
        if not self.applications and self.spec.name not in self.node.specs:
            self.leave(now)

    @abstractmethod
    def leave(self, now: int) -> None:
        """Be left out of the next roster."""

    @abstractmethod
    def close(self, reason: str) -> None:
        """It is over here."""

    def send(
        self, application: Application, bundle: Bundle, tag: int, to: Iterable[str] | None,
        recorders: int = 0,
    ) -> None:  # fmt: skip
        members = self._destinations(to)
        if self.spec.protocol == TOKEN and MARK in bundle.data and any(map(is_word, bundle)):
            raise UsageError(
                f"a message that begins with {MARK!r}: so do those by which the nodes of a group "
                "agree on its members; put something in front of it"
            )
        due = time.monotonic_ns() + self.node.config.answer_ns
        self.outbox.put(application, bundle, tag, members, due)
        self.node.wake(self.data)

    def _destinations(self, to: Iterable[str] | None) -> tuple[str, ...] | None:
        if to is None:
            return None
        if self.spec.protocol != "spo":
            raise ConfigError("to", "…", f"no destinations in {self.spec.service} groups")
        if self.data is None:
            raise UsageError(f"group {self.spec.name} is not open yet: {self.state}")
        wanted = set(to)
        unknown = wanted - set(self.roster)
        if unknown or not wanted:
            raise ConfigError("to", ",".join(sorted(unknown)), f"members: {', '.join(self.roster)}")
        return tuple(sorted(wanted))

    # -- what is known ---------------------------------------------------------------------

    def view(self) -> View:
        if self.data is not None:
            view = self.data.view()
            version = f"{max(0, self.epoch)}.{view.version}"
            return structs.replace(view, version=version, state=self._shown(view.state))
        version = str(max(0, self.epoch))
        members = self.roster if self.ring else ()
        return View(self.spec.name, version, members, self._shown(self.state), self.incarnation)

    def _shown(self, state: str) -> str:
        """`state`, or what the ring beside the group waits for: until it has that, nothing that is
        wrong with the group can be mended."""
        ring = self.ring.state if self.ring is not None else ""
        return ring if ring.startswith("blocked") and state != "open" else state

    def show(self) -> None:
        view = self.view()
        for application in list(self.applications.values()):
            application.viewed(view)

    def info(self) -> GroupInfo | None:
        """What to tell other nodes of it; None: nothing."""
        if self.preset:
            version = -1
            if self.data is not None and isinstance(self.data.engine, TokenSite):
                version = self.data.engine.max_joined[0]
            return GroupInfo(
                self.spec.name, FIXED, version, len(self.spec.members), settings=self.settings
            )
        if self.ring is None:
            return None if self.leaving else GroupInfo(self.spec.name)
        return GroupInfo(
            self.spec.name, self.incarnation, self.epoch, len(self.roster), decreed=self.decreed,
            settings=self.settings,
        )  # fmt: skip

    def agree(self, wishes: GroupSpec) -> None:
        """Another application joins, and asks for this: raises SettingsMismatch."""
        stage = self.spec.stage or engines.stage_of(self.spec)
        if wishes.stage and wishes.stage != stage:
            raise SettingsMismatch(self.spec.name, "stage", wishes.stage, stage or "none")
        if self.settings is not None:
            settings.check(wishes, self.settings)
        elif wishes.members and wishes.members != self.wishes.members:
            # What kind of group it is was decided when it was opened here.
            mine, theirs = (settings.shown("members", one.members) for one in (self.wishes, wishes))
            raise SettingsMismatch(self.spec.name, "members", theirs, mine)
        else:
            settings.merged(self.wishes, wishes)

    def petition(self, application: Application, wishes: GroupSpec) -> None:
        """The application is in the group, and asked for this, which `agree` has looked at."""
        if self.settings is not None:
            settings.check(wishes, self.settings)  # it may have gone on where it was
        self.petitions[id(application)] = wishes
        self._wish_anew()

    def _wish_anew(self) -> None:
        """What is asked for, where the group has no settings yet."""
        if self.settings is not None or self.named:
            return  # it has them, or is the roster it was opened with
        found = structs.replace(self.own, stage=self.spec.stage)
        for wishes in self.petitions.values():
            with suppress(SettingsMismatch):  # two that the settings of a group met both
                found = settings.merged(found, wishes)
        self.wishes = self.spec = found

    def _unsettle(self) -> None:
        """The history with these settings is over for us; another may have others."""
        self.settings, self.spec = None, self.wishes
        self._wish_anew()

    def _accept(self, agreed: Settings) -> None:
        """The group has these settings: applications that asked for others are turned away.

        Raises SettingsMismatch if the node itself was told something else, or if nobody is left.
        """
        settings.check(self.own, agreed)
        engines.check_stage(settings.adopted(self.wishes, agreed))
        if agreed.members and self.node.name not in agreed.members:
            mine, theirs = (settings.shown("members", one) for one in ((), agreed.members))
            raise SettingsMismatch(self.spec.name, "members", mine, theirs)
        refused: dict[int, SettingsMismatch] = {}
        for key, wishes in self.petitions.items():
            try:
                settings.check(wishes, agreed)
            except SettingsMismatch as error:
                refused[key] = error
        for key, why in refused.items():
            self._turn_away(key, why)
        if refused and not self.applications and self.spec.name not in self.node.specs:
            raise next(iter(refused.values()))
        if refused:
            self._wish_anew()

    def _turn_away(self, key: int, error: SettingsMismatch) -> None:
        del self.petitions[key]
        found = self.applications.pop(key, None)
        if found is None:
            return
        if isinstance(found, CatchUp):
            found.stop()
        application = getattr(found, "application", found)
        name, state = self.spec.name, f"failed: {error}"
        self.outbox.withdraw(application, state)
        application.viewed(View(name, "0", (), state))
        application.refused(Refusal(name, NO_TAG, state, False))

    @property
    def preset(self) -> bool:
        """The roster is that of the file, and nothing else: a token group whose members were
        named, unless an operator had to recover it."""
        return self.named and not self.decreed

    @property
    def named(self) -> bool:
        """A token group whose members were named: nobody else is admitted, and nobody left out."""
        return self.spec.fixed and self.spec.protocol == TOKEN

    @property
    def history_id(self) -> str:
        """The history that positions belong to at present; empty: none that is known."""
        if self.preset or self.ring is None or self.ring.token is None:
            return self.incarnation
        if self.spec.protocol != TOKEN:
            return self.began_in or self.incarnation
        return later_history(self.began_in or self.incarnation, self.ring.token.past, self.base)

    def trouble(self) -> str:
        """Why callers wait."""
        state = self.view().state
        if self.ring is not None and not self.works():
            state += ", being reformed"
        return f"no answer in time ({state}); it may still be delivered"

    def members(self) -> dict[str, object]:
        view = self.view()
        inside = set(view.members)
        members = [
            {"name": name, "alive": self.node.alive(name), "in_view": name in inside}
            for name in self.roster
        ]
        return {
            "group": view.group,
            "version": view.version,
            "state": view.state,
            "members": members,
        }

    def status(self) -> dict[str, object]:
        base: dict[str, object] = {
            "group": self.spec.name, "service": self.spec.service,
            "incarnation": self.incarnation, "epoch": self.epoch, "roster": list(self.roster),
            "applications": len(self.applications),
            "slowed_by": self.node.recorders.slowed_by(self.spec.name),
            "settings": settings.status(self.settings),
            "stage": self.spec.stage or engines.stage_of(self.spec) or None,
        }  # fmt: skip
        engine = self.data.status() if self.data is not None else {}
        return base | engine | {"state": self.view().state}

    def _folder(self) -> Path | None:
        """Of what the member must not forget; None: it has no disk."""
        base = self.node.config.dir
        if self.kept_in is None and base is not None:
            self.kept_in = claim_group(base, self.spec.name, self.node.specs)
        return self.kept_in

    def works(self) -> bool:
        """Whether rosters can be agreed on at present."""
        engine = self.ring.engine if self.ring is not None else None
        return isinstance(engine, TokenSite) and engine.phase == NORMAL

    def _may(self, name: str) -> bool:
        return not self.spec.members or name in self.spec.members

    # -- engines ---------------------------------------------------------------------------

    def _engines(self) -> list[Hosted]:
        found = [one for one in (self.ring, self.data) if one is not None]
        return found[:1] if self.ring is self.data else found

    def _drop(self, hosted: Hosted) -> None:
        self.node.unregister(hosted)
        hosted.close()

    def _wake_at(self, due: int) -> None:
        if due < self.deadline:
            self.deadline = due
        self.node.wake()
