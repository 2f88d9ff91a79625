"""Turns: the steps of a whole token group, as few of them as say everything.

Sites meet only through the network, and the network forgets nothing.  So steps of different sites
commute unless one sends what the other receives, and five reductions follow.  Each keeps every
violation: what a site has delivered stays delivered, so a violation is still there at the end of
any other order of the same steps.

1. *Silent steps come late.*  A step that sends nothing anybody can use is carried out immediately
   before the site's next step that does.  A **turn** is such a silent way, possibly empty, and the
   sending step at its end.  Silent steps with nothing after them are looked at once, for what
   they deliver (`Silent.facts`), and lead to no state of the group.
2. *The less, the better.*  Of two turns that send the same, one whose end the other's end leads to
   silently is not needed: what it did in addition can be done later.
3. *Replies come at once.*  A step that changes nothing but the network (an answer) only adds
   possibilities; it is carried out as soon as it can be.
4. *What nobody can use is forgotten.*  A PDU leaves the network when neither its destination nor,
   where it takes part, its source can ever again be in the state it is meant for
   (`relevance.py`): versions joined rise for ever, and a site that has left a list or an attempt
   never returns to it.
5. *Messages come when they are needed.*  Whoever submits a message that somebody else stamps can
   do so immediately before that: no step of the list between the two depends on anything but the
   message itself, and steps after leaving the list can wait until the list has done its work.

When no attempt is left, more is of no account (`_settle`): versions heard of, and whatever sites
remember that can never again be part of a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Final, NamedTuple

from roundelay.core.token.pdu import B, Invite, Vote1
from roundelay.core.token.phases import NORMAL, O1, O2, OUT, S1, S2, W3
from roundelay.sim.explore.pdus import Numbered
from roundelay.sim.explore.scope import Scope
from roundelay.sim.explore.token.fingerprint import check_slots
from roundelay.sim.explore.token.network import Pool, bits
from roundelay.sim.explore.token.relevance import (
    JOINED,
    NEVER_SURE,
    Masks,
    can_use,
    refuses,
    stands_by,
)
from roundelay.sim.explore.token.site_states import (
    CRASH,
    RESTART,
    WIPE,
    Fact,
    Local,
    Member,
    Move,
    Profile,
    Registry,
    affordable,
    budget_of,
    describe_delivery,
)

ATTEMPTS: Final = 0x7F  # the part of a cost that counts attempts
CRASHES: Final = 0x7F * (CRASH | WIPE | RESTART)  # the parts that count crashes


class State(NamedTuple):
    """A state of the group: local states and what was sent (its number), by site; cost so far."""

    locals: tuple[int, ...]
    sent: tuple[int, ...]
    cost: int


class Turn(NamedTuple):
    """Silent steps of a site and one that sends: to local state `to`, sending `sends`."""

    site: int
    sends: int
    to: int
    cost: int


TurnEnd = tuple[int, int, int]
"""A turn without its site."""

Place = tuple[int, int]
"""A local state, and what it cost to get there."""

Log = list[tuple[int, "Move | Turn", State | None]]
"""What a site did: a reply, or a turn that was forced in that state."""


class Paths(NamedTuple):
    """Silent steps of a site from one of its states, and what they can end in."""

    before: dict[Place, tuple[Place, Move] | None]
    """Each place that can be reached, with the place and the move before it."""
    turns: dict[TurnEnd, tuple[Place, Move | None]]
    """Where each turn begins to be noticed, and by which move; None: by its replies there."""
    broken: list[tuple[Place, Move]]
    """The moves that are wrong in themselves."""


class Finding(NamedTuple):
    """A violation, and the sites that have to take more silent steps for it to show.

    With each site the fact it has to get to; None: to the step that is wrong in itself.
    """

    violation: str
    ends: tuple[tuple[int, Fact | None], ...] = ()


class Silent:
    """Where a site can get without anybody noticing, and what it can send from there."""

    __slots__ = ("broken", "facts", "needed", "reach", "turns")

    def __init__(self, paths: Paths, facts: tuple[Fact, ...]) -> None:
        self.reach = frozenset(paths.before)
        self.turns = list(paths.turns)
        self.needed: list[TurnEnd] | None = None  # the turns that are needed (reduction 2)
        self.facts = facts
        self.broken = [(place[1] + move.cost, move.broken) for place, move in paths.broken]


class Context:
    """The profiles of the sites, and what is of use to whom while they have these; by site."""

    __slots__ = ("heard", "inviting", "kept", "last", "profiles", "upto", "usable")

    def __init__(self, profiles: tuple[Profile, ...], last: bool) -> None:
        self.profiles = profiles
        self.last = last  # no attempt is left
        self.upto = -1  # PDUs that are taken into account
        self.inviting = [at.attempt for at in profiles if at.phase == O1 and at.attempt]
        self.usable: list[int] = []  # may be delivered to it
        self.heard = [0] * len(profiles)  # any of the others has a use for it
        self.kept = [0] * len(profiles)  # of what it sent, that which can still matter


class Group:
    """The sites together."""

    def __init__(self, scope: Scope, memory: str = JOINED) -> None:
        check_slots()
        self.scope = scope
        self.sites = tuple(range(scope.sites))
        self.pool = Pool(self.sites)
        registry = Registry()
        self.members = [Member(site, scope, self.pool, registry) for site in self.sites]
        self.budget = budget_of(scope)
        self.memory = NEVER_SURE if scope.wipes else memory
        self.masks = Numbered([0])  # sets of PDUs
        self.silent = cache(self._silent)
        self._facts: dict[tuple[Fact, ...], tuple[Fact, ...]] = {}
        items = self.pool.items
        self._used_by = cache(lambda at: Masks(items, partial(can_use, at, memory=self.memory)))
        self._backed_by = cache(lambda at, last: Masks(items, partial(stands_by, at, last=last)))
        self._known_context = cache(Context)
        self._contradiction = cache(contradiction)

    # -- what is of use ------------------------------------------------------------------------

    def usable(self, site: int, at: Profile) -> int:
        """Return the PDUs for `site` that are of use to it in a state like `at`."""
        return self._used_by(at).get() & self.pool.addressed[site]

    def _up_to_date(self, context: Context) -> Context:
        """Take all PDUs that were met into account."""
        if context.upto < len(self.pool.items):
            context.upto = len(self.pool.items)
            profiles = context.profiles
            context.usable = [self.usable(site, at) for site, at in enumerate(profiles)]
            for site, at in enumerate(profiles):
                others = (mask for other, mask in enumerate(context.usable) if other != site)
                context.heard[site] = heard = union(others)
                context.kept[site] = heard & self._backed_by(at, context.last).get()
        return context

    def local(self, site: int, number: int) -> Local:
        return self.members[site].locals[number]

    def _context(self, locals_: Iterable[int], last: bool) -> Context:
        """Return what is of use to whom in these states of the sites."""
        members = self.members
        profiles = [members[i].locals[number].profile for i, number in enumerate(locals_)]
        return self._up_to_date(self._known_context(tuple(profiles), last))

    def can_pay(self, cost: int) -> bool:
        return affordable(cost, self.budget)

    def _is_last(self, cost: int) -> bool:
        """Return whether no attempt is left."""
        return cost & ATTEMPTS == self.budget & ATTEMPTS

    def view(self, state: State) -> tuple[Context, list[int]]:
        """Return how the sites stand in `state`, and what may be delivered to each."""
        context = self._context(state.locals, self._is_last(state.cost))
        return context, self._inboxes(self.sent(state), context)

    def _inboxes(self, sent: Iterable[int], context: Context) -> list[int]:
        """Return what may be delivered to each site."""
        everything = union(sent)
        return [everything & usable for usable in self._up_to_date(context).usable]

    # -- silent steps --------------------------------------------------------------------------

    def _silent(self, site: int, start: int, inbox: int, context: Context) -> Silent:
        """Return everything `site` can do from local state `start` before anybody notices."""
        paths = self.paths(site, start, inbox, context)
        free = [number for number, cost in paths.before if not cost]
        facts = tuple({self.local(site, number).fact: None for number in free})
        return Silent(paths, self._facts.setdefault(facts, facts))

    def paths(self, site: int, start: int, inbox: int, context: Context) -> Paths:
        """Find the silent steps of `site` from local state `start`."""
        member, last = self.members[site], context.last
        paths = Paths({(start, 0): None}, {}, [])
        front = [(start, 0)]
        # Who crashes when nobody invites any more is out for good.
        idle = last and not context.inviting
        barred = (ATTEMPTS if last else 0) | (CRASHES if idle else 0)
        for place in front:
            number, paid = place
            local = member.locals[number]
            here = inbox & self.usable(site, local.profile)
            member.learn(local, here)
            if number != start:
                reply = union(move.sends for move in local.replies_to(here))
                reply = self._noticed(site, reply, local.profile, context)
                if reply:
                    # It is part of the network as soon as the site is here: go on from there.
                    paths.turns.setdefault((reply, number, paid), (place, None))
                    continue
            for move in local.moves(here):
                cost = paid + move.cost
                if move.cost & barred or not self.can_pay(cost):
                    continue
                if move.broken:
                    paths.broken.append((place, move))
                    continue
                to = member.without_versions(move.to) if last else move.to
                sends = self._noticed(site, move.sends, member.locals[to].profile, context)
                if sends:
                    paths.turns.setdefault((sends, to, cost), (place, move))
                elif (to, cost) not in paths.before:
                    paths.before[to, cost] = (place, move)
                    front.append((to, cost))
        return paths

    def _noticed(self, site: int, sends: int, at: Profile, context: Context) -> int:
        """Return what of `sends`, from a site that is like `at` then, anybody has a use for."""
        if not sends:
            return 0
        backed = self._backed_by(at, context.last).get()
        return sends & backed & self._up_to_date(context).heard[site]

    def _needed(self, site: int, start: int, inbox: int, context: Context) -> list[TurnEnd]:
        """Return the turns of `site` that are needed (reduction 2)."""
        silent = self.silent(site, start, inbox, context)
        if silent.needed is None:
            silent.needed = []
            by_sends: dict[int, list[Place]] = {}
            for sends, to, cost in silent.turns:
                rivals = by_sends.setdefault(sends, [])
                for other, paid in rivals:
                    if affordable(paid, cost):
                        after = self._silent_after(site, other, inbox, context, paid)
                        if (to, cost - paid) in after.reach:
                            break
                else:
                    rivals.append((to, cost))
                    silent.needed.append((sends, to, cost))
            silent.turns = silent.needed  # the others are of no use any more
        return silent.needed

    def _silent_after(
        self, site: int, number: int, inbox: int, context: Context, paid: int
    ) -> Silent:
        at, profiles = self.local(site, number).profile, context.profiles
        after = (*profiles[:site], at, *profiles[site + 1 :])
        later = self._known_context(after, context.last or self._is_last(paid))
        return self.silent(site, number, inbox & self.usable(site, at), later)

    # -- states of the group -------------------------------------------------------------------

    def sent(self, state: State) -> list[int]:
        return [self.masks[number] for number in state.sent]

    def begin(self, log: Log | None = None) -> State:
        moves = [member.begin() for member in self.members]
        return self._settle([move.to for move in moves], [move.sends for move in moves], 0, log)

    def after(self, state: State, turn: Turn, log: Log | None = None) -> State:
        """Return where `turn` leads; `log` gets what follows from it at once."""
        locals_, sent = list(state.locals), self.sent(state)
        locals_[turn.site] = turn.to
        sent[turn.site] |= turn.sends
        return self._settle(locals_, sent, state.cost + turn.cost, log)

    def _settle(self, locals_: list[int], sent: list[int], cost: int, log: Log | None) -> State:
        """Return the state after all replies and forced turns, without what is of no use.

        `log` gets the replies and the forced turns.
        """
        last = self._is_last(cost)
        if last:
            pairs = zip(self.members, locals_, strict=True)
            locals_ = [member.without_versions(number) for member, number in pairs]
        while True:
            context = self._context(locals_, last)
            for site, kept in enumerate(context.kept):
                sent[site] &= kept
            self._reply(locals_, sent, context, log)
            if not last:
                break
            if not context.inviting:
                cost |= self.budget & CRASHES  # whether anybody crashes or not is the same
            inboxes = self._inboxes(sent, context)
            stranded = [
                site for site in self.sites if self._stranded(site, locals_, inboxes, context)
            ]
            for site in stranded:
                locals_[site] = self.members[site].retired(self.local(site, locals_[site]))
            if stranded:
                continue
            site, turns = self._closed(locals_, inboxes, context)
            if len(turns) != 1:
                break
            sends, to, _ = turns[0]
            if log is not None:
                log.append((site, Turn(site, sends, to, 0), self._state(locals_, sent, cost)))
            locals_[site] = to
            sent[site] |= sends
        return self._state(locals_, sent, cost)

    def _state(self, locals_: list[int], sent: list[int], cost: int) -> State:
        return State(tuple(locals_), tuple([self.masks.number(mask) for mask in sent]), cost)

    def _reply(
        self, locals_: list[int], sent: list[int], context: Context, log: Log | None
    ) -> None:
        again = True
        while again:
            again = False
            for site, inbox in enumerate(self._inboxes(sent, context)):
                member = self.members[site]
                local = member.locals[locals_[site]]
                member.learn(local, inbox)
                for needed, move in local.replies:
                    if needed & inbox != needed or not move.sends & ~sent[site]:
                        continue
                    sends = self._noticed(site, move.sends, local.profile, context)
                    if sends & ~sent[site]:
                        sent[site] |= sends
                        again = True
                        if log is not None:
                            log.append((site, move, None))

    def _stranded(
        self, site: int, locals_: Sequence[int], inboxes: list[int], context: Context
    ) -> bool:
        """Return whether a site can never again be part of a list, when no attempt is left."""
        at = context.profiles[site]
        if at.phase not in (OUT, S1, W3, NORMAL) or self._has_token(site, locals_):
            return False
        if at.phase == OUT:
            return not inboxes[site]
        # Its list is out of reach if nobody works on it any more and nothing of it can come.
        v = at.tl if at.phase == NORMAL else at.attempt
        for other, profile in enumerate(context.profiles):
            if other == site:
                continue
            if profile.attempt == v and profile.phase in (O1, O2, S2, W3):
                return False
            if profile.tl == v and self._has_token(other, locals_):
                return False
        return all(isinstance(self.pool.item(bit).pdu, B) for bit in bits(inboxes[site]))

    def _has_token(self, site: int, locals_: Sequence[int]) -> bool:
        """Return whether that site knows that its list has a token."""
        return self.local(site, locals_[site]).fact.list is not None

    def _closed(
        self, locals_: Sequence[int], inboxes: list[int], context: Context
    ) -> tuple[int, list[TurnEnd]]:
        """Return a site that has all its choices before it, and these; or (-1, []).

        Only when no attempt is left: then a site in an attempt waits for PDUs of that attempt
        alone, unless somebody still invites to a higher one.  When they are there, nothing that
        others do can add to its choices or take one away: the others may as well wait.
        """
        for site, at in enumerate(context.profiles):
            if at.phase not in (S1, S2, W3, O2):
                continue
            if any(not refuses(at, v, self.memory) for v in context.inviting):
                continue
            here = (site, locals_[site], inboxes[site], context)
            free = [turn for turn in self._needed(*here) if not turn[2]]
            if free and not self.silent(*here).broken:
                return site, free
        return -1, []

    # -- turns ---------------------------------------------------------------------------------

    def turns(self, state: State) -> Iterator[tuple[tuple[Turn, ...], State]]:
        """Yield every turn from `state`, with the preparations it needs (reduction 5)."""
        at_first = [[turn[1:] for turn in turns] for turns in self._choices(state)]
        front: list[tuple[tuple[Turn, ...], State]] = [((), state)]
        known = {state}
        for prepared, here in front:
            if prepared and any(silent.broken for silent in self.silently(here)):
                yield prepared, here
                continue
            for site, turns in enumerate(self._choices(here)):
                moved = here.locals[site] != state.locals[site]
                for turn in turns:
                    if prepared and not moved and turn[1:] in at_first[site]:
                        continue  # not what was prepared for
                    after = self.after(here, turn)
                    if not self._prepares(turn):
                        yield (*prepared, turn), after
                    elif after not in known:
                        known.add(after)
                        front.append(((*prepared, turn), after))

    def _choices(self, state: State) -> list[list[Turn]]:
        """Return the turns of each site in `state`."""
        context, inboxes = self.view(state)
        alone = self._closed(state.locals, inboxes, context)[0] if context.last else -1
        choices: list[list[Turn]] = []
        for site, number in enumerate(state.locals):
            turns: list[Turn] = []
            if alone in (-1, site):
                for turn in self._needed(site, number, inboxes[site], context):
                    if self.can_pay(state.cost + turn[2]):
                        turns.append(Turn(site, *turn))
            choices.append(turns)
        return choices

    def _prepares(self, turn: Turn) -> bool:
        """Return whether a turn does nothing but submit, invite or vote for an invitation."""
        return all(
            isinstance(self.pool.item(bit).pdu, Invite | Vote1 | B) for bit in bits(turn.sends)
        )

    def silently(self, state: State) -> list[Silent]:
        """Return what each site can do from `state` before anybody notices."""
        context, inboxes = self.view(state)
        return [
            self.silent(site, number, inboxes[site], context)
            for site, number in enumerate(state.locals)
        ]

    # -- what may not be -----------------------------------------------------------------------

    def finding(self, state: State) -> Finding | None:
        """Return what is wrong in `state` or after silent steps from it."""
        violation = self.pool.stamped_twice(union(self.sent(state)))
        if violation:
            return Finding(violation)
        silently = self.silently(state)
        for site, silent in enumerate(silently):
            for paid, broken in silent.broken:
                if self.can_pay(state.cost + paid):
                    return Finding(broken, ((site, None),))
        for site in self.sites:
            for other in range(site):
                for mine in silently[site].facts:
                    for theirs in silently[other].facts:
                        violation = self._contradiction(site, mine, other, theirs)
                        if violation:
                            return Finding(violation, ((site, mine), (other, theirs)))
        return None


def union(masks: Iterable[int]) -> int:
    """Return what is in any of the sets."""
    everything = 0
    for mask in masks:
        everything |= mask
    return everything


def contradiction(site: int, mine: Fact, other: int, theirs: Fact) -> str:
    """Return why two sites cannot both be right: I1 and I3; or ''."""
    places = {delivery.seq: delivery for delivery in mine.delivered}
    for delivery in theirs.delivered:
        rival = places.get(delivery.seq)
        if rival is not None and rival != delivery:
            words = f"I1: site {site} delivers {describe_delivery(rival)}"
            return f"{words}, site {other} {describe_delivery(delivery)}"
    for a, fact_a, b, fact_b in ((site, mine, other, theirs), (other, theirs, site, mine)):
        if fact_a.committed is None or fact_b.list is None:
            continue
        tl, cnts = fact_a.committed
        newer, start_ts = fact_b.list
        if newer > tl and cnts > start_ts:
            return (
                f"I3: site {a} commits timestamp {cnts - 1} in list {tl}, while site {b} is in "
                f"list {newer}, which starts at {start_ts}"
            )
    return ""
