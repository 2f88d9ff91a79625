"""Epochs of a group: each roster has engines of its own; one ends where the next begins."""

from __future__ import annotations

import time
from abc import abstractmethod
from pathlib import Path
from typing import Final

import msgspec
from msgspec import structs

from roundelay.core.engine import MS, NEVER, SECOND, Delivery, Notice
from roundelay.core.position import Position, holds
from roundelay.core.token.config import COLD, REJOIN, most_resilience
from roundelay.core.token.pdu import NO_HISTORY, NO_LIST
from roundelay.file_names import file_name
from roundelay.node import earlier, engines, settings
from roundelay.node.ending import Tails
from roundelay.node.folders import put
from roundelay.node.groups import MEMBERS_MAX, TOKEN, GroupSpec
from roundelay.node.histories import later_history, number_of
from roundelay.node.hosted import Hosted
from roundelay.node.left_out import part_with_epoch
from roundelay.node.outbox import Outbox
from roundelay.node.seat import Seat
from roundelay.node.store import positive_ack_store, token_store
from roundelay.wire.info import Start

ASK_NS: Final = 300 * MS
GATHER_NS: Final = 150 * MS
"""Those who ask within this time are admitted together."""
LINGER_NS: Final = 5 * SECOND
"""How long the engine of a finished epoch goes on serving those who are behind."""
ENTERED_MAX: Final = 64


