"""Turns: the steps of a whole group, as few of them as say everything.

Sites meet only through the network, and the network forgets nothing.  So steps of different sites
commute unless one sends what the other receives, and five reductions follow.  Each keeps every
violation: what a site has delivered stays delivered, so a violation is still there at the end of
any other order of the same steps.

1. *Silent steps come late.*  A step that sends nothing anybody can use is carried out immediately
   before the site's next step that does.  A **turn** is such a silent way, possibly empty, and the
   sending step at its end.  Silent steps with nothing after them are looked at once, for what
   they deliver (`Quiet.facts`), and lead to no state of the group.
2. *The less, the better.*  Of two turns that send the same, one whose end the other's end leads to
   silently is not needed: what it did in addition can be done later.
3. *Replies come at once.*  A step that changes nothing but the network (an answer) only adds
   possibilities; it is carried out as soon as it can be.
4. *What nobody can use is forgotten.*  A PDU leaves the network when neither its destination nor,
   where it takes part, its source can ever again be in the state it is meant for
   (`explore_use.py`): versions joined rise for ever, and a site that has left a list or an attempt
   never returns to it.
5. *Messages come when they are needed.*  Whoever submits a message that somebody else stamps can
   do so immediately before that: no step of the list between the two depends on anything but the
   message itself, and steps after leaving the list can wait until the list has done its work.

When no attempt is left, more is of no account (`_retire`): versions heard of, and whatever sites
remember that can never again be part of a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from roundelay.core.token.pdu import B, Invite, Vote1
from roundelay.core.token.phases import NORMAL, O1, O2, OUT, S1, S2, W3
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Stable
from roundelay.sim.explore.engines import check_slots
from roundelay.sim.explore.network import Pool, bits
from roundelay.sim.explore.relevance import JOINED, NEVER_SURE, Masks, can_use, refuses, stands_by
from roundelay.sim.explore.scope import Scope
from roundelay.sim.explore.site_states import (
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
    purse,
    told,
)

ATTEMPTS: Final = 0x7F  # the part of a cost that counts attempts

Profiles = tuple[Profile, ...]
"""One for each site."""


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


Place = tuple[int, int]
"""A local state, and what it cost to get there."""


Log = list[tuple[int, "Move | Turn", State | None]]
"""What a site did: a reply, or a turn that was forced in that state."""


class Finding(NamedTuple):
    """A violation, and the sites that have to take more silent steps for it to show.

    With each site the fact it has to get to; None: to the step that is wrong in itself.
    """

    wrong: str
    ends: tuple[tuple[int, Fact | None], ...] = ()


NONE_BROKEN: Final[list[tuple[int, str]]] = []


class Quiet:
    """Where a site can get without anybody noticing, and what it can send from there."""

    __slots__ = ("broken", "facts", "reach", "turns", "wise")

    def __init__(self) -> None:
        self.reach: frozenset[Place] = frozenset()
        self.turns: list[tuple[int, int, int]] = []  # (sends, to, cost)
        self.wise: list[tuple[int, int, int]] | None = None  # without those not needed
        self.facts: tuple[Fact, ...] = ()
        self.broken: list[tuple[int, str]] = NONE_BROKEN  # (cost, invariant)


class Context:
    """What is of use to whom while the sites have certain profiles; by site."""

    __slots__ = ("heard", "inviting", "kept", "upto", "usable")

    def __init__(self, profiles: Profiles) -> None:
        self.upto = -1
        self.inviting = [at.attempt for at in profiles if at.phase == O1 and at.attempt]
        self.usable: list[int] = []  # may be delivered to it
        self.heard = [0] * len(profiles)  # any of the others has a use for it
        self.kept = [0] * len(profiles)  # of what it sent, that which can still matter


class Group:
    """The sites together."""

    def __init__(
        self,
        scope: Scope,
        site_class: type[TokenSite] = TokenSite,
        stable_class: type[Stable] = Stable,
        memory: str = JOINED,
    ) -> None:
        check_slots()
        self.scope = scope
        self.sites = tuple(range(scope.sites))
        self.pool = Pool(self.sites)
        registry = Registry()
        self.members = [
            Member(site, scope, self.pool, registry, site_class, stable_class)
            for site in self.sites
        ]
        self.purse = purse(scope)
        self.memory = NEVER_SURE if scope.wipes else memory
        self.masks: list[int] = [0]  # sets of PDUs by number
        self._mask_numbers: dict[int, int] = {0: 0}
        self._quiet: list[dict[tuple[object, ...], Quiet]] = [{} for _ in self.sites]
        self._usable: list[dict[Profile, Masks]] = [{} for _ in self.sites]
        self._backed: tuple[dict[Profile, Masks], dict[Profile, Masks]] = ({}, {})
        self._contexts: tuple[dict[Profiles, Context], dict[Profiles, Context]] = ({}, {})
        self._forgot: list[dict[int, int]] = [{} for _ in self.sites]
        self._facts: dict[tuple[Fact, ...], tuple[Fact, ...]] = {}
        self._agreed: dict[tuple[Fact, Fact], str] = {}

    # -- what is of use ------------------------------------------------------------------------

    def usable(self, site: int, at: Profile) -> int:
        """The PDUs for `site` that are of use to it in a state like `at`."""
        masks = self._usable[site].get(at)
        if masks is None:
            masks = self._usable[site][at] = Masks(
                self.pool, lambda pdu: can_use(at, pdu, self.memory)
            )
        return masks.get() & self.pool.addressed[site]

    def backed(self, at: Profile, last: bool) -> int:
        """The PDUs that may matter when they come from a site in a state like `at`."""
        masks = self._backed[last].get(at)
        if masks is None:
            masks = self._backed[last][at] = Masks(self.pool, lambda pdu: stands_by(at, pdu, last))
        return masks.get()

    def context(self, profiles: Profiles, last: bool) -> Context:
        """What is of use to whom in states like these."""
        found = self._contexts[last].get(profiles)
        if found is None:
            found = self._contexts[last][profiles] = Context(profiles)
        if found.upto < len(self.pool.items):
            found.upto = len(self.pool.items)
            found.usable = [self.usable(site, at) for site, at in enumerate(profiles)]
            for site, at in enumerate(profiles):
                heard = 0
                for other, mask in enumerate(found.usable):
                    if other != site:
                        heard |= mask
                found.heard[site] = heard
                found.kept[site] = heard & self.backed(at, last)
        return found

    def local(self, site: int, number: int) -> Local:
        return self.members[site].locals[number]

    def profiles(self, locals_: Iterable[int]) -> Profiles:
        members = self.members
        return tuple([members[i].locals[number].profile for i, number in enumerate(locals_)])

    def can_pay(self, cost: int) -> bool:
        return affordable(cost, self.purse)

    def is_last(self, cost: int) -> bool:
        """Whether no attempt is left."""
        return cost & ATTEMPTS == self.purse & ATTEMPTS

    # -- silent steps --------------------------------------------------------------------------

    def quiet(self, site: int, start: int, inbox: int, profiles: Profiles, last: bool) -> Quiet:
        """Everything `site` can do from local state `start` before anybody notices."""
        key = (start, self.number(inbox), profiles, last)
        found = self._quiet[site].get(key)
        if found is None:
            found = self._quiet[site][key] = Quiet()
            ways = self.ways(site, start, inbox, profiles, last, found)
            found.reach = frozenset(ways)
            facts = tuple({self.local(site, place).fact: None for place, cost in ways if not cost})
            found.facts = self._facts.setdefault(facts, facts)
        return found

    def ways(
        self, site: int, start: int, inbox: int, profiles: Profiles, last: bool, found: Quiet
    ) -> dict[Place, tuple[Place, Move] | None]:
        """Each place that can be reached silently, and the place and the move before it.

        Fills in the turns and the broken moves of `found`.
        """
        member = self.members[site]
        way: dict[Place, tuple[Place, Move] | None] = {(start, 0): None}
        turns: dict[tuple[int, int, int], None] = {}
        front = [(start, 0)]
        # Who crashes when nobody invites any more is out for good.
        idle = last and not self.context(profiles, last).inviting
        barred = (ATTEMPTS if last else 0) | (ATTEMPTS * (CRASH | WIPE | RESTART) if idle else 0)
        for place in front:
            number, paid = place
            local = member.locals[number]
            here = inbox & self.usable(site, local.profile)
            member.learn(local, here)
            if number != start:
                reply = 0
                for needed, move in local.replies:
                    if needed & here == needed:
                        reply |= move.sends
                reply = self.noticed(site, reply, local.profile, profiles, last)
                if reply:
                    # It is part of the network as soon as the site is here: go on from there.
                    turns[reply, number, paid] = None
                    continue
            assert local.inner is not None
            moves = [move for needed, move in local.effective if needed & here == needed]
            for move in moves + local.inner:
                cost = paid + move.cost
                if move.cost & barred or not self.can_pay(cost):
                    continue
                if move.broken:
                    found.broken = [*found.broken, (cost, move.broken)]
                    continue
                to = self.kept(site, move.to, last)
                sends = self.noticed(site, move.sends, member.locals[to].profile, profiles, last)
                if sends:
                    turns[sends, to, cost] = None
                elif (to, cost) not in way:
                    way[to, cost] = (place, move)
                    front.append((to, cost))
        found.turns = list(turns)
        return way

    def noticed(self, site: int, sends: int, at: Profile, profiles: Profiles, last: bool) -> int:
        """What of `sends` anybody has a use for."""
        if not sends:
            return 0
        return sends & self.backed(at, last) & self.context(profiles, last).heard[site]

    def kept(self, site: int, number: int, last: bool) -> int:
        """With no attempt left, which versions were heard of is of no account."""
        if not last:
            return number
        known = self._forgot[site].get(number)
        if known is None:
            member = self.members[site]
            local = member.locals[number]
            known = number if local.ice is None else member.derived(local, _forget_versions)
            self._forgot[site][number] = known
        return known

    def wise(
        self, site: int, start: int, inbox: int, profiles: Profiles, last: bool
    ) -> list[tuple[int, int, int]]:
        """The turns of `site` that are needed (reduction 2)."""
        quiet = self.quiet(site, start, inbox, profiles, last)
        if quiet.wise is None:
            quiet.wise = []
            before: dict[int, list[tuple[int, int]]] = {}
            for sends, to, cost in quiet.turns:
                rivals = before.setdefault(sends, [])
                for other, paid in rivals:
                    if affordable(paid, cost):
                        after = self._afterwards(site, other, inbox, profiles, last, paid)
                        if (to, cost - paid) in after.reach:
                            break
                else:
                    rivals.append((to, cost))
                    quiet.wise.append((sends, to, cost))
            quiet.turns = quiet.wise  # the others are of no use any more
        return quiet.wise

    def _afterwards(
        self, site: int, number: int, inbox: int, profiles: Profiles, last: bool, paid: int
    ) -> Quiet:
        at = self.local(site, number).profile
        seen = (*profiles[:site], at, *profiles[site + 1 :])
        inbox &= self.usable(site, at)
        return self.quiet(site, number, inbox, seen, last or self.is_last(paid))

    # -- states of the group -------------------------------------------------------------------

    def number(self, mask: int) -> int:
        """A number for a set of PDUs."""
        number = self._mask_numbers.get(mask)
        if number is None:
            number = self._mask_numbers[mask] = len(self.masks)
            self.masks.append(mask)
        return number

    def sent(self, state: State) -> list[int]:
        return [self.masks[number] for number in state.sent]

    def begin(self) -> State:
        moves = [member.begin() for member in self.members]
        return self.settled([move.to for move in moves], [move.sends for move in moves], 0)

    def settled(
        self, locals_: list[int], sent: list[int], cost: int, log: Log | None = None
    ) -> State:
        """The state after all replies and forced turns, without what is of no use.

        `log` gets the replies and the forced turns.
        """
        last = self.is_last(cost)
        if last:
            locals_ = [self.kept(site, number, last) for site, number in enumerate(locals_)]
        while True:
            profiles = self.profiles(locals_)
            context = self.context(profiles, last)
            for site, kept in enumerate(context.kept):
                sent[site] &= kept
            self._reply(locals_, sent, profiles, last, log)
            if not last:
                break
            if not context.inviting:
                cost |= self.purse & ATTEMPTS * (
                    CRASH | WIPE | RESTART
                )  # whether anybody crashes or not is the same
            inboxes = self.inboxes(sent, profiles, last)
            stranded = [
                site for site in self.sites if self._stranded(site, locals_, inboxes, profiles)
            ]
            for site in stranded:
                locals_[site] = self.members[site].retired(self.local(site, locals_[site]))
            if stranded:
                continue
            site, turns = self.closed(locals_, inboxes, profiles)
            if len(turns) != 1:
                break
            sends, to, _ = turns[0]
            if log is not None:
                here = State(tuple(locals_), tuple([self.number(mask) for mask in sent]), cost)
                log.append((site, Turn(site, sends, to, 0), here))
            locals_[site] = to
            sent[site] |= sends
        return State(tuple(locals_), tuple([self.number(mask) for mask in sent]), cost)

    def inboxes(self, sent: Iterable[int], profiles: Profiles, last: bool) -> list[int]:
        """What may be delivered to each site."""
        everything = 0
        for mask in sent:
            everything |= mask
        return [everything & usable for usable in self.context(profiles, last).usable]

    def _reply(
        self, locals_: list[int], sent: list[int], profiles: Profiles, last: bool,
        log: Log | None,
    ) -> None:  # fmt: skip
        again = True
        while again:
            again = False
            inboxes = self.inboxes(sent, profiles, last)
            for site, inbox in enumerate(inboxes):
                member = self.members[site]
                local = member.locals[locals_[site]]
                member.learn(local, inbox)
                for needed, move in local.replies:
                    if needed & inbox != needed or not move.sends & ~sent[site]:
                        continue
                    sends = self.noticed(site, move.sends, local.profile, profiles, last)
                    if sends & ~sent[site]:
                        sent[site] |= sends
                        again = True
                        if log is not None:
                            log.append((site, move, None))

    def _stranded(
        self, site: int, locals_: Sequence[int], inboxes: list[int], profiles: Profiles
    ) -> bool:
        """Whether a site can never again be part of a list, when no attempt is left."""
        at = profiles[site]
        if at.phase not in (OUT, S1, W3, NORMAL) or self._has_token(site, locals_):
            return False
        if at.phase == OUT:
            return not inboxes[site]
        # Its list is out of reach if nobody works on it any more and nothing of it can come.
        v = at.tl if at.phase == NORMAL else at.attempt
        for other, profile in enumerate(profiles):
            if other == site:
                continue
            if profile.attempt == v and profile.phase in (O1, O2, S2, W3):
                return False
            if profile.tl == v and self._has_token(other, locals_):
                return False
        return all(isinstance(self.pool.item(bit).pdu, B) for bit in bits(inboxes[site]))

    def _has_token(self, site: int, locals_: Sequence[int]) -> bool:
        """Whether that site knows that its list has a token."""
        return self.local(site, locals_[site]).fact.list is not None

    def closed(
        self, locals_: Sequence[int], inboxes: list[int], profiles: Profiles
    ) -> tuple[int, list[tuple[int, int, int]]]:
        """A site that has all its choices before it, and these; or (-1, []).

        Only when no attempt is left: then a site in an attempt waits for PDUs of that attempt
        alone, unless somebody still invites to a higher one.  When they are there, nothing that
        others do can add to its choices or take one away: the others may as well wait.
        """
        inviting = self.context(profiles, True).inviting
        for site, at in enumerate(profiles):
            if at.phase not in (S1, S2, W3, O2):
                continue
            if any(not refuses(at, v, self.memory) for v in inviting):
                continue
            turns = self.wise(site, locals_[site], inboxes[site], profiles, True)
            free = [turn for turn in turns if not turn[2]]
            if free and not self.quiet(site, locals_[site], inboxes[site], profiles, True).broken:
                return site, free
        return -1, []

    def turns(self, state: State) -> Iterator[tuple[tuple[Turn, ...], State]]:
        """Every turn from `state` with the preparations it needs (reduction 5), and its end."""
        at_first = [[turn[1:] for turn in turns] for turns in self.choices(state)]
        front: list[tuple[tuple[Turn, ...], State]] = [((), state)]
        known = {state}
        for way, here in front:
            if way and self._breaks(here):
                yield way, here
                continue
            for site, turns in enumerate(self.choices(here)):
                moved = here.locals[site] != state.locals[site]
                for turn in turns:
                    if way and not moved and turn[1:] in at_first[site]:
                        continue  # not what was prepared for
                    after = self.after(here, turn)
                    if not self._prepares(turn):
                        yield (*way, turn), after
                    elif after not in known:
                        known.add(after)
                        front.append(((*way, turn), after))

    def choices(self, state: State) -> list[list[Turn]]:
        """The turns of each site in `state`."""
        profiles = self.profiles(state.locals)
        last = self.is_last(state.cost)
        inboxes = self.inboxes(self.sent(state), profiles, last)
        alone = -1
        if last:
            alone, _ = self.closed(state.locals, inboxes, profiles)
        found: list[list[Turn]] = []
        for site, number in enumerate(state.locals):
            turns: list[Turn] = []
            if alone in (-1, site):
                for turn in self.wise(site, number, inboxes[site], profiles, last):
                    if self.can_pay(state.cost + turn[2]):
                        turns.append(Turn(site, *turn))
            found.append(turns)
        return found

    def _prepares(self, turn: Turn) -> bool:
        """Whether a turn does nothing but submit, invite or vote for an invitation."""
        return all(
            isinstance(self.pool.item(bit).pdu, Invite | Vote1 | B) for bit in bits(turn.sends)
        )

    def silently(self, state: State) -> list[Quiet]:
        """What each site can do from `state` before anybody notices."""
        profiles = self.profiles(state.locals)
        last = self.is_last(state.cost)
        inboxes = self.inboxes(self.sent(state), profiles, last)
        return [
            self.quiet(site, number, inboxes[site], profiles, last)
            for site, number in enumerate(state.locals)
        ]

    def _breaks(self, state: State) -> bool:
        """Whether a site can make a step from here that is wrong in itself."""
        return any(one.broken for one in self.silently(state))

    def after(self, state: State, turn: Turn, log: Log | None = None) -> State:
        """Where `turn` leads."""
        locals_, sent = list(state.locals), self.sent(state)
        locals_[turn.site] = turn.to
        sent[turn.site] |= turn.sends
        return self.settled(locals_, sent, state.cost + turn.cost, log)

    # -- what may not be -----------------------------------------------------------------------

    def finding(self, state: State) -> Finding | None:
        """What is wrong in `state` or after silent steps from it."""
        everything = 0
        for mask in self.sent(state):
            everything |= mask
        wrong = self.pool.stamped_twice(everything)
        if wrong:
            return Finding(wrong)
        quiet = self.silently(state)
        for site, one in enumerate(quiet):
            for paid, broken in one.broken:
                if self.can_pay(state.cost + paid):
                    return Finding(broken, ((site, None),))
        for site in self.sites:
            for other in range(site):
                for mine in quiet[site].facts:
                    for theirs in quiet[other].facts:
                        key = (mine, theirs)
                        clash = self._agreed.get(key)
                        if clash is None:
                            clash = self._agreed[key] = contradiction(site, mine, other, theirs)
                        if clash:
                            return Finding(clash, ((site, mine), (other, theirs)))
        return None


def _forget_versions(site: TokenSite) -> None:
    site.reformation.seen_version = 0


def contradiction(site: int, mine: Fact, other: int, theirs: Fact) -> str:
    """Why two sites cannot both be right: I1 and I3; or ''."""
    places = {one.seq: one for one in mine.said}
    for one in theirs.said:
        rival = places.get(one.seq)
        if rival is not None and rival != one:
            return f"I1: site {site} delivers {told(rival)}, site {other} {told(one)}"
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
