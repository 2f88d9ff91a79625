"""From a violation back to the steps that lead to it, and through them once more in earnest.

The search knows which turns were taken.  A turn is the silent steps of one site, the one that
sends, and the answers of others; all of them are found again here, and then carried out from the
beginning by new engines (`Replay`), where no two states are taken for one and no PDU is forgotten.
Only what happens there is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from roundelay.core.engine import COMMITTED, Effects
from roundelay.core.errors import InvariantBroken
from roundelay.core.token.site import TokenSite
from roundelay.sim.explore.pdus import describe
from roundelay.sim.explore.token.network import Item, WholePool, canonical
from roundelay.sim.explore.token.reductions import (
    Finding,
    Group,
    Log,
    Paths,
    Place,
    State,
    Turn,
    contradiction,
)
from roundelay.sim.explore.token.site_states import (
    FREE,
    MESSAGE,
    NOTHING,
    RECEIVE,
    REFORM,
    SUBMIT,
    SYNCED,
    TIMER,
    Fact,
    Input,
    Local,
    Member,
    Memory,
    Move,
    Registry,
    copied_disk,
    describe_delivery,
    message,
)


class Step(NamedTuple):
    """One step of one site; an `answer` may be left out if nobody needs it."""

    site: int
    input: Input
    answer: bool = False


# -- back ------------------------------------------------------------------------------------


def steps_to(
    group: Group, states: Sequence[State], turns: Iterable[Sequence[Turn]], finding: Finding
) -> list[Step]:
    """Return all steps of these turns, which begin in `states`, and those on to the finding."""
    steps: list[Step] = []
    log: Log = []
    group.begin(log)
    _add_logged(group, log, steps)
    for before, sequence in zip(states, turns, strict=False):
        for turn in sequence:
            steps += _steps_of(group, before, turn)
            log = []
            before = group.after(before, turn, log)
            _add_logged(group, log, steps)
    for site, fact in finding.ends:
        steps += _steps_to_end(group, states[-1], site, fact)
    return steps


def _add_logged(group: Group, log: Log, steps: list[Step]) -> None:
    for site, what, here in log:
        if isinstance(what, Move):
            steps.append(Step(site, what.input, answer=True))
        else:
            assert here is not None
            steps += _steps_of(group, here, what)


def _paths(group: Group, state: State, site: int) -> tuple[Paths, int]:
    """Return the silent steps of `site` in `state`, and what may be delivered to it."""
    context, inboxes = group.view(state)
    return group.paths(site, state.locals[site], inboxes[site], context), inboxes[site]


def _steps_of(group: Group, before: State, turn: Turn) -> list[Step]:
    """Return the steps of `turn`: silent ones, then the one that sends."""
    paths, inbox = _paths(group, before, turn.site)
    if turn[1:] not in paths.turns:
        raise InvariantBroken("the explorer cannot find its way back")
    place, move = paths.turns[turn[1:]]
    steps = _silent_steps(paths, turn.site, place)
    if move is not None:
        return [*steps, Step(turn.site, move.input)]
    local = group.local(turn.site, place[0])
    answers = local.replies_to(inbox & group.usable(turn.site, local.profile))
    return steps + [Step(turn.site, answer.input, True) for answer in answers]


def _silent_steps(paths: Paths, site: int, place: Place) -> list[Step]:
    steps: list[Step] = []
    before = paths.before[place]
    while before is not None:
        place, move = before
        steps.append(Step(site, move.input))
        before = paths.before[place]
    return steps[::-1]


def _steps_to_end(group: Group, state: State, site: int, fact: Fact | None) -> list[Step]:
    """Return the silent steps after which the violation shows at `site`."""
    paths, _ = _paths(group, state, site)
    if fact is None:
        for place, move in paths.broken:
            if group.can_pay(state.cost + place[1] + move.cost):
                return [*_silent_steps(paths, site, place), Step(site, move.input)]
    for number, cost in paths.before:
        if not cost and group.local(site, number).fact is fact:
            return _silent_steps(paths, site, (number, cost))
    raise InvariantBroken("the explorer cannot find its way back")


# -- and forth ---------------------------------------------------------------------------------

_LOST: Final = {NOTHING: " and loses its disk", SYNCED: " and loses what it had not synced"}


class ReplayedMember(Member):
    """A site whose states are all different, and which knows what its last step brought about."""

    out = Effects()

    def fingerprint(self, engine: TokenSite) -> tuple[object, ...]:
        return (object(),)

    def settled(self, old: Local, engine: TokenSite, how: Input, cost: int) -> list[Move]:
        self.out = engine.out
        return super().settled(old, engine, how, cost)

    def torn(self, memory: Memory, how: Input, cost: int) -> list[Move]:
        return []  # what might have happened

    def taken(self, local: Local, how: Input) -> Move:
        """Return the one move that `how` is."""
        memory = local.memory
        if how.torn_after:
            engine, _ = self.acted(local, how)
            assert memory.disk is not None
            disk = copied_disk(memory.disk)
            for record in engine.take().persists[: how.torn_after]:
                disk.apply(record)
            submitted = memory.submitted + (how.kind == SUBMIT)
            memory = structs.replace(memory, disk=disk, submitted=submitted)
        if how.left:
            return self.crashed(memory, how, FREE)[0]
        return self.tried(local, how, MESSAGE if how.kind == SUBMIT else FREE)[0]


class Replay:
    """Carries out steps with new engines, in words; `violation` says what was broken."""

    def __init__(self, group: Group) -> None:
        self.items = group.pool.items
        self.pool = WholePool(group.sites)
        registry = Registry()
        self.members = [
            ReplayedMember(site, group.scope, self.pool, registry) for site in group.sites
        ]
        self.locals: list[Local] = []
        self.facts: list[list[Fact]] = [[] for _ in self.members]
        self.sent = 0
        self.senders: dict[Item, tuple[int, int]] = {}  # number of the real PDU; step that sent it
        self.used: set[int] = set()  # steps whose PDUs somebody received
        self.lines: list[str] = []
        self.violation = ""
        for member in self.members:
            move = member.begin()
            self.locals.append(member.locals[move.to])
            self._finish(member.me, move, "", -1)
        self.lines.clear()

    def run(self, steps: Sequence[Step]) -> Replay:
        for number, (site, how, _) in enumerate(steps):
            how = structs.replace(how, items=tuple(map(self._arriving, how.items)))
            words = self._words(site, how)
            self.members[site].out = Effects()
            move = self.members[site].taken(self.locals[site], how)
            self.locals[site] = self.members[site].locals[move.to]
            self._finish(site, move, words, number)
            if self.violation:
                break
        return self

    def _arriving(self, number: int) -> int:
        """Return the number here of a PDU that the search has a number for."""
        item = self.items[number]
        if item not in self.senders:
            raise InvariantBroken(f"{describe(item.pdu)} was never sent")
        here, step = self.senders[item]
        self.used.add(step)
        return here

    def _words(self, site: int, how: Input) -> str:
        if how.kind == RECEIVE:
            arriving = [self.pool.items[number] for number in how.items]
            pdus = " and ".join(f"{describe(item.pdu)} from {item.source}" for item in arriving)
            words = f"site {site} receives {pdus}"
        elif how.kind == TIMER:
            words = f"timer {how.timer} of site {site} fires"
        elif how.kind == REFORM:
            words = f"site {site} detects a failure"
        elif how.kind == SUBMIT:
            data = message(site, self.locals[site].memory.submitted)
            words = f"site {site} submits '{data.decode()}'"
        else:
            words = f"site {site} crashes{_LOST.get(how.left, '')}"
        if how.torn_after:
            words += f", crashes after {how.torn_after} of the records it writes"
        return words + ", and restarts" * how.restarts

    def _finish(self, site: int, move: Move, words: str, number: int) -> None:
        """Write down a step, and look for what it breaks: I1 and I3 with all that ever happened."""
        out = self.members[site].out
        for destination, pdu, _ in out.sends:
            bit = self.pool.bit(site, destination, pdu)
            item = Item(site, destination, canonical(pdu))
            self.senders.setdefault(item, (bit.bit_length() - 1, number))
        if out.sends:
            words += "; sends " + ", ".join(dict.fromkeys(describe(pdu) for _, pdu, _ in out.sends))
        delivered = [each for each in out.deliveries if each.stage == COMMITTED]
        if delivered:
            words += "; delivers " + ", ".join(map(describe_delivery, delivered))
        self.lines.append(words)
        self.sent |= move.sends
        fact = self.locals[site].fact
        clashes = (
            contradiction(site, fact, other, theirs)
            for other, facts in enumerate(self.facts)
            for theirs in facts
            if other != site
        )
        stamped_twice = self.pool.stamped_twice(self.sent)
        self.violation = stamped_twice or move.broken or next(filter(None, clashes), "")
        self.facts[site].append(fact)


def replayed(group: Group, steps: list[Step]) -> tuple[str, list[str]]:
    """Return what is violated by `steps`, and these in words, without answers nobody needs."""
    full = Replay(group).run(steps)
    if not full.violation:
        raise InvariantBroken("the explorer saw a violation that new engines do not repeat")
    short = [step for number, step in enumerate(steps) if not step.answer or number in full.used]
    brief = Replay(group).run(short)
    best = brief if brief.violation else full
    return best.violation, best.lines