class Epochs(Seat):
    """Entering an epoch, leaving it, remembering it, telling others of it."""

    @abstractmethod
    def _ring_delivery(self, delivery: Delivery) -> bool: ...

    @abstractmethod
    def _ring_notice(self, notice: Notice) -> None: ...

    @abstractmethod
    def _data_notice(self, notice: Notice) -> None: ...

    @abstractmethod
    def _carry_out(self, now: int) -> None: ...

    def _recall(self, now: int) -> None:
        """Go on where this node was when it stopped."""
        folder = self._folder()
        if folder is None or self.preset:
            return
        path = folder / "roster.json"
        if not path.exists():
            return
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=Start)
        except msgspec.MsgspecError as error:
            # Without it we are one that lost its memory, which the others will notice.
            path.replace(path.with_suffix(".bad"))
            self.node.log("warning", "group.roster_unreadable", path=str(path), reason=str(error))
            return
        if self.node.name not in kept.roster:
            return
        if kept.roster == (self.node.name,) and not kept.decreed:
            self._recall_alone(kept, folder)
            return
        self._enter(kept, now, recalled=True)
        self._carry_out(now)

    def _recall_alone(self, kept: Start, folder: Path) -> None:
        """We were the only member, and everybody else may have begun anew since.

        If nobody has, it is for us to begin, behind what we have (`Assembly._look`)."""
        log = folder / _ring_file(f"{kept.incarnation}-{kept.epoch}")
        if self.spec.protocol != TOKEN or not log.exists():
            (folder / "roster.json").unlink()
            return
        earlier.keep(log, kept)
        history, position = earlier.last(log, kept)
        self.left_alone = (history, position)
        self.memory.enter(history, position)
        self._fill_memory(history, position)
        self.node.recorders.keepers.serve()

    def _retire(self, now: int) -> None:
        """Our epoch is over; its engines only serve those who have not got there yet."""
        self._reach()
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
        node = self.node
        agreed = start.settings or structs.replace(
            settings.founded(self.wishes), resilience=start.resilience
        )
        self._accept(agreed)
        before = self.history_id
        self._retire(now)
        self.outbox.send_again()
        self.settings, self.spec = agreed, settings.adopted(self.wishes, agreed)
        spec = self.spec
        if start.incarnation != self.incarnation:
            self.counted = {}  # epochs of another history
        if (start.history or start.incarnation) != before:
            self._begin_again()
        self.incarnation, self.epoch = start.incarnation, start.epoch
        self.roster, self.lives, self.base = start.roster, start.lives, start.base
        self.began_in = start.history
        self.decreed = start.decreed
        self.counted |= {(name, epoch): number for name, epoch, number in start.counted}
        self.asked = {name: out for name, out in self.asked.items() if (name in self.roster) is out}
        self.asked_lives = {}
        self.change_due = NEVER if not self.asked else now + GATHER_NS
        self.held_at, self.said_drained, self.drained = 0, 0, {}
        self.living, self.tails, self.end_due = (), Tails(start.roster), 0
        self.reopen = False
        self.behind, self.behind_due = None, NEVER
        self.dead_since = {}
        me, size = self.roster.index(node.name), len(self.roster)
        mark = f"{self.incarnation}-{self.epoch}"
        first = self.lives[me] == node.uuid and not recalled and mark not in self.entered
        self.entered = [*self.entered[-ENTERED_MAX:], mark]
        self._remember(start)
        self.left_alone = None
        folder = self._folder()
        token = spec.protocol == TOKEN
        resilience = settings.level(agreed, size)
        if not token:
            resilience = most_resilience(size)  # changes are rare: be as safe as can be
        store = stable = None
        if folder is not None:
            store = token_store(folder / _ring_file(mark), lambda text: node.log("warning", text))
            stable = store.stable
            if stable is not None and stable.max_joined == NO_LIST and not stable.wiped:
                stable = None
        lost = store is not None and store.damaged
        sure = first or recalled or stable is not None
        boot = COLD if sure and not lost else REJOIN
        config = engines.token_config(resilience, boot, self.outbox.bundle_bytes)
        engine = engines.token_engine(me, size, config, node.rng, now, stable)
        known = start.history or start.incarnation
        if token:
            if engine.past == NO_HISTORY:
                engine.past = (number_of(known), 0, 0)
            known = later_history(known, engine.past, self.base)
            engine.floor = max(0, node.recorders.floor(spec.name, known) - self.base)
        if boot == COLD or not token:  # else lists may have begun another since: `_ring_notice`
            node.recorders.entered(spec.name, known)
        outbox = self.outbox if token else Outbox(spec.name, 1 << 16, 1 << 16, 1 << 20)
        tracer = node.config.tracer
        self.ring = Hosted(
            node, spec if token else _ring_spec(spec), me, self.roster, engine, outbox,
            self.applications if token else {},
            store=store, incarnation=f"ring {mark}", base=self.base if token else 0,
            trace=tracer(f"{spec.name} {mark}", me, resilience=resilience) if token else None,
        )  # fmt: skip
        self.ring.on_gap = self.lost
        self.ring.lineage = self.history_id
        self.ring.intercept = self._ring_delivery
        self.ring.on_notice = self._ring_notice
        self._take_up(self.ring)
        if token:
            self.data = self.ring
            self.ring.waits = settings.waiting(size, agreed.min_members)
        else:
            self._enter_data(me, size, mark, first, now)
        self.recalled = recalled
        if self.data is not None:  # else it is for the next epoch to go on where we were
            self._keep_in_mind(self.data)
            history, position = self.reached
            if 0 <= position < self.base and holds(self.history_id, Position(history, position)):
                self.lost(position, self.base)
            self.reached = ("", -1)
        self.state = "forming"
        self.announce_until = now + 3 * LINGER_NS
        self._announce(now)
        node.say_soon(now)
        self.show()

    def _enter_data(self, me: int, size: int, mark: str, first: bool, now: int) -> None:
        """The engine beside the ring, if it can be had in this epoch."""
        node, spec = self.node, self.spec
        if not first or size < self._needed():
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
            trace=node.config.tracer(f"{spec.name} {mark}", me), lives=self.lives,
        )  # fmt: skip
        self.data.on_notice = self._data_notice
        self.data.on_gap = self.lost
        self.data.lineage = self.history_id
        self._take_up(self.data)

    def _take_up(self, hosted: Hosted) -> None:
        """Its PDUs are for it from now on, and not for one of the same epoch that only lingers."""
        for due, one in list(self.lingering):
            if one.id == hosted.id:
                self.lingering.remove((due, one))
                self._drop(one)
        self.node.register(hosted)

    def _needed(self) -> int:
        """Members that the engine beside the ring must have."""
        least = 1 if self.spec.protocol == "pa" else 2
        return max(least, self.settings.min_members if self.settings is not None else 1)

    def _remember(self, start: Start) -> None:
        """What a member must not forget of its group; the ring's new file syncs the folder."""
        folder = self._folder()
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        go_on = self._follow_up(folder, start)
        put(folder / "roster.json", msgspec.json.encode(start))
        mark = _ring_file(f"{start.incarnation}-{start.epoch}")
        earlier.let_go(folder, mark, go_on=go_on)

    def _follow_up(self, folder: Path, start: Start) -> bool:
        """Whether `start` goes on from what is on our disk; that is kept then."""
        if self.spec.protocol != TOKEN:
            return False
        try:
            old = msgspec.json.decode((folder / "roster.json").read_bytes(), type=Start)
        except (OSError, msgspec.MsgspecError):
            return False
        if old.incarnation != start.incarnation:
            # Begun anew: by ourselves, behind what we have, or by somebody else.
            mine = self.left_alone
            if mine is None or not holds(start.incarnation, Position(*mine)) or start.epoch:
                return False
        if (old.incarnation, old.epoch) != (start.incarnation, start.epoch):
            log = folder / _ring_file(f"{old.incarnation}-{old.epoch}")
            if old.base < start.base:
                earlier.keep(log, old)
            else:
                log.unlink(missing_ok=True)  # nothing was said in it
        return True

    def _reach(self) -> None:
        """Note how far the applications are."""
        if self.data is not None and self.data.expected >= 0:
            self.reached = (self.data.lineage, self.data.expected)

    def _forget_roster(self) -> None:
        self._reach()
        for hosted in self._engines():
            self._drop(hosted)
        self.ring = self.data = None
        self.incarnation, self.epoch, self.roster, self.lives, self.base = "", -1, (), (), 0
        self._unsettle()
        self.told_before = 0
        self.counted = {}
        self.asked.clear()
        self.asked_lives.clear()
        self.behind, self.behind_due = None, NEVER
        folder = self._folder()
        if folder is not None and (folder / "roster.json").exists():
            (folder / "roster.json").unlink()
        self.node.say_soon(time.monotonic_ns())

    def _jump(self, now: int) -> None:
        """We did not reach the end of our epoch: go on in the present one, behind a gap."""
        start = self.behind
        assert start is not None
        part_with_epoch(self, now)
        self._sort_out(start)
        self._enter(start, now)

    def _sort_out(self, start: Start) -> None:
        """We were away while the roster changed: of what we have under way, what may be in the
        order is lost track of; what certainly is not stays, and is sent again.
        """
        ring, underway = self.ring, list(self.outbox.underway)
        doubtful = len(underway)
        if self.spec.protocol == TOKEN and ring is not None and ring.token is not None:
            # The engine's own bundles are the first of those under way; others never left here.
            doubtful = len(ring.token.own)
            for name, epoch, number in start.counted:
                if name == self.node.name and epoch == self.epoch:
                    doubtful = min(doubtful, max(0, number - ring.token.own_base))
        for one in underway[:doubtful]:
            self.outbox.lose_track(one, "away while the roster changed")

    def _asked_level(self) -> int:
        """L that the group has where its size allows it, in the words of earlier versions."""
        return settings.level(self.settings or settings.founded(self.spec), 2 * MEMBERS_MAX)

    def _counted(self) -> tuple[tuple[str, int, int], ...]:
        last = list(self.counted.items())[-MEMBERS_MAX:]
        self.counted = dict(last)
        return tuple((name, epoch, number) for (name, epoch), number in last)

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
            self._asked_level(), self._counted(), self.decreed, self.began_in, self.settings,
        )  # fmt: skip
        self.node.send_control(start)
        self.announce_due = now + ASK_NS
        self._wake_at(self.announce_due)


def _ring_file(mark: str) -> str:
    """The file of a member's promises in an epoch."""
    return f"ring-{file_name(mark, safe='@:')}.log"


def _ring_spec(spec: GroupSpec) -> GroupSpec:
    return msgspec.structs.replace(spec, protocol=TOKEN)
