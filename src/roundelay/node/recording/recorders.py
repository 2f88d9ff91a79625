"""The recorders of a group, as a node sees them: its own, and those it hears of.

Every recorder says with its node's INFO how far it is (`wire.control.Recorded`); at once when it
becomes slow, or when somebody waits for messages to be recorded (`Wanted`).  From that a node
knows whom to ask for a replay, when to hold new messages back for a recorder that is behind
(GR-12; a user that is behind never does that, GR-13), and when `durability="recorded"` is
fulfilled.  A recorder that is not heard of any more slows nobody, and counts for nothing.

Likewise a node says which positions of its groups it could still give to others from its memory
(`Kept`, `node.recording.memory`).  So a member that was away, or a late one whose application
begins at an earlier position, gets from any of the others what no recorder has.

A recorder fills its holes from the others, and from what members keep in memory; and, from the
others, what there was before its journal began: after a time away, or with a new disk, it ends up
with what they have.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from roundelay.core.engine import SECOND
from roundelay.core.errors import ConfigError, GroupFailed, RoundelayError
from roundelay.core.families import TOTAL
from roundelay.core.position import LIVE, Since, lineage
from roundelay.core.positions import Range, count_of, union
from roundelay.journal.files import JournalBroken
from roundelay.journal.format import Run
from roundelay.journal.journal import OS
from roundelay.node.group_faults import reason_of
from roundelay.node.groups import family_of
from roundelay.node.membership.group import GroupMembership
from roundelay.node.node_api import MEMBERS, Subscriber
from roundelay.node.recording.durability import Awaited, Durability, Syncing
from roundelay.node.recording.heard import HeardWords
from roundelay.node.recording.memory import Memory
from roundelay.node.recording.recorder import RecordConfig, Recorder, kept_of
from roundelay.node.recording.source_selection import Replays, Source
from roundelay.node.recording.transfer import Readable, ReplayServer
from roundelay.node.storage.folders import claim_journal
from roundelay.wire.control import HOLES_MAX, Kept, Recorded, Synced, Wanted

if TYPE_CHECKING:
    from roundelay.node.node import Node

HEARD_MAX: Final = 1024
FORGET_NS: Final = 30 * SECOND
"""A recorder that has said nothing for so long is none."""
MEMORIES_MAX: Final = 4096
FORGET_MEMORY_NS: Final = 10 * SECOND
"""A member that has said nothing for so long cannot be asked."""
SLOW_NS: Final = 3 * SECOND
"""A recorder that is slow says so at least every second; without that, the group goes on.  Whoever
has said something since is about to say more."""
WANTED_NS: Final = 3 * SECOND
REFETCH_S: Final = 1.0
FILL_BYTES: Final = 8 << 20
"""What is put into a journal at a time; a hole inside a segment makes it be written anew."""
CLOSE_S: Final = 60.0
SHOWN_MAX: Final = 64
"""Holes that `status` names; it counts all of them."""


class Recorders:
    """See the module."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.own: dict[str, Recorder] = {}
        """By group.  A service with a recorder of its own (its engine's) puts it here, too."""
        self.failed: dict[str, Exception] = {}
        """Groups that were to be recorded and cannot be."""
        self.heard = HeardWords[Recorded](node, "recorders", HEARD_MAX, FORGET_NS)
        self.memories = HeardWords[Kept](node, "memories", MEMORIES_MAX, FORGET_MEMORY_NS)
        self.server = ReplayServer(self._readable, node.make_seal)
        self.replays = Replays(self)
        self.durability = Durability(self)
        self.syncing = Syncing(node)
        self._wanted_until: dict[str, int] = {}
        self._announced: dict[str, tuple[bool, int, str]] = {}
        self._opening: asyncio.Task[None] | None = None
        self._refetches: list[asyncio.Task[None]] = []
        self.refetched = 0

    # -- life ------------------------------------------------------------------------------

    async def start(self, configs: Iterable[RecordConfig]) -> None:
        for config in configs:
            try:
                await self.add(config)
            except Exception as error:  # of that group: it is not recorded, and says so
                self.own.pop(config.group, None)
                self.failed[config.group] = error
                reason = reason_of(error)
                self.node.log("error", "recorder.failed", group=config.group, reason=reason)

    def check(self, group: str) -> None:
        """Raise what keeps the group from being recorded here, if anything does."""
        error = self.failed.get(group)
        if error is not None:
            raise error if isinstance(error, RoundelayError) else GroupFailed(group, str(error))

    async def add(self, config: RecordConfig) -> Recorder:
        """Record a group from now on."""
        node, group = self.node, config.group
        if group in self.own:
            raise ConfigError("record", group, "each group once")
        if node.config.dir is None:
            raise ConfigError("dir", None, "a directory: a recorder keeps a journal there")
        await self.serve()
        ordered = family_of(group).order == TOTAL
        recorder = Recorder(
            config,
            claim_journal(node.config.dir, group),
            ordered=ordered,
            changed=lambda: self.changed(recorder),
            say=lambda text: node.log("warning", "recorder", group=group, text=text),
        )
        self.own[group] = recorder
        node.join(recorder, group, Since(recorder.next) if ordered else LIVE)
        if ordered:
            self._refetches.append(asyncio.create_task(self._refetch(recorder)))
        return recorder

    async def adopt(self, recorder: Any) -> None:
        """A recorder that its group's engine feeds (`node.roles.journal`): others may replay
        it."""
        if recorder.group in self.own:
            raise ConfigError("record", recorder.group, "nothing: its file says who records it")
        await self.serve()
        self.own[recorder.group] = recorder
        self._refetches.append(asyncio.create_task(self._refetch(recorder)))
        self._tell(recorder)

    async def serve(self) -> None:
        """Be ready to be asked for what is recorded here, or kept in memory."""
        if not self.server.port:
            await self.server.start(self.node.medium.address[0])

    def serve_memory(self) -> None:
        """A group has a memory here: be ready to be asked for it."""
        if self._opening is None and not self.server.port:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._refetches.append(self._opening)

    async def _open(self) -> None:
        try:
            await self.serve()
            self._tell_memories()
        except OSError as error:
            self.node.log("warning", "memory.not_served", reason=str(error))

    async def stop(self) -> None:
        """Write everything, and close the journals."""
        await self.syncing.stop()
        await self.replays.stop()
        for task in self._refetches:
            task.cancel()
        await asyncio.gather(*self._refetches, return_exceptions=True)
        self._refetches.clear()
        await self.server.close()
        own, self.own = self.own, {}
        async with asyncio.timeout(CLOSE_S):
            for recorder in own.values():
                await asyncio.to_thread(recorder.close)

    def moved(self) -> None:
        """The node has another address: whoever asks for a replay connects there."""
        if self.server.port:
            self._refetches.append(asyncio.create_task(self._move()))

    async def _move(self) -> None:
        try:
            await self.server.move(self.node.medium.address[0])
        except OSError as error:
            self.node.log("warning", "replay.not_served", reason=str(error))
        self.say(time.monotonic_ns())

    def _readable(self, group: str, memory: str) -> Readable | None:
        """What somebody else may read of a group: our journal, or our memory of that history."""
        if memory:
            kept = self.memory(group)
            return None if kept is None or kept.history != memory else kept.reader()
        recorder = self.own.get(group)
        return None if recorder is None else recorder.journal.reader()

    # -- what recorders say ----------------------------------------------------------------

    def word(self, recorder: Recorder) -> Recorded:
        journal = recorder.journal
        end = journal.end
        holes = self.missing(recorder)[-HOLES_MAX:]
        return Recorded(
            recorder.group,
            self.node.name,
            self.server.port,
            begin=min(journal.begin, end),
            next=end,
            durable=min(journal.durable, end),
            holes=tuple(holes),
            whole=recorder.selection.everything,
            slow=recorder.slow,
            history=recorder.history,
            syncs=recorder.config.journal.sync != OS and not recorder.broken,
        )

    def say(self, now: int) -> None:
        """With every INFO."""
        for recorder in self.own.values():
            self._tell(recorder)
        self._tell_memories()

    def _tell(self, recorder: Recorder) -> None:
        word = self.word(recorder)
        self._announced[recorder.group] = (word.slow, word.durable, word.history)
        self.node.send_control(word)

    def _tell_memories(self) -> None:
        for group in list(self.node.group_hosts):
            self.tell_memory(group)

    def tell_memory(self, group: str) -> None:
        """What others can be given of a group from our memory."""
        memory, port = self.memory(group), self.server.port
        if memory is not None and port and memory.begin < memory.end:
            place = port, memory.begin, memory.end
            self.node.send_control(Kept(group, self.node.name, *place, memory.history))

    def changed(self, recorder: Recorder) -> None:
        """A recorder of ours got further, became slow, recovered, broke, or turned to another
        history: it counts for nobody before they hear of that."""
        now = time.monotonic_ns()
        group = recorder.group
        slow, durable, history = self._announced.get(group, (False, -1, ""))
        if (recorder.slow, recorder.history) != (slow, history) or (
            self._wanted_until.get(group, 0) > now and recorder.journal.durable != durable
        ):
            self._tell(recorder)
            self._throttle(group)
        self.durability.check(group)

    def hear(self, word: Recorded | Kept | Wanted | Synced, now: int) -> None:
        if isinstance(word, Wanted):
            if word.synced:
                self.syncing.wanted(word.group, now)
            else:
                self.tell_memory(word.group)
                recorder = self.own.get(word.group)
                if recorder is not None:
                    self._wanted_until[word.group] = now + WANTED_NS
                    self._tell(recorder)
        elif word.name == self.node.name:
            pass  # of an earlier life, or a namesake
        elif isinstance(word, Synced):
            self.syncing.hear(word, now)
        elif isinstance(word, Kept):
            self.memories.hear(word, now)
        elif self.heard.hear(word, now):
            self._throttle(word.group)
            self.durability.check(word.group)

    def awaited(self, application: Subscriber, group: str, count: int) -> Awaited:
        """Return who takes the receipt of a broadcast in place of the application, and passes it on
        when `count` recorders have the message on disk, or enough members do (MEMBERS)."""
        held = self.syncing if count == MEMBERS else self.durability
        return held.awaited(application, group, count)

    def want(self, group: str) -> None:
        """Somebody here waits for messages of a group to be recorded."""
        self.node.send_control(Wanted(group, self.node.name))

    # -- back-pressure ---------------------------------------------------------------------

    def slowed_by(self, group: str) -> list[str]:
        """Recorders that new messages wait for."""
        behind = [word.name for word in self.heard.of(group, SLOW_NS) if word.slow]
        mine = self.own.get(group)
        return sorted([*behind, self.node.name] if mine is not None and mine.slow else behind)

    def _throttle(self, group: str) -> None:
        node, on = self.node, bool(self.slowed_by(group))
        host = node.group_hosts.get(group)
        if host is not None and host.outbox.slowed != on:
            host.outbox.slowed = on
            node.wake(host.data)
        if on:
            node.autorm.slowed.add(group)
        elif group in node.autorm.slowed:
            node.autorm.slowed.discard(group)
            node.wake()

    def on_tick(self, now: int) -> None:
        """A few times a second."""
        self.heard.forget(now)
        self.memories.forget(now)
        for group in list(self.node.autorm.slowed):
            recorder = self.own.get(group)
            if recorder is not None and recorder.slow:
                self._tell(recorder)
            self._throttle(group)
        self.durability.on_tick(now)
        self.syncing.on_tick(now)

    # -- who has what ----------------------------------------------------------------------

    def memory(self, group: str) -> Memory | None:
        """What our own member keeps of a group with a total order."""
        host = self.node.group_hosts.get(group)
        memory = host.memory if host is not None else None
        return memory if memory is not None and memory.history else None

    def sources(
        self, group: str, *, own: bool = False, lively: bool = False, memory: bool = False
    ) -> list[Source]:
        """Recorders of a group that can be asked, ours first, then those that leave nothing out.

        `memory`: and other members, for what they keep in memory.  `lively`: only those that are
        heard of at present.  Others may merely be busy."""
        sources = []
        mine = self.own.get(group)
        history = self._history(group)
        if mine is not None and history in (None, mine.history):
            sources.append(Source(self.word(mine), here=mine))
        if own:
            return sources
        node = self.node
        lately = self.heard.of(group, SLOW_NS)
        others = {}
        for word in self.heard.of(group):
            known = node.directory.by_name.get(word.name)
            lives = word in lately or node.alive(word.name)
            same = history in (None, word.history)
            if known is not None and same and (lives or not lively):
                rank = (not lives, not word.whole, word.begin, word.name)
                others[rank] = Source(word, address=(known.address[0], word.port))
        sources += [others[rank] for rank in sorted(others)]
        return sources + self._memory_sources(group) if memory else sources

    def _memory_sources(self, group: str) -> list[Source]:
        """Other members that have something of the history that ours is in."""
        memory = self.memory(group)
        sources = []
        for word in self.memories.of(group, FORGET_MEMORY_NS):
            known = self.node.directory.by_name.get(word.name)
            if memory is not None and known is not None and word.history == memory.history:
                place = word.port, word.begin, word.next
                stretch = Recorded(group, word.name, *place, 0, history=word.history)
                address = (known.address[0], word.port)
                sources.append(Source(stretch, address=address, memory=word.history))
        return sorted(sources, key=lambda source: (source.word.begin, source.word.name))

    def turning(self, group: str) -> bool:
        """Whether a recorder is there, or a member's memory, of what the history that we are in
        continues."""
        before = {parent for parent, _ in lineage(self._history(group) or "")[1:]}
        mine = self.own.get(group)
        histories = [word.history for word in self.heard.of(group, SLOW_NS)]
        histories += [word.history for word in self.memories.of(group, SLOW_NS)]
        if mine is not None and not mine.broken:
            histories.append(mine.history)
        return any(known.partition("@")[0] in before for known in histories)

    def _history(self, group: str) -> str | None:
        """Which history of the group a recorder must have to be of use; None: there is only one,
        or we do not take part.  Nobody's is what fits as long as we are not in."""
        place: object = self.node.group_hosts.get(group)
        if not isinstance(place, GroupMembership) or place.spec.family.order != TOTAL:
            return None
        if place.preset and not place.incarnation:
            return None
        return place.history_id or "?"

    def entering(self, group: str) -> bool:
        """Whether the member here is about to be in: until then no recorder's history fits."""
        return self._history(group) == "?"

    def position(self, group: str) -> int:
        """The position that the member here delivers next; -1: none yet, or no order."""
        host = self.node.group_hosts.get(group)
        return -1 if host is None or host.data is None else int(host.data.position)

    def known_end(self, group: str, history: str) -> int:
        """The position up to which anybody is known to have that history of a group: the member
        here, recorders, or members by their memory."""
        ends = [word.next for word in self.heard.of(group) if word.history == history]
        ends += [word.next for word in self.memories.of(group) if word.history == history]
        mine = self.own.get(group)
        if mine is not None and mine.history == history:
            ends.append(mine.next)
        return max([self.position(group), *ends])

    def lineage(self, group: str) -> str:
        """The history that the member here is in; empty: none yet."""
        host = self.node.group_hosts.get(group)
        return "" if host is None else host.lineage

    def known(self, group: str) -> bool:
        return bool(self.sources(group))

    def continuing(self, group: str) -> tuple[str, int] | None:
        """History and position at which a group that begins anew here can go on."""
        recorder = self.own.get(group)
        if recorder is None or not recorder.ordered or not recorder.next or not recorder.history:
            return None
        return recorder.history.partition("@")[0], recorder.next

    def reached_by(self, group: str) -> dict[str, int]:
        """How far the recorders and memories of a group are, by node, whatever history it is."""
        ends = {word.name: word.next for word in self.heard.of(group)}
        for word in self.memories.of(group):
            ends[word.name] = max(word.next, ends.get(word.name, 0))
        mine = self.continuing(group)
        if mine is not None:
            ends[self.node.name] = mine[1]
        return ends

    def floor(self, group: str, history: str) -> int:
        """The position up to which we have recorded that history of a group, or of what it
        continues: nothing new is given a place below."""
        recorder = self.own.get(group)
        if recorder is None or not recorder.ordered or recorder.broken:
            return 0
        known = recorder.history.partition("@")[0]
        for ancestor, end in lineage(history):
            if ancestor == known or not known:
                return min(recorder.next, end)
        return 0

    def entered(self, group: str, history: str) -> None:
        """What is delivered from now on belongs to this history of the group."""
        recorder = self.own.get(group)
        if recorder is not None:
            recorder.enter(history)

    # -- what is missing here --------------------------------------------------------------

    def missing(self, recorder: Recorder) -> list[Range]:
        """Positions that a recorder does not have, half-open: holes of its journal, and what is
        between that and where its group is, before anything more comes."""
        holes = recorder.journal.missing
        host = self.node.group_hosts.get(recorder.group)
        at = int(getattr(host.data if host is not None else None, "expected", -1))
        if self._same_past(recorder) and 0 < recorder.next < at:
            holes = union([*holes, (recorder.next, at)])
        return holes

    def _same_past(self, recorder: Recorder) -> bool:
        """Whether what it has recorded is of the history that the member here is in, so that
        positions of both, and of what other members keep of it, are the same."""
        works = recorder.ordered and not recorder.broken
        return works and recorder.history == self.lineage(recorder.group)

    async def _refetch(self, recorder: Recorder) -> None:
        """Holes are filled from other recorders, or members, as soon as one of them can."""
        while True:
            await asyncio.sleep(REFETCH_S)
            if recorder.broken:
                continue
            try:
                if isinstance(recorder, Recorder):
                    await self._draw_level(recorder)
                if recorder.journal.segments:
                    for lo, hi in self._lacking(recorder):
                        await self._fetch(recorder, lo, hi)
            except RoundelayError as error:
                self.node.log("warning", "recorder.refetch", group=recorder.group, text=str(error))
                if isinstance(error, JournalBroken):
                    return

    async def _draw_level(self, recorder: Recorder) -> None:
        """Fetch what is between our journal and where the member is, before anybody speaks."""
        group, at = recorder.group, recorder.next
        until, history = self.position(group), self.lineage(group)
        memory = at > 0 and self._same_past(recorder)
        sources = self.sources(group, memory=memory)
        if not any(source.here is None and source.has(at, until) for source in sources):
            return
        stream = self.replays.stretch(group, at, until, memory=memory)
        async with aclosing(stream) as fetched:
            async for chunk in fetched:
                for run in chunk:
                    if recorder.next != at or self.lineage(group) != history:
                        return  # somebody spoke: the rest is a hole, and is filled as such
                    kept = kept_of(run, recorder.selection)
                    if kept is None:
                        continue  # a hole, or what a new journal begins behind
                    recorder.take(kept)
                    at = run.end
                    self.refetched += run.records
                while recorder.backlog > recorder.config.backlog_bytes // 2:
                    await asyncio.sleep(0.02)

    def _lacking(self, recorder: Recorder) -> list[Range]:
        """Return the positions that our journal lacks and somebody else has."""
        journal = recorder.journal
        config = recorder.config.journal
        holes = journal.missing
        lacking = list(holes)
        if journal.begin and not (config.keep_bytes or config.keep_s):
            lacking.insert(0, (0, journal.begin))
        memory = self._same_past(recorder)
        return union(
            available
            for source in self.sources(recorder.group, memory=memory)
            if source.here is None
            for lo, hi in (holes if source.memory else lacking)
            for available in source.has(lo, hi)
        )

    async def _fetch(self, recorder: Recorder, lo: int, hi: int) -> None:
        waiting: list[Run] = []
        size = 0
        journal = recorder.journal
        memory = self._same_past(recorder)
        stream = self.replays.stretch(recorder.group, lo, hi, memory=memory)
        async with aclosing(stream) as fetched:
            async for chunk in fetched:
                for run in chunk:
                    kept = kept_of(run, recorder.selection)
                    if kept is not None:
                        waiting.append(kept)
                        size += len(run.bundle.data) + 64
                if recorder.journal is not journal:
                    return  # another history has begun: this is not of it
                if size >= FILL_BYTES:
                    self.refetched += count_of(await asyncio.to_thread(journal.fill, waiting))
                    waiting, size = [], 0
        if waiting and recorder.journal is journal:
            self.refetched += count_of(await asyncio.to_thread(journal.fill, waiting))
        self.changed(recorder)

    def status(self) -> dict[str, object]:
        return {
            "own": [self._status(recorder) for recorder in self.own.values()],
            "failed": {group: reason_of(error) for group, error in self.failed.items()},
            "replay": self.server.status() if self.server.port else None,
            "refetched": self.refetched,
            "heard": [_shown(word) for word, _ in self.heard.values()],
            "waiting": self.durability.waiting,
            "members_syncing": self.syncing.status(),
            "catching_up": self.replays.status(),
        }

    def _status(self, recorder: Recorder) -> dict[str, object]:
        status = recorder.status()
        if isinstance(recorder, Recorder):
            missing = self.missing(recorder)
            status["missing"] = missing[:SHOWN_MAX]
            status["missing_records"] = count_of(missing)
        return status

    def listed(self, group: str) -> list[dict[str, object]]:
        """As JSON: the answer to `recorders`."""
        return [
            _shown(source.word) | {"here": source.here is not None}
            for source in self.sources(group)
        ]


def _shown(word: Recorded) -> dict[str, object]:
    return {
        "group": word.group,
        "node": word.name,
        "begin": word.begin,
        "next": word.next,
        "durable": word.durable,
        "missing": [list(hole) for hole in word.holes],
        "whole": word.whole,
        "slow": word.slow,
        "port": word.port,
    }
