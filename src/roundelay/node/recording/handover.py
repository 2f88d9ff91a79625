"""From what was recorded to what is live, with no gap and no duplicate (GR-17).

An application that begins at an earlier position, lost its connection, did not read for too long,
or sits on a member that came back behind a gap (CM-R18) gets what it lacks from recorders, and from
what members keep in memory; what nobody has it is told of (`Missed`), and it is given nothing
before its position is known to be one of the group's history (`node.recording.asked`).  In the
group's place for it, meanwhile, sits a `CatchUp`.  It keeps the last of what is delivered live, up
to `TAIL_BYTES`, and replays until it has reached the first message it keeps; then it hands over
the rest and goes away.  Live messages that it cannot keep are recorded by then, and replayed.  So
memory is bounded however long the replay takes, the group waits for nobody, and the positions say
that nothing is left out or repeated.

It never gives an application more than it reads: a replay waits where live delivery would not.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from roundelay.core.errors import RoundelayError
from roundelay.core.families import TOTAL
from roundelay.core.grsb.pdu import END, MIDDLE
from roundelay.core.position import Position, Since, holds
from roundelay.journal.format import GAP, HEADS_ONLY, Run
from roundelay.journal.grsb import mtype_of
from roundelay.node.driver.outbox import cost
from roundelay.node.groups import family_of
from roundelay.node.node_api import WHOLE, Batch, Missed, Receipt, Refusal, Subscriber, View
from roundelay.node.recording.asked import FITS, NONE, WAIT, Asked
from roundelay.node.recording.units import RecordedUnits, unit_batch
from roundelay.wire.frontend_replay import ReplayRequest

if TYPE_CHECKING:
    from roundelay.node.node import Node

TAIL_BYTES: Final = 2 << 20
YOUNG_BYTES: Final = 16 << 20
"""The same, as long as it is not known whether somebody records the group."""
BATCH_COST: Final = 128
LOOK_S: Final = 0.02
FULL_S: Final = 0.005
TURN_S: Final = 5.0
"""How long a recorder may take to go on with a new history, at most."""
NOBODY_S: Final = 1.0
"""How long to listen for a recorder, once the member is at work."""
BACK: Final = 1024
WIDER: Final = 16
"""Positions to look back for the beginning of a unit, and how many times more if it is not there:
usually its parts are close together."""
ASK_S: Final = 0.5
"""How often others are asked how far they are, while the application's position is in question."""
STUCK_S: Final = 15.0
"""How long recorders may have nothing new of what is needed next."""


def batch_of(group: str, run: Run, ordered: bool = True, unit: str = WHOLE) -> Batch:
    """A recorded run as it was delivered."""
    bundle = run.bundle.marked(run.conference, run.kind)
    return Batch(group, run.position if ordered else -1, run.sender, run.time, bundle, unit)


def full(application: Subscriber, group: str) -> bool:
    """Whether an application has so much to read that it should get no more of the past now."""
    return application.full or group in application.held


def application_of(subscriber: Subscriber) -> Subscriber:
    """Whose place it has: that of a CatchUp is another's."""
    return subscriber.application if isinstance(subscriber, CatchUp) else subscriber


