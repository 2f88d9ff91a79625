"""From a violation back to the steps that lead to it, and through them once more in earnest.

The search remembers which state came from which.  Between two of them lie the silent steps of one
site, the one that sends, and the answers of others; all of them are found again here, and then
carried out from the beginning by new engines (`Replay`) that know nothing of memorised moves and
forgotten PDUs.  Only what happens there is reported.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from roundelay.core.bundle import Bundle
from roundelay.core.engine import COMMITTED, Delivery, Pdu
from roundelay.core.errors import InvariantBroken
from roundelay.core.token.config import REJOIN
from roundelay.core.token.pdu import Ack, Version
from roundelay.core.token.phases import NORMAL
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import UNSYNCED, Stable
from roundelay.sim.explore.engines import Still, copied_disk, fire
from roundelay.sim.explore.network import Item, bits, canonical, describe
from roundelay.sim.explore.reductions import Finding, Group, Log, Quiet, State, Turn, contradiction
from roundelay.sim.explore.scope import Scope
from roundelay.sim.explore.site_states import (
    EVERYTHING,
    NOTHING,
    WHOLE,
    Fact,
    Input,
    Move,
    as_delivered,
    recorded,
    told,
)


class Step(NamedTuple):
    """One step of one site; an `answer` may be left out if nobody needs it."""

    site: int
    input: Input
    answer: bool = False


# -- back ------------------------------------------------------------------------------------


def steps_to(group: Group, states: list[State], finding: Finding) -> list[Step]:
    """All steps along `states`, from the first one, and on to the finding."""
    steps: list[Step] = []
    log: Log = []
    moves = [member.begin() for member in group.members]
    group.settled([move.to for move in moves], [move.sends for move in moves], 0, log)
    _write_down(group, log, steps)
    for before, after in pairwise(states):
        for turns, state in group.turns(before):
            if state == after:
                for turn in turns:
                    before = _take(group, before, turn, steps)
                break
        else:
            raise InvariantBroken("the explorer cannot find its way back")
    for site, fact in finding.ends:
        steps += _ending(group, states[-1], site, fact)
    return steps


def _write_down(group: Group, log: Log, steps: list[Step]) -> None:
    for site, what, here in log:
        if isinstance(what, Move):
            steps.append(Step(site, what.input, answer=True))
        else:
            assert here is not None
            steps += _way(group, here, what)


def _take(group: Group, before: State, turn: Turn, steps: list[Step]) -> State:
    """Add the steps of `turn` and everything that follows from it at once."""
    steps += _way(group, before, turn)
    log: Log = []
    after = group.after(before, turn, log)
    _write_down(group, log, steps)
    return after


def _way(group: Group, before: State, turn: Turn) -> list[Step]:
    """The steps of `turn`: silent ones, then the one that sends."""
    site = turn.site
    profiles = group.profiles(before.locals)
    last = group.is_last(before.cost)
    inbox = group.inboxes(group.sent(before), profiles, last)[site]
    ways = group.ways(site, before.locals[site], inbox, profiles, last, Quiet())
    for place in ways:
        local = group.local(site, place[0])
        here = inbox & group.usable(site, local.profile)
        if (turn.to, turn.cost) == place:
            answers = [move for needed, move in local.replies if needed & here == needed]
            sends = 0
            for move in answers:
                sends |= move.sends
            if sends & turn.sends == turn.sends:
                found = [Step(site, move.input, True) for move in answers]
                return [*_back(ways, site, place), *found]
        moves = [move for needed, move in local.effective if needed & here == needed]
        for move in moves + (local.inner or []):
            to = group.kept(site, move.to, last)
            if (to, place[1] + move.cost) == (turn.to, turn.cost) and not move.broken:
                at = group.local(site, to).profile
                if group.noticed(site, move.sends, at, profiles, last) == turn.sends:
                    return [*_back(ways, site, place), Step(site, move.input)]
    raise InvariantBroken("the explorer cannot find its way back")


def _back(
    ways: dict[tuple[int, int], tuple[tuple[int, int], Move] | None], site: int,
    place: tuple[int, int],
) -> list[Step]:  # fmt: skip
    steps: list[Step] = []
    before = ways[place]
    while before is not None:
        place, move = before
        steps.append(Step(site, move.input))
        before = ways[place]
    return steps[::-1]


def _ending(group: Group, state: State, site: int, fact: Fact | None) -> list[Step]:
    """The silent steps after which the violation shows at `site`."""
    profiles = group.profiles(state.locals)
    last = group.is_last(state.cost)
    inbox = group.inboxes(group.sent(state), profiles, last)[site]
    ways = group.ways(site, state.locals[site], inbox, profiles, last, Quiet())
    for place in ways:
        local = group.local(site, place[0])
        if fact is not None:
            if local.fact is fact and not place[1]:
                return _back(ways, site, place)
            continue
        here = inbox & group.usable(site, local.profile)
        moves = [move for needed, move in local.effective if needed & here == needed]
        for move in moves + (local.inner or []):
            if move.broken and group.can_pay(state.cost + place[1] + move.cost):
                return [*_back(ways, site, place), Step(site, move.input)]
    raise InvariantBroken("the explorer cannot find its way back")


# -- and forth ---------------------------------------------------------------------------------


class Bogus(Exception):
    """A trace that does not run."""


class Replay:
    """Carries out steps with new engines, in words; `wrong` says what was violated, and when."""

    def __init__(
        self, scope: Scope, items: list[Item], site_class: type[TokenSite],
        stable_class: type[Stable],
    ) -> None:  # fmt: skip
        self.scope = scope
        self.items = items
        self.site_class = site_class
        self.stable_class = stable_class
        self.group = tuple(range(scope.sites))
        self.config = scope.config()
        self.lives = [0] * scope.sites
        self.submitted = [0] * scope.sites
        self.engines = [site_class(me, self.group, self.config, Still(0)) for me in self.group]
        self.disks = [stable_class() for _ in self.group]
        self.synced = [stable_class() for _ in self.group]
        self.said: list[dict[int, Delivery]] = [{} for _ in self.group]
        self.facts: list[list[Fact]] = [[] for _ in self.group]
        self.stamps: dict[tuple[Version, int], Ack] = {}
        self.sent: dict[Item, tuple[Pdu, int]] = {}  # the real PDU, and the step that sent it
        self.used: set[int] = set()  # steps whose PDUs somebody received
        self.lines: list[str] = []
        self.wrong = ""
        for site in self.group:
            self._finish(site, "")
        self.lines.clear()

    def run(self, steps: list[Step]) -> Replay:
        for number, step in enumerate(steps):
            self._step(number, step.site, step.input)
            if self.wrong:
                break
        return self

    def _step(self, number: int, site: int, how: Input) -> None:
        if how.kind == "crash":
            self._crash(site, how)
        elif how.kind == "restart":
            self._restart(site, f"site {site} restarts", lost=False)
        else:
            words = self._act(site, how.kind, how.name, how.items)
            self._finish(site, words, number)

    def _act(self, site: int, kind: str, name: str, items: tuple[int, ...]) -> str:
        """Make the engine move; what happened, in words."""
        engine = self.engines[site]
        try:
            if kind == "receive":
                parts = []
                for number in items:
                    item = self.items[number]
                    if item not in self.sent:
                        raise Bogus(f"{describe(item.pdu)} was never sent")
                    pdu, step = self.sent[item]
                    self.used.add(step)
                    parts.append(f"{describe(pdu)} from {item.source}")
                    engine.receive(pdu, item.source, 0)
                return f"site {site} receives {' and '.join(parts)}"
            if kind == "timer":
                fire(engine, name)
                return f"timer {name} of site {site} fires"
            if kind == "reform":
                engine.reform(0)
                return f"site {site} detects a failure"
            data = b"%d.%d" % (site, self.submitted[site])
            self.submitted[site] += 1
            engine.submit(Bundle.of(data), 0)
            return f"site {site} submits '{data.decode()}'"
        except Bogus:
            raise
        except Exception as error:
            self.wrong = f"engine: {type(error).__name__}: {error}"
            return f"site {site}: {kind} {name}"

    def _crash(self, site: int, how: Input) -> None:
        words = f"site {site} crashes"
        if how.amid:
            kind, _, name = how.name.partition(" ")
            words = self._act(site, kind, name, how.items)
            for record in self.engines[site].take().persists[: how.amid]:
                self.disks[site].apply(record)
            self.disks[site] = copied_disk(self.disks[site], whole=how.whole)
            words += f", crashes after {how.amid} of the records it writes"
        elif how.name == NOTHING:
            self.lives[site] += 1
            self.disks[site] = self.stable_class()
            words += " and loses its disk"
        elif how.name in (EVERYTHING, WHOLE):
            self.disks[site] = copied_disk(self.disks[site], whole=how.name == WHOLE)
        else:
            self.disks[site] = copied_disk(self.synced[site])
            words += " and loses what it had not synced"
        if how.again:
            self._restart(site, words + ", and restarts", how.name == NOTHING)
        else:
            self.lines.append(words)

    def _restart(self, site: int, words: str, lost: bool) -> None:
        disk = self.disks[site]
        self._deliver(site, recorded(disk), again=True)
        config = self.scope.config(REJOIN) if lost else self.config
        try:
            self.engines[site] = self.site_class(
                site, self.group, config, Still(self.lives[site]), 0, None if lost else disk
            )
        except Exception as error:
            self.wrong = f"engine: {type(error).__name__}: {error}"
        self._finish(site, words)

    def _finish(self, site: int, words: str, number: int = -1) -> None:
        """Carry out the effects of a step."""
        engine = self.engines[site]
        try:
            engine.check_invariants()
        except InvariantBroken as error:
            self.wrong = self.wrong or f"engine: {type(error).__name__}: {error}"
        out = engine.take()
        for record in out.persists:
            self.disks[site].apply(record)
            if not isinstance(record, UNSYNCED) or self.config.sync_commits:
                self.synced[site] = copied_disk(self.disks[site])
        sends = []
        for destination, pdu, _ in out.sends:
            item = Item(site, destination, canonical(pdu))
            self.sent.setdefault(item, (pdu, number))
            sends.append(describe(pdu))
            if isinstance(pdu, Ack):
                rival = self.stamps.setdefault((pdu.tl, pdu.ts), pdu)
                if rival != pdu and not self.wrong:
                    self.wrong = f"CM-T3: {describe(rival)} and {describe(pdu)}"
        delivered = [one for one in out.deliveries if one.stage == COMMITTED]
        if sends:
            words += "; sends " + ", ".join(dict.fromkeys(sends))
        if delivered:
            words += "; delivers " + ", ".join(told(one) for one in delivered)
        self.lines.append(words)
        self._deliver(site, delivered)
        self._compare(site, engine)

    def _deliver(self, site: int, deliveries: list[Delivery], again: bool = False) -> None:
        said = self.said[site]
        for one in map(as_delivered, deliveries):
            before = said.get(one.seq)
            if before is not None and before != one:
                self.wrong = f"I1: site {site} delivers {told(one)} after {told(before)}"
            elif before is not None and not again and self.config.sync_commits:
                self.wrong = f"I4: site {site} delivers {told(one)} again"
            elif before is None and any(one.bundle == other.bundle for other in said.values()):
                self.wrong = f"I4: site {site} delivers {told(one)} a second time"
            said.setdefault(one.seq, one)

    def _compare(self, site: int, engine: TokenSite) -> None:
        """I1 and I3, over everything that ever happened."""
        listed = engine.phase == NORMAL and engine.authorized
        if listed and 2 * len(engine.members) <= len(self.group):
            self.wrong = self.wrong or f"I3: a minority, {engine.members}, forms list {engine.tl}"
        fact = Fact(
            tuple(self.said[site].values()),
            (engine.tl, engine.cnts) if listed else None,
            (engine.tl, engine.token_list.start_ts) if listed else None,
        )
        for other in self.group:
            if other != site:
                for theirs in self.facts[other]:
                    self.wrong = self.wrong or contradiction(site, fact, other, theirs)
        self.facts[site].append(fact)


def retold(group: Group, steps: list[Step]) -> tuple[str, list[str]]:
    """What is violated by `steps`, and the steps in words, without answers that nobody needs."""

    def replay(those: list[Step]) -> Replay:
        member = group.members[0]
        return Replay(group.scope, group.pool.items, member.site_class, member.stable_class).run(
            those
        )

    full = replay(steps)
    if not full.wrong:
        raise InvariantBroken("the explorer saw a violation that new engines do not repeat")
    short = [step for number, step in enumerate(steps) if not step.answer or number in full.used]
    brief = replay(short)
    best = brief if brief.wrong else full
    return best.wrong, best.lines


__all__ = ["Replay", "Step", "bits", "retold", "steps_to"]
