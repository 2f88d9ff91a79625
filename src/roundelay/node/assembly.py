"""How the members of a group come together, and stay together while members come and go.

**A fixed roster** (token groups) is simply opened: every member knows all names, in one order.

**Without a roster** the group agrees on one.  Each roster is an *epoch* of an *incarnation* of the
group and has engines of its own, so no PDU of one roster is ever taken for one of another.  A
roster is changed by a message in the group's own total order: once CHANGE is committed, the epoch
is over for everybody at the same position, and the next epoch goes on there with the new roster.
What was not committed before CHANGE is sent again in the next epoch.  Since the old majority has
committed the end of its epoch, two rosters can never both go on, whatever the network does.

A group begins when a node that wants it hears of no incarnation for a while and is the first of
those who want it, by name: it opens epoch 0 alone and admits the others.  Should two begin at once
(a network that is split from the start), the smaller one gives up when they meet, and says so.

Groups whose protocol has no order of its own to put CHANGE into (TO, PO, SPO, positive
acknowledgement) are kept together by a token group beside them, the *ring*: it carries the
changes, the group's engine carries the data.  Before a change the members stop sending and wait
until all that was sent is delivered; only when a member has failed they go on without that, and
what is then undelivered is reported to its senders.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.engine import MS, NEVER, SECOND, Delivery, Notice
from roundelay.core.errors import ConfigError, UsageError
from roundelay.core.token.config import COLD, REJOIN
from roundelay.core.token.pdu import NO_LIST
from roundelay.core.token.site import TokenSite
from roundelay.core.token.state import NORMAL
from roundelay.node import engines
from roundelay.node.groups import MEMBERS_MAX, TOKEN, GroupSpec
from roundelay.node.hosted import Hosted
from roundelay.node.outbox import LIMIT_BYTES, Outbox
from roundelay.node.store import positive_ack_store, token_store
from roundelay.node.switchboard import Application, View
from roundelay.wire.info import Ask, GroupInfo, Info, Start

if TYPE_CHECKING:
    from roundelay.node.node import Node

SETTLE_NS: Final = 700 * MS
"""How long to listen before a group is begun."""
ASK_NS: Final = 300 * MS
GATHER_NS: Final = 150 * MS
"""Those who ask within this time are admitted together."""
LINGER_NS: Final = 5 * SECOND
"""How long the engine of a finished epoch goes on serving those who are behind."""
FORGET_NS: Final = 20 * SECOND
"""A member that has been dead for this long is left out of the next roster."""
DRAIN_NS: Final = 3 * SECOND
ENTERED_MAX: Final = 64
DEPART_NS: Final = 3 * SECOND // 2
"""How long one who has left waits for the others to see that."""


class Change(Struct, frozen=True, array_like=True, tag="change"):
    """The next roster: the last message of an epoch."""

    epoch: int
    roster: tuple[str, ...]
    lives: tuple[bytes, ...]
    resilience: int
    base: int
    """Where the data goes on, for groups beside a ring; else the position of CHANGE itself."""


class Hold(Struct, frozen=True, array_like=True, tag="hold"):
    """Stop sending data: the roster is about to change."""

    epoch: int


class Drained(Struct, frozen=True, array_like=True, tag="drained"):
    """Everything this member had to do in the epoch is done; it has delivered up to `position`.

    In turn 1 it means that everybody has what this member sent.  When all have said so, everybody
    has everything, and turn 2 means that it is delivered.
    """

    name: str
    position: int
    turn: int


Word = Change | Hold | Drained
_encode = msgspec.msgpack.Encoder().encode
_words = msgspec.msgpack.Decoder(Word)


class Remembered(Struct):
    """What a member must not forget of its group (`roster.json`)."""

    incarnation: str
    epoch: int
    roster: tuple[str, ...]
    lives: tuple[bytes, ...]
    base: int
    resilience: int


class Assembly:
    """One group at one node, over all its epochs."""

    def __init__(self, node: Node, spec: GroupSpec, now: int) -> None:
        engines.check_stage(spec)
        self.node = node
        self.spec = spec
        burst = node.medium.burst if spec.protocol == TOKEN else 0
        size = engines.bundle_bytes(node.medium.mtu, burst)
        self.outbox = Outbox(spec.name, engines.LARGEST_MESSAGE, size, LIMIT_BYTES)
        self.applications: dict[int, Application] = {}
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
        self.resilience = spec.resilience
        self.told_before = 0
        """Messages delivered in earlier epochs of the incarnation."""
        self.reopen = False
        """The engine beside the ring cannot go on: a new epoch, even with the same roster."""
        self.entered: list[str] = []
        """Epochs that this node has been in, the latest ones."""
        self.departed: Start | None = None
        """The epoch that has begun without us, since we leave; we serve those who are behind."""
        self.departed_until = 0
        self.since = now
        self.deadline = now
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
        self.drained: dict[str, Drained] = {}
        self.said_drained = 0
        self.behind: Start | None = None
        self.behind_due = NEVER
        self.dead_since: dict[str, int] = {}
        self.contacts: dict[str, int] = {}
        """Fixed roster: who has told us of its past with the group."""
        if spec.fixed:
            if spec.protocol != TOKEN:
                # Membership is agreed on by the ring; the roster says who may be admitted.
                if node.name not in spec.members:
                    raise ConfigError("members", ",".join(spec.members), f"{node.name} among them")
            else:
                self._prepare_fixed(now)
        self._recall(now)

    # -- applications ----------------------------------------------------------------------

    def join(self, application: Application, since: int | None = None) -> None:
        self.leaving = False
        if id(application) in self.applications:
            return
        self.applications[id(application)] = application
        application.viewed(self.view())
        if since is not None and self.data is not None:
            self._replay(application, since)

    def _replay(self, application: Application, since: int) -> None:
        """What this member still keeps, from where the application left off."""
        assert self.data is not None
        for batch in self.data.history(since):
            if batch.seq > since:
                self.node.log("warning", "group.gap", group=self.spec.name, lo=since, hi=batch.seq)
            application.deliver(batch)
            since = batch.seq + len(batch.bundle)

    def part(self, application: Application, now: int) -> None:
        """The application leaves; with the last one the node does, unless it is configured."""
        if self.applications.pop(id(application), None) is None:
            return
        if not self.applications and self.spec.name not in self.node.specs:
            self.leave(now)

    def send(
        self, application: Application, bundle: Bundle, tag: int, to: Iterable[str] | None
    ) -> None:
        members = self._destinations(to)
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
            return View(
                view.group, f"{max(0, self.epoch)}.{view.version}", view.members, view.state
            )
        version = str(max(0, self.epoch))
        return View(self.spec.name, version, self.roster if self.ring else (), self.state)

    def show(self) -> None:
        view = self.view()
        for application in list(self.applications.values()):
            application.viewed(view)

    def info(self) -> GroupInfo | None:
        """What to tell other nodes of it; None: nothing."""
        if self.spec.fixed and self.spec.protocol == TOKEN:
            version = -1
            if self.data is not None and isinstance(self.data.engine, TokenSite):
                version = self.data.engine.max_joined[0]
            return GroupInfo(self.spec.name, "fixed", version, len(self.spec.members))
        if self.ring is None:
            return None if self.leaving else GroupInfo(self.spec.name)
        return GroupInfo(self.spec.name, self.incarnation, self.epoch, len(self.roster))

    def trouble(self) -> str:
        """Why callers wait."""
        state = self.data.state if self.data is not None else self.state
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
            "group": self.spec.name, "service": self.spec.service, "state": self.state,
            "incarnation": self.incarnation, "epoch": self.epoch, "roster": list(self.roster),
            "applications": len(self.applications),
        }  # fmt: skip
        return base | (self.data.status() if self.data is not None else {})

    # -- fixed rosters ---------------------------------------------------------------------

    def _folder(self) -> Path | None:
        if self.node.config.dir is None:
            return None
        safe = re.sub(r"[^A-Za-z0-9._-]", lambda m: f"%{ord(m[0]):02x}", self.spec.name)
        return self.node.config.dir / "groups" / safe

    def _prepare_fixed(self, now: int) -> None:
        spec, node = self.spec, self.node
        self.roster = spec.members
        if node.name not in spec.members:
            raise ConfigError("members", ",".join(spec.members), f"{node.name} among them")
        most = engines.most_resilience(len(spec.members))
        if not 0 <= spec.resilience <= most:
            raise ConfigError(
                "resilience", spec.resilience, f"0 to {most} for {len(spec.members)} members"
            )
        folder = self._folder()
        if folder is None:
            raise ConfigError(
                "dir", None, "a directory: a member of a fixed roster must remember its promises"
            )
        self.store = token_store(folder / "token.log", lambda text: node.log("warning", text))
        stable = self.store.stable
        if stable is not None and (stable.max_joined != NO_LIST or stable.wiped):
            self._open_fixed(now, stable, COLD)
        else:
            self.state = "forming: meeting the other members for the first time"
            self._meet(now)

    def _open_fixed(self, now: int, stable: Any, boot: str) -> None:
        spec, node = self.spec, self.node
        me, size = spec.members.index(node.name), len(spec.members)
        config = engines.token_config(spec.resilience, boot, self.outbox.bundle_bytes)
        engine = engines.token_engine(me, size, config, node.rng, now, stable)
        self.ring = self.data = Hosted(
            node, spec, me, spec.members, engine, self.outbox, self.applications,
            store=self.store, trace=node.config.tracer(spec.name, me),
        )  # fmt: skip
        self.state = "open"
        self.deadline = NEVER
        node.register(self.data)
        node.say_soon(now)
        self.show()

    def _meet(self, now: int) -> None:
        """A member without a past: has it lost it, or is the group new?

        Any list that ever formed had a majority.  Having heard from so many others that one of
        them must have been in it, we know; if the group has a past we are a member that lost its
        disk (CM-R17), else the group is as new as we are.
        """
        size = len(self.spec.members)
        needed = size - (size // 2 + 1) + 1 if size > 1 else 0
        past = any(version >= 0 for version in self.contacts.values())
        if past or len(self.contacts) >= needed:
            self._open_fixed(now, None, REJOIN if past else COLD)
        else:
            self.deadline = NEVER

    # -- what others say -------------------------------------------------------------------

    def heard(self, info: Info, now: int) -> None:
        """Another node said who it is, and in what groups."""
        said = next((group for group in info.groups if group.name == self.spec.name), None)
        if said is None or self.closed:
            return
        if self.spec.fixed and self.spec.protocol == TOKEN:
            if self.data is None and info.name in self.spec.members:
                self.contacts[info.name] = said.epoch
                self._meet(now)
            return
        if not said.incarnation or said.incarnation == "fixed":
            return
        if not self.incarnation:
            self._wake_at(now)  # there is a group to ask
        elif said.incarnation != self.incarnation:
            if self.node.alive(info.name):
                self._other_incarnation(said, now)
        elif said.epoch > self.epoch and self.ring is not None and now >= self.ask_due:
            # The group went on without us: be told how, or be admitted again.
            self.ask_due = now + ASK_NS
            self._ask(self.incarnation)

    def _ask(self, incarnation: str) -> None:
        epoch = self.epoch if self.ring is not None else -1
        ask = Ask(self.spec.name, incarnation, self.node.name, epoch=epoch, life=self.node.uuid)
        self.node.send_control(ask)

    def _other_incarnation(self, said: GroupInfo, now: int) -> None:
        """Two histories of one group have met: the smaller one ends."""
        mine, other = (len(self.roster), self.incarnation), (said.size, said.incarnation)
        if mine > other:
            return
        delivered = self.told_before + (self.data.delivered if self.data is not None else 0)
        members = len(self.roster)
        state = "looking for members"
        if delivered:
            reason = (
                f"two histories of {self.spec.name} met, and this one, of {members} members, "
                f"ends after {delivered} messages"
            )
            self.node.log("error", "group.split", group=self.spec.name, reason=reason)
            state += f": {reason}"
            self.outbox.abandon(reason)
        else:
            self.outbox.send_again()
        self._forget_roster()
        self.state = state
        self.since = now
        self.show()
        self._wake_at(now)

    def told(self, word: Ask | Start, now: int) -> None:
        if self.closed or (self.spec.fixed and self.spec.protocol == TOKEN):
            return
        if isinstance(word, Ask):
            if word.incarnation == self.incarnation and self.ring is not None:
                self._asked(word, now)
        elif word.incarnation == self.incarnation or not self.incarnation:
            self._started(word, now)

    def _asked(self, ask: Ask, now: int) -> None:
        allowed = self.spec.members
        if len(self.asked) >= MEMBERS_MAX and ask.name not in self.asked:
            self.node.drop("too many want into a group")
            return
        if ask.life:
            self.asked_lives[ask.name] = ask.life
        if ask.leave:
            if ask.name in self.roster:
                self.asked[ask.name] = True
        elif ask.name not in self.roster:
            if not allowed or ask.name in allowed:
                self.asked[ask.name] = False
        elif ask.epoch < self.epoch:
            self.announce_until = max(self.announce_until, now + 2 * ASK_NS)
            self._announce(now)  # it has not heard that it is in
        elif self.spec.protocol != TOKEN:
            self.asked[ask.name] = False
            self.reopen = True
        if self.asked and self.change_due >= NEVER:
            self.change_due = now + GATHER_NS
            self._wake_at(self.change_due)

    def _started(self, start: Start, now: int) -> None:
        """A roster is in force that we may not know of."""
        me = self.node.name
        if start.epoch <= self.epoch:
            return
        if me not in start.roster:
            if self.ring is not None and me in self.roster:
                # Left out while we were away: ask to be admitted again.
                for one in list(self.outbox.underway):
                    self.outbox.lose_track(one, "away while the roster changed")
                self._forget_roster()
                self.state = "looking for members"
                self._wake_at(now)
            return
        if self.ring is not None and me in self.roster and self.behind_due >= NEVER:
            # We were a member of the epoch before: its engine may still bring us to its end.
            self.behind, self.behind_due = start, now + LINGER_NS // 2
            self._wake_at(self.behind_due)
            return
        if self.ring is not None and me in self.roster:
            if self.behind is not None and start.epoch > self.behind.epoch:
                self.behind = start
            return
        self._enter(start, now)

    # -- time ------------------------------------------------------------------------------

    def _wake_at(self, due: int) -> None:
        if due < self.deadline:
            self.deadline = due
        self.node.wake()

    def on_timer(self, now: int) -> None:
        self.deadline = now + SECOND
        for due, hosted in list(self.lingering):
            if due <= now:
                self.lingering.remove((due, hosted))
                self._drop(hosted)
            else:
                self.deadline = min(self.deadline, due)
        if self.closed or (self.spec.fixed and self.spec.protocol == TOKEN):
            if not self.lingering:
                self.deadline = NEVER
            return
        if self.departed is not None:
            self._depart(now)
            return
        if self.ring is None:
            self._look(now)
            return
        if self.behind is not None and self.behind_due <= now:
            self._jump(now)
        if self.announce_due <= now:
            self._announce(now)
        self._look_after_members(now)
        if self.leaving:
            self._ask_out(now)
        if self.spec.protocol != TOKEN and self.data is None and len(self.roster) > 1:
            self._ask(self.incarnation)  # to be opened again with us
            self.deadline = min(self.deadline, now + ASK_NS)
        if self.change_due <= now:
            self._propose(now)
        if self.said_drained or self.held_at:
            self._drain(now)
        for due in (self.announce_due, self.change_due, self.behind_due):
            self.deadline = min(self.deadline, due)

    def _look(self, now: int) -> None:
        """No roster yet: ask to be admitted, or begin the group."""
        if self.leaving:
            self.close("left")
            return
        name, node = self.spec.name, self.node
        offers: dict[str, GroupInfo] = {}
        rivals = []
        for known in node.directory.by_name.values():
            said = known.groups.get(name)
            if known.name == node.name or said is None or not node.alive(known.name):
                continue
            if said.incarnation and said.incarnation != "fixed":
                offers[known.name] = said
            elif not said.incarnation:
                rivals.append(known.name)
        if offers:
            best = max(offers.values(), key=lambda one: (one.size, one.incarnation))
            if self.state == "looking for members":
                self.state = "asking to be admitted"
            self._ask(best.incarnation)
            self.deadline = now + ASK_NS
            return
        wait = self.since + SETTLE_NS
        if now < wait:
            self.deadline = wait
        elif any(rival < node.name and self._may(rival) for rival in rivals):
            self.deadline = now + ASK_NS  # that one begins
        else:
            incarnation, resilience = secrets.token_hex(8), self.spec.resilience
            roster, lives = (node.name,), (node.uuid,)
            self._enter(Start(name, incarnation, 0, roster, lives, 0, resilience), now)

    def _may(self, name: str) -> bool:
        return not self.spec.members or name in self.spec.members

    # -- epochs ----------------------------------------------------------------------------

    def _recall(self, now: int) -> None:
        """Go on where this node was when it stopped."""
        folder = self._folder()
        if folder is None or (self.spec.fixed and self.spec.protocol == TOKEN):
            return
        path = folder / "roster.json"
        if not path.exists():
            return
        kept = msgspec.json.decode(path.read_bytes(), type=Remembered)
        if self.node.name not in kept.roster:
            return
        if kept.roster == (self.node.name,):
            path.unlink()  # alone then, and everybody else may have begun anew since
            return
        start = Start(
            self.spec.name, kept.incarnation, kept.epoch, kept.roster, kept.lives, kept.base,
            kept.resilience,
        )  # fmt: skip
        self._enter(start, now, recalled=True)

    def _retire(self, now: int) -> None:
        """Our epoch is over; its engines only serve those who have not got there yet."""
        for hosted in self._engines():
            hosted.held = True
            self.lingering.append((now + LINGER_NS, hosted))
            hosted.applications = {}
            hosted.intercept = lambda delivery: True
            hosted.outbox = Outbox(self.spec.name, 0, 0, 0)
            hosted.on_notice = None
        if self.data is not None:
            self.told_before += self.data.delivered
        self.ring = self.data = None

    def _enter(self, start: Start, now: int, recalled: bool = False) -> None:
        """Begin epoch `start`: engines of its own, on what is left of the one before.

        A node that was in this epoch in an earlier life, and remembers nothing of it, may not act
        as if it had promised nothing (CM-R17); beside a ring its place is in the next epoch.
        """
        node, spec = self.node, self.spec
        self._retire(now)
        self.outbox.send_again()
        self.incarnation, self.epoch = start.incarnation, start.epoch
        self.roster, self.lives, self.base = start.roster, start.lives, start.base
        self.resilience = start.resilience
        self.asked = {name: out for name, out in self.asked.items() if (name in self.roster) is out}
        self.asked_lives = {}
        self.change_due = NEVER if not self.asked else now + GATHER_NS
        self.held_at, self.said_drained, self.drained = 0, 0, {}
        self.reopen = False
        self.behind, self.behind_due = None, NEVER
        self.dead_since = {}
        me, size = self.roster.index(node.name), len(self.roster)
        mark = f"{self.incarnation}-{self.epoch}"
        first = self.lives[me] == node.uuid and not recalled and mark not in self.entered
        self.entered = [*self.entered[-ENTERED_MAX:], mark]
        self._remember(start)
        folder = self._folder()
        token = spec.protocol == TOKEN
        resilience = min(start.resilience, engines.most_resilience(size))
        if not token:
            resilience = engines.most_resilience(size)  # changes are rare: be as safe as can be
        store = stable = None
        if folder is not None:
            store = token_store(folder / f"ring-{mark}.log", lambda text: node.log("warning", text))
            stable = store.stable
            if stable is not None and stable.max_joined == NO_LIST and not stable.wiped:
                stable = None
        lost = store is not None and store.damaged
        sure = first or recalled or stable is not None
        boot = COLD if sure and not lost else REJOIN
        config = engines.token_config(resilience, boot, self.outbox.bundle_bytes)
        engine = engines.token_engine(me, size, config, node.rng, now, stable)
        outbox = self.outbox if token else Outbox(spec.name, 1 << 16, 1 << 16, 1 << 20)
        self.ring = Hosted(
            node, spec if token else _ring_spec(spec), me, self.roster, engine, outbox,
            self.applications if token else {},
            store=store, incarnation=f"ring {mark}", base=self.base if token else 0,
            trace=node.config.tracer(f"{spec.name} {mark}", me) if token else None,
        )  # fmt: skip
        self.ring.intercept = self._ring_delivery
        self.ring.on_notice = self._ring_notice
        node.register(self.ring)
        if token:
            self.data = self.ring
        else:
            self._enter_data(me, size, mark, first, now)
        self.state = "forming"
        self.announce_until = now + 3 * LINGER_NS
        self._announce(now)
        node.say_soon(now)
        self.show()

    def _enter_data(self, me: int, size: int, mark: str, first: bool, now: int) -> None:
        """The engine beside the ring, if it can be had in this epoch."""
        node, spec = self.node, self.spec
        if not first or (size < 2 and spec.protocol != "pa"):
            return
        stable = store = None
        folder = self._folder()
        if spec.protocol == "pa" and folder is not None:
            store = positive_ack_store(folder / "pa.log", lambda text: node.log("warning", text))
            stable = store.stable
        engine = engines.cluster_engine(spec, me, size, node.rng, now, stable)
        self.data = Hosted(
            node, spec, me, self.roster, engine, self.outbox, self.applications,
            store=store, incarnation=f"data {mark}", base=self.base,
            trace=node.config.tracer(f"{spec.name} {mark}", me),
        )  # fmt: skip
        self.data.on_notice = self._data_notice
        node.register(self.data)

    def _engines(self) -> list[Hosted]:
        found = [one for one in (self.ring, self.data) if one is not None]
        return found[:1] if self.ring is self.data else found

    def _remember(self, start: Start) -> None:
        folder = self._folder()
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        aside = folder / "roster.new"
        kept = Remembered(
            start.incarnation, start.epoch, start.roster, start.lives, start.base,
            start.resilience,
        )  # fmt: skip
        with aside.open("wb") as file:
            file.write(msgspec.json.encode(kept))
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, folder / "roster.json")
        mark = f"ring-{start.incarnation}-{start.epoch}.log"
        for old in folder.glob("ring-*.log"):
            if old.name != mark:
                old.unlink()

    def _forget_roster(self) -> None:
        for hosted in self._engines():
            self._drop(hosted)
        self.ring = self.data = None
        self.incarnation, self.epoch, self.roster, self.lives, self.base = "", -1, (), (), 0
        self.told_before = 0
        self.asked.clear()
        self.asked_lives.clear()
        self.behind, self.behind_due = None, NEVER
        folder = self._folder()
        if folder is not None and (folder / "roster.json").exists():
            (folder / "roster.json").unlink()
        self.node.say_soon(time.monotonic_ns())

    def _drop(self, hosted: Hosted) -> None:
        self.node.unregister(hosted)
        hosted.close()

    def _jump(self, now: int) -> None:
        """We did not reach the end of our epoch: go on in the present one, behind a gap."""
        start = self.behind
        assert start is not None
        position = self.data.position if self.data is not None else self.base
        if 0 <= position < start.base:
            self.node.log(
                "warning", "group.gap", group=self.spec.name, lo=position, hi=start.base
            )  # fmt: skip
        for one in list(self.outbox.underway):
            self.outbox.lose_track(one, "away while the roster changed")
        self._enter(start, now)

    def _announce(self, now: int) -> None:
        """Tell members of the roster that have not been heard in it what it is."""
        self.announce_due = NEVER
        if self.ring is None or now >= self.announce_until:
            return
        name = self.spec.name
        directory = self.node.directory.by_name
        missing = [
            member for member in self.roster
            if member != self.node.name and (
                (known := directory.get(member)) is None
                or (said := known.groups.get(name)) is None
                or said.epoch < self.epoch
            )
        ]  # fmt: skip
        if not missing:
            return
        start = Start(
            name, self.incarnation, self.epoch, self.roster, self.lives, self.base,
            self.resilience,
        )  # fmt: skip
        self.node.send_control(start)
        self.announce_due = now + ASK_NS
        self._wake_at(self.announce_due)

    # -- changes ---------------------------------------------------------------------------

    def _leader(self) -> bool:
        """Whether it is for us to propose: the first live member of the roster."""
        for name in self.roster:
            if name == self.node.name:
                return True
            if self.node.alive(name) and not self.asked.get(name):
                return False
        return False

    def _look_after_members(self, now: int) -> None:
        """Members that have been dead for long are left out; those who want in are let in."""
        for name in self.roster:
            if self.node.alive(name):
                self.dead_since.pop(name, None)
                continue
            since = self.dead_since.setdefault(name, now)
            if now - since > FORGET_NS and self.works():
                self.asked[name] = True
        if self.asked and self.change_due >= NEVER:
            self.change_due = now + GATHER_NS

    def works(self) -> bool:
        """Whether rosters can be agreed on at present."""
        engine = self.ring.engine if self.ring is not None else None
        return isinstance(engine, TokenSite) and engine.phase == NORMAL

    def _propose(self, now: int) -> None:
        """Put the change into the order, if it is for us to do so."""
        self.change_due = NEVER
        if not self.asked or self.ring is None:
            return
        self.change_due = now + SECOND  # once more, if nothing comes of it
        if not self._leader() or not self.works():
            return
        if self._next_roster() == self.roster and not self.reopen:
            self.asked.clear()
            self.asked_lives.clear()
            self.change_due = NEVER
            return
        if self.spec.protocol == TOKEN:
            self._say(self._change(-1))
        elif not self.held_at:
            self._say(Hold(self.epoch))

    def _change(self, base: int) -> Change:
        roster = self._next_roster()
        lives = tuple(self._life(name) for name in roster)
        return Change(self.epoch, roster, lives, self.resilience, base)

    def _life(self, name: str) -> bytes:
        """The UUID of the node of that name, as far as we know."""
        if name in self.asked_lives:
            return self.asked_lives[name]
        known = self.node.directory.by_name.get(name)
        if known is not None:
            return known.uuid
        return dict(zip(self.roster, self.lives, strict=True)).get(name, b"")

    def _next_roster(self) -> tuple[str, ...]:
        wanting = [
            known.name
            for known in self.node.directory.by_name.values()
            if (said := known.groups.get(self.spec.name)) is not None
            and not said.incarnation
            and self._may(known.name)
            and self.node.alive(known.name)
            and self.asked.get(known.name) is not True
        ]
        names = [name for name in self.roster if self.asked.get(name) is not True]
        wanting += [name for name, out in self.asked.items() if not out and self.node.alive(name)]
        names += sorted(set(wanting) - set(names))
        return tuple(sorted(names[:MEMBERS_MAX])) or (self.node.name,)

    def _say(self, word: Word) -> None:
        """Broadcast in the ring's order.

        The incarnation in front tells our words from messages of applications, which cannot know
        it.
        """
        assert self.ring is not None
        self.ring.outbox.put_word(self._mark() + _encode(word))
        self.node.wake(self.ring)

    def _mark(self) -> bytes:
        return b"\0roundelay\0" + self.incarnation.encode() + b"\0"

    def _ring_delivery(self, delivery: Delivery) -> bool:
        """Look for our words in the order; True: not for applications."""
        bundle = delivery.bundle
        mark = self._mark()
        if not bundle.data.startswith(mark):
            return self.spec.protocol != TOKEN
        try:
            word = _words.decode(bundle.data[len(mark) :])
        except msgspec.MsgspecError:
            self.node.drop("word of the ring")
            return True
        now = time.monotonic_ns()
        if isinstance(word, Change):
            if word.epoch == self.epoch:
                self._changed(word, delivery, now)
        elif isinstance(word, Hold):
            if word.epoch == self.epoch and not self.held_at:
                self.held_at = now
                if self.data is not None:
                    self.data.held = True
                self._drain(now)
        else:
            self.drained[word.name] = word
            self._drain(now)
        return True

    def _changed(self, change: Change, delivery: Delivery, now: int) -> None:
        """The epoch is over, here and now, for everybody."""
        token = self.spec.protocol == TOKEN
        base = self.base + delivery.seq if token else change.base
        start = Start(
            self.spec.name, self.incarnation, self.epoch + 1, change.roster, change.lives, base,
            change.resilience,
        )  # fmt: skip
        if not token and self.outbox.underway:
            reason = "a member failed: it may or may not have been delivered"
            for one in list(self.outbox.underway):
                self.outbox.lose_track(one, reason)
        if self.node.name in change.roster:
            self._enter(start, now)
            return
        # Left out: because we asked for it, or were thought dead.
        self._retire(now)
        self.incarnation, self.epoch, self.roster, self.lives = "", -1, (), ()
        self.asked.clear()
        self.outbox.send_again()
        folder = self._folder()
        if folder is not None and (folder / "roster.json").exists():
            (folder / "roster.json").unlink()
        self.since = now
        self.state = "looking for members"
        if self.leaving:
            self.departed, self.departed_until = start, now + DEPART_NS
        self._wake_at(now)

    def _depart(self, now: int) -> None:
        """We may be the only one to know that the epoch is over: stay until the others do."""
        start = self.departed
        assert start is not None
        directory = self.node.directory.by_name
        name = start.group
        behind = [
            member for member in start.roster
            if self.node.alive(member) and (
                (said := directory[member].groups.get(name)) is None
                or said.incarnation != start.incarnation or said.epoch < start.epoch
            )
        ]  # fmt: skip
        if self.leaving and behind and now < self.departed_until:
            self.node.send_control(start)
            self.deadline = now + ASK_NS // 3
            return
        self.departed = None
        if self.leaving:
            self.close("left")
        else:
            self._wake_at(now)

    def _drain(self, now: int) -> None:
        """Before a change: say when all we sent is delivered; the leader waits for everybody."""
        if not self.held_at or self.ring is None:
            return
        data = self.data
        engine: Any = data.engine if data is not None else None
        idle = data is None or not (
            self.outbox.underway
            or getattr(engine, "queue", None)
            or (hasattr(engine, "busy") and engine.busy())
            or getattr(engine, "outstanding", None)
        )
        late = now - self.held_at > DRAIN_NS or getattr(engine, "stopped", False)
        turns = [self.drained[name].turn if name in self.drained else 0 for name in self.roster]
        turn = 2 if late or min(turns) >= 1 else 1
        if self.said_drained < turn and (idle or late):
            self.said_drained = turn
            position = data.position if data is not None else self.base
            self._say(Drained(self.node.name, max(position, 0), turn))
        overdue = now - self.held_at > 2 * DRAIN_NS
        if (min(turns) >= 2 or overdue) and self._leader() and self.works():
            base = max((word.position for word in self.drained.values()), default=self.base)
            self.held_at = now  # not again at once
            self._say(self._change(base))
        self._wake_at(now + 20 * MS)

    def _ring_notice(self, notice: Notice) -> None:
        if notice.kind == "view" and self.state == "forming":
            self.state = "open"
            if self.data is None:
                alone = len(self.roster) < 2
                self.state += ": waiting for a second member" if alone else ": waiting for others"
        if self.ring is not self.data and notice.kind in ("view", "blocked", "unblocked"):
            self.show()

    def _data_notice(self, notice: Notice) -> None:
        """A cluster that has lost a member goes on without it, if the ring agrees."""
        if notice.kind == "broken":
            now = time.monotonic_ns()
            for name in self.roster:
                if not self.node.alive(name):
                    self.asked[name] = True
            self.asked.setdefault(self.node.name, False)
            self.reopen = True
            self.change_due = now
            self._ask(self.incarnation)
            self._wake_at(now)

    # -- the end ---------------------------------------------------------------------------

    def leave(self, now: int) -> None:
        """Ask to be left out of the next roster; then close."""
        if self.closed or (self.spec.fixed and self.spec.protocol == TOKEN):
            return
        self.leaving = True
        if self.departed is None and (self.ring is None or self.roster == (self.node.name,)):
            self.close("left")
            return
        self._ask_out(now)

    def _ask_out(self, now: int) -> None:
        if now < self.ask_due or self.ring is None:
            return
        self.ask_due = now + ASK_NS
        name = self.node.name
        self._asked(Ask(self.spec.name, self.incarnation, name, leave=True), now)
        self.change_due = min(self.change_due, now)
        self.node.send_control(Ask(self.spec.name, self.incarnation, name, leave=True))
        self._wake_at(self.ask_due)

    def close(self, reason: str) -> None:
        if self.closed:
            return
        self.closed, self.leaving = True, False
        self.outbox.abandon(reason)
        for hosted in (*self._engines(), *(hosted for _, hosted in self.lingering)):
            self._drop(hosted)
        if self.node.assemblies.get(self.spec.name) is self:
            self.node.closed_group(self)

    def fail(self, reason: str) -> None:
        self.state = f"broken: {reason}"
        if self.data is not None:
            self.data.state = self.state
        self.show()
        self.outbox.abandon(reason)


def _ring_spec(spec: GroupSpec) -> GroupSpec:
    return msgspec.structs.replace(spec, protocol=TOKEN)