class CatchUp(Subscriber):
    """Sits in the place of an application until it has caught up."""

    def __init__(
        self,
        node: Node,
        slots: dict[int, Subscriber],
        application: Subscriber,
        group: str,
        since: Since,
        asked: bool,
    ) -> None:
        """`asked`: the application says by itself where it is."""
        family, recorders = family_of(group), node.recorders
        self.node = node
        self.application = application
        self.group = group
        self.since = since
        self._ordered = family.order == TOTAL
        position = Position(since.history, since.seq)
        by_application = asked and self._ordered and not since.time
        self.asked = Asked(position, by_application, recorders.lineage(group))
        self.at = since.seq
        """The application has everything before this position."""
        self.history = ""
        """The history of `at`, when it is known to be one of it."""
        self.given = False
        """It was given something here."""
        self.refused_place = False
        """It asked to begin where there is nothing: it is given nothing."""
        self.live = False
        self.lacked = 0
        self._slots = slots
        self._since_time = since.time  # 0 as soon as something as late as that was found
        self._before: tuple[int, int] | None = None
        """Nobody has these positions; whether they are that late, the next one tells."""
        # Where there is no order: our own count, as the recorder's.
        self._counted = 0 if self._ordered else recorders.own[group].next
        self._tail: deque[tuple[int, Batch]] = deque()
        self._tail_bytes = 0
        place: Any = node.group_hosts.get(group)
        self._has_units = family.has_roles
        self._units = RecordedUnits(place.config.unit_bytes if self._has_units else 0)
        self._began = time.monotonic()
        self._asked_others = self._began
        self.task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """The application is gone."""
        self.task.cancel()
        self._tail.clear()

    # -- as the group calls it -------------------------------------------------------------

    def deliver(self, batch: Batch) -> None:
        if self.refused_place:
            return
        count = batch.positions
        position = batch.seq
        if not self._ordered:
            position = self._counted
            self._counted += count
        if position + count <= self.at and self.history:
            return
        if self.live:
            if self._slots.get(id(self.application)) is self:
                self._slots[id(self.application)] = self.application
            self._give(position, batch)
            return
        self._tail.append((position, batch))
        self._tail_bytes += cost(batch.bundle) + BATCH_COST
        if self._tail_bytes > TAIL_BYTES and len(self._tail) > 1:
            if not self.node.recorders.known(self.group) and not self._member_has(position):
                if (not self._young() or self._tail_bytes > YOUNG_BYTES) and self._fits():
                    self._go_live_anyway()  # nobody keeps it if we do not
                return
            while self._tail_bytes > TAIL_BYTES and len(self._tail) > 1:
                self._tail_bytes -= cost(self._tail.popleft()[1].bundle) + BATCH_COST

    def receipt(self, receipt: Receipt) -> None:
        self.application.receipt(receipt)

    def refused(self, refusal: Refusal) -> None:
        self.application.refused(refusal)

    def viewed(self, view: View) -> None:
        self.application.viewed(view)

    def writable(self, group: str) -> None:
        self.application.writable(group)

    def missed(self, missed: Missed) -> None:
        self.application.missed(missed)

    # -- catching up -----------------------------------------------------------------------

    async def _run(self) -> None:
        progress = time.monotonic()
        while not self._fits() or not self._caught_up():
            if self.refused_place:
                return
            if not self.history and self._ordered:
                await asyncio.sleep(LOOK_S)
                progress = time.monotonic()
                continue
            while full(self.application, self.group):
                await asyncio.sleep(FULL_S)
                progress = time.monotonic()  # it is not the recorders who are late
            if self._remembered():
                progress = time.monotonic()
                await asyncio.sleep(0)
                continue
            if self._recorder_turns():
                hopeless = False
            elif self.node.recorders.sources(self.group, memory=self._by_position):
                before = self.at
                try:
                    await self._replay()
                except RoundelayError as error:
                    self.node.log("info", "group.catch_up", group=self.group, text=str(error))
                if self.at > before:
                    progress = time.monotonic()
                    continue
                hopeless = bool(self._tail) and time.monotonic() - progress > STUCK_S
            else:
                hopeless = self._nobody()
            if hopeless:
                self._go_live_anyway()
                return
            await asyncio.sleep(LOOK_S)

    @property
    def _by_position(self) -> bool:
        """What it needs is known by its position, so that members' memories can serve it; where
        there are units, recorders alone have their parts."""
        return self._ordered and not self._has_units

    def _fits(self) -> bool:
        """Whether the application's position is one of the history that its group is in."""
        if not self._ordered or self.refused_place:
            return not self.refused_place
        recorders = self.node.recorders
        place = self.node.group_hosts.get(self.group)
        history = recorders.lineage(self.group)
        if history and history == self.history:
            return True
        if self.history:
            self._another_history(history)
            return bool(self.history)
        position = self._position()
        if not self.asked.by_application:
            verdict = FITS if history and position >= 0 else WAIT
        else:
            # A group that waits for members may yet meet another history.
            works = place is not None and place.works() and not getattr(place.data, "waits", "")
            alone = place is None or len(place.roster) < 2
            from_disk, now = place is None or place.recalled, time.monotonic()
            end = recorders.known_end(self.group, history)
            verdict = self.asked.look(
                history, position, now, known_end=end, works=works, alone=alone, from_disk=from_disk
            )
            if verdict == WAIT and now > self._asked_others + ASK_S:
                self._asked_others = now
                recorders.want(self.group)  # how far the others are, they tell
            position = end
        if verdict == FITS:
            self.history = history
            recorders.want(self.group)  # whoever has something says so
            self._began = time.monotonic()
        elif verdict == NONE:
            asked = self.asked.position
            self.refused_place = True
            self._tail.clear()
            was = asked.history or history
            self.node.log(
                "warning",
                "group.no_such_position",
                group=self.group,
                asked=str(asked),
                present=f"{history}:{position}",
            )
            self.application.missed(Missed(self.group, asked.seq, position, history, was, True))
        return verdict == FITS

    @property
    def looks_anew(self) -> bool:
        """Whether another history is as good as this one: the application was given nothing, and
        what it asked for may be there."""
        return not self.given and (self.asked.by_application or self.since.time > 0)

    def _another_history(self, history: str) -> None:
        """The group is in another history than it was: what we keep is of the old one."""
        asked = Position(self.history, self.at)
        if not self.looks_anew:
            if not history:
                return
            if not holds(history, asked):
                self.at = max(0, self._position())  # the application sees that by itself
            self.history = history
        else:
            self.history = ""
            self.at, self._since_time = self.since.seq, self.since.time
        self._tail = deque(kept for kept in self._tail if kept[1].history == history)
        self._tail_bytes = sum(cost(batch.bundle) + BATCH_COST for _, batch in self._tail)

    def _nobody(self) -> bool:
        """Nobody records the group, as far as can be known by now."""
        return not self._young() and (bool(self._tail) or self._position() >= 0)

    def _recorder_turns(self) -> bool:
        """A recorder, or a member, has what is before the history that has just begun, and does not
        say yet that it goes on with this one: then it serves us."""
        if not self._ordered or time.monotonic() > self._began + TURN_S:
            return False
        return self.node.recorders.turning(self.group)

    def _young(self) -> bool:
        """A recorder, or another member that has it, may still be on its way to be heard of."""
        place = self.node.group_hosts.get(self.group)
        others = place is not None and len(place.roster) > 1
        return time.monotonic() < self.node.started + NOBODY_S or time.monotonic() < self._began + (
            NOBODY_S if others else NOBODY_S / 4
        )

    def _member_has(self, position: int) -> bool:
        """Whether the member itself still keeps what comes at a position."""
        memory = self.node.recorders.memory(self.group)
        if memory is None or not self._by_position:
            return False
        return memory.begin <= position < memory.end

    def _memory(self) -> Iterator[Batch]:
        """What the member itself still keeps, from where the application is."""
        memory = self.node.recorders.memory(self.group)
        return iter(()) if memory is None else memory.batches(self.at)

    def _remembered(self) -> bool:
        """Give what the member itself still keeps, as much as the application takes."""
        before = self.at
        if self._member_has(self.at):
            for batch in self._memory():
                if batch.seq > self.at or full(self.application, self.group):
                    break
                if not self._too_early(batch.seq, batch.seq + batch.positions, batch.time):
                    self._give(batch.seq, batch)
        return self.at > before

    def _too_early(self, lo: int, hi: int, time: int) -> bool:
        """Whether messages are from before the time at which the application wants to begin."""
        if time < self._since_time:
            self.at, self._before = max(self.at, hi), None
            return True
        self._late_enough(lo)
        return False

    def _late_enough(self, position: int) -> None:
        """The application wants what is here; and perhaps what nobody has directly before it."""
        before, self._before, self._since_time = self._before, None, 0
        if before is not None and before[1] == position:
            self._miss(*before)

    def _position(self) -> int:
        """The position that is delivered next; -1: the member is not at work yet."""
        if not self._ordered:
            return self._counted
        return self.node.recorders.position(self.group)

    async def _replay(self) -> None:
        """What is recorded, up to what we keep of the live messages, or to where the group is."""
        replays = self.node.recorders.replays
        memory = self._by_position
        until = self._tail[0][0] if self._tail else replays.end(self.group, memory=memory)
        if until <= self.at:
            self._late_enough(self.at)
            return
        request = ReplayRequest(since=self.at, until=until, since_time=self._since_time)
        reached: list[int] = []
        history = self.history
        async with aclosing(replays.replay(self.group, request, reached, memory)) as chunks:
            async for chunk in chunks:
                if self.history != history:
                    return
                for run in chunk:
                    while full(self.application, self.group):
                        await asyncio.sleep(FULL_S)
                    if self._units.lacks(run):
                        await self._look_back(run)
                    self._replayed(run)
                if self._tail and self._tail[0][0] <= self.at:
                    return
        self.at = max([self.at, *reached])
        self._late_enough(self.at)

    def _replayed(self, run: Run) -> None:
        if run.end <= self.at:
            return
        if run.flags & GAP and self._since_time:
            before = self._before
            goes_on = before is not None and before[1] == run.position
            self._before = (before[0] if before and goes_on else run.position, run.end)
        elif self._too_early(run.position, run.end, run.time):
            return
        elif run.flags & (GAP | HEADS_ONLY):
            self._miss(run.position, run.end)
        else:
            self._put_together(run)
        if run.flags & (GAP | HEADS_ONLY):
            self._units.void(run.sender)
        self.at = run.end

    def _put_together(self, run: Run) -> None:
        """GR-19: a unit is given whole, where its last part is."""
        parts = self._units.take(run)
        if len(parts) == 1:
            self._give(run.position, batch_of(self.group, run, self._ordered))
        elif parts:
            self._give(run.position, unit_batch(self.group, parts))
        elif mtype_of(run) == END:
            self._miss(run.position, run.end)  # its beginning is nowhere to be had

    async def _look_back(self, run: Run) -> None:
        """Fetch the beginning of the unit that `run` goes on with: it is before our time."""
        replays = self.node.recorders.replays
        width, hi = BACK, run.position
        while True:
            lo = max(0, hi - width)
            before = RecordedUnits(self._units.limit)
            last: Run | None = None
            request = ReplayRequest(
                since=lo,
                until=hi,
                senders=frozenset({run.sender}),
                conferences=frozenset({run.conference}),
            )
            async with aclosing(replays.replay(self.group, request)) as chunks:
                async for chunk in chunks:
                    for earlier in chunk:
                        if not earlier.flags & (GAP | HEADS_ONLY):
                            before.take(earlier)
                            last = earlier
            if run.sender in before.open:
                self._units.open[run.sender] = before.open[run.sender]
                return
            if not lo or (last is not None and mtype_of(last) != MIDDLE):
                return
            width *= WIDER

    def _give(self, position: int, batch: Batch) -> None:
        """Hand on what the application does not have yet."""
        count = batch.positions
        self._late_enough(position)
        self._units.open.pop(batch.sender, None)
        if position < self.at:
            bundle = batch.bundle.part(self.at - position, count)
            batch = structs.replace(
                batch, bundle=bundle, seq=self.at if batch.seq >= 0 else batch.seq
            )
        self.at = position + count
        self.given = True
        if batch.seq >= 0 and not batch.history:
            batch = structs.replace(batch, history=self.history)
        self.application.deliver(batch)

    def _miss(self, lo: int, hi: int) -> None:
        self.lacked += hi - lo
        self.node.log("warning", "group.gap", group=self.group, lo=lo, hi=hi)
        if self._ordered:
            self.given = True
            self.application.missed(Missed(self.group, lo, hi, self.history))

    # -- handing over ----------------------------------------------------------------------

    def _caught_up(self) -> bool:
        """Hand over what follows without a gap; True: it is done."""
        tail = self._tail
        while tail and tail[0][0] <= self.at:
            if full(self.application, self.group):
                return False
            position, batch = tail.popleft()
            self._tail_bytes -= cost(batch.bundle) + BATCH_COST
            if position + batch.positions > self.at:
                self._give(position, batch)
        if tail or (self._since_time and self.node.recorders.known(self.group)):
            return False
        at = self._position()
        there = at == self.at if self._by_position else 0 <= at <= self.at
        if there and self._member_has_units():
            # What comes next is live.  We stay until it comes, and see that it is new.
            self.live = True
            return True
        return False

    def _member_has_units(self) -> bool:
        """Whether units that have begun here will come whole from the member: it may have begun
        in the middle of one."""
        if not self._units.open:
            return True
        place: Any = self.node.group_hosts[self.group]
        joined = self.application.conferences
        begun = {(sender, parts[-1].conference) for sender, parts in self._units.open.items()}
        mine = {unit for unit in begun if not joined or unit[1] in joined}
        return bool(mine <= place.open_units())

    def _go_live_anyway(self) -> None:
        """Nobody has what is missing: go on behind it, and say so."""
        if self._ordered:
            first = self._tail[0][0] if self._tail else None
            for batch in self._memory():
                if first is not None and batch.seq >= first:
                    break
                end = batch.seq + batch.positions
                if end > self.at and not self._too_early(batch.seq, end, batch.time):
                    self._jump(batch.seq)
                    self._give(batch.seq, batch)
        for position, batch in self._tail:
            if position + batch.positions > self.at:
                self._jump(position)
                self._give(position, batch)
        self._jump(self._position())
        self.live = True
        self._tail.clear()
        if self.task is not asyncio.current_task():
            self.task.cancel()

    def _jump(self, position: int) -> None:
        if position > self.at:
            self._late_enough(self.at)
            self._miss(self.at, position)
            self.at = position

    def status(self) -> dict[str, object]:
        return {
            "group": self.group,
            "position": self.at,
            "live_from": self._position(),
            "kept_bytes": self._tail_bytes,
            "missed": self.lacked,
        }
