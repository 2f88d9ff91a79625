"""The cluster protocols as the search sees them: what may happen, and what must be so.

The network is what the protocols ask for.  MC: what one member sends to another arrives in order,
if it arrives.  1C (`to-channel`): every member sees one sequence, its own PDUs in it, each at its
own pace and but for what it has lost.  Messages are submitted by anybody at any moment, to any
destinations (SPO); deliveries happen in any order that the network allows; any copy may be lost,
a member's own on one channel, too, `losses` of them in all.  t_ack may pass at any moment.  The
other timers are long: they pass when nothing is under way and nobody has anything to acknowledge,
in any order, and `early` times also before that.

What is looked at, in every state that is met (`ahead` says which are not):

I1, I4  what two members deliver is one sequence (TO); each source's messages come in their order,
        once, at their destinations only (PO, SPO)
I8      AL and PAL never fall; nobody believes of another that it has what it lacks; nobody
        acknowledges what was never sent; what is acknowledged at one member can be
        pre-acknowledged at every destination (phase three)
I2      with `fails`: whoever stops for good now, the others end alike (`Failures`)
I7      from every state in which nothing is under way, if nothing more is lost and every timer
        passes now and then, everything is delivered and the network falls silent
TR-15   nobody gives up

A violation of I7 is told with the steps that follow when nothing more is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from roundelay.core.engine import ACKNOWLEDGED, EVERYONE
from roundelay.core.families import FAMILIES, TOTAL
from roundelay.sim.explore.cluster.member_states import (
    ACK,
    GAP,
    RECEIVE,
    STAT,
    SUBMIT,
    Delivered,
    Item,
    Local,
    Member,
    Move,
    destinations_of,
    each_delivered,
    message,
)
from roundelay.sim.explore.pdus import Numbered, describe
from roundelay.sim.explore.scope import ClusterScope
from roundelay.sim.explore.search import Model

if TYPE_CHECKING:
    from roundelay.sim.mutants.mutant import Mutant

ROUNDS: Final = 50
"""So often every timer passes before a cluster counts as stuck."""

STEPS: Final = 2000
"""So many PDUs arrive, and debts are paid, before they count as endless."""

AHEAD: Final = 60
"""So many steps of what goes on for ever are printed."""

LOSE: Final = "lose"

State = tuple[Any, ...]
"""Number of each member's state, content of each queue, losses left, early timers left."""

Action = tuple[int, str, int, int]
"""Member, kind of step, what it is about, and the queue that an item comes from, or -1."""


class Stuck(Exception):
    """What never happens, or never ends, though nothing more is lost."""


class Finding(NamedTuple):
    """A violation, and what happens before it shows if nothing more is lost."""

    violation: str
    ahead: tuple[Action, ...] = ()


class ClusterModel(Model[State, Action, Finding]):
    """A cluster of any of the protocols."""

    def __init__(self, scope: ClusterScope, mutant: Mutant | None = None) -> None:
        family = FAMILIES[scope.protocol]
        self.scope = scope
        self.n = n = scope.sites
        self.group = tuple(range(n))
        self.one_channel = family.one_channel
        self.final = scope.deliver_at == ACKNOWLEDGED
        # Before the last stage only channel mode has one order for all.
        self.total = self.one_channel or (self.final and family.order == TOTAL)
        self.items: Numbered[Item] = Numbered()
        config = scope.config().check(n)
        self.members = [
            Member(k, self.group, config, family.engine, self.items) for k in self.group
        ]
        # Queues: one per ordered pair of members, or on one channel one per receiver.
        self.receivers = self.group if self.one_channel else self.group * n
        self.queues = range(n, n + len(self.receivers))
        self.losses, self.early = self.queues.stop, self.queues.stop + 1
        everyone = (1 << n) - 1
        self.destinations = range(1 if family.selective else everyone, everyone + 1)
        self.failures = Failures(self.members, self.total) if scope.fails else None
        self._compared = cache(self._compare)
        self._ending_well: set[State] = set()
        self._ahead_so_far: list[Action] = []

    def begin(self) -> State:
        """Nothing has happened yet, but for what members say when they are made."""
        state: list[Any] = [member.first.to for member in self.members]
        state += [()] * len(self.receivers) + [self.scope.losses, self.scope.early]
        for member in self.members:
            self._send(state, member.me, member.first)
        return tuple(state)

    def local(self, state: State, k: int) -> Local:
        return self.members[k].locals[state[k]]

    # -- what may happen -------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[Action, State, Finding | None]]:
        for action in self._actions(state):
            after, violation = self._after(state, action)
            yield action, after, Finding(violation) if violation else None

    def _actions(self, state: State) -> Iterator[Action]:
        """Yield everything that may happen next, but for what may as well happen later."""
        locals_ = [self.local(state, k) for k in self.group]
        submit = sum(len(local.submitted) for local in locals_) < self.scope.messages
        ahead = self.ahead(state, locals_, submit)
        for queue, k in zip(self.queues, self.receivers, strict=True):
            if state[queue] and k in ahead:
                item = state[queue][0]
                yield k, RECEIVE, item, queue
                if state[self.losses]:
                    yield k, LOSE, item, queue
        long_timers = state[self.early] or self.is_calm(state)
        for k in ahead:
            if submit:
                for to in self.destinations:
                    yield k, SUBMIT, to, -1
            if locals_[k].acks:
                yield k, ACK, 0, -1
            if long_timers:
                for kind, what in locals_[k].timers:
                    yield k, kind, what, -1

    def ahead(self, state: State, locals_: list[Local], submit: bool) -> Sequence[int]:
        """Return the members whose steps have to be tried now.

        Steps of different members commute: each changes one member, takes from the head of its
        queues and adds to the tail of others'.  So if nothing that others do can change what one
        member may do next, its steps may all be tried first, and those of the others after them.
        Every state in which nothing is under way is still met, for what has come to that member
        has to be taken, or lost, on every way there.

        MC: something has come from each other member; what comes next from each is settled.  1C:
        what is next is settled, but the order in which members send matters, so the member must
        have nothing to send.  With `fails` every state on the way counts.
        """
        if self.scope.fails:
            return self.group
        if self.one_channel:
            if submit or state[self.early]:
                return self.group
            for k in self.group:
                queue = state[self.n + k]
                if queue and not locals_[k].acks:
                    move = self.members[k].move(state[k], (RECEIVE, queue[0]))
                    if not move.sends and not move.broken:
                        return (k,)
            return self.group
        n = self.n
        for k in self.group:
            if all(state[n + other * n + k] for other in self.group if other != k):
                return (k,)
        return self.group

    def under_way(self, state: State) -> bool:
        """Return whether any PDU is still to arrive."""
        return any(state[queue] for queue in self.queues)

    def is_calm(self, state: State) -> bool:
        """Return whether nothing is under way, and nobody has anything to acknowledge."""
        return not self.under_way(state) and not any(self.local(state, k).acks for k in self.group)

    def _after(self, state: State, action: Action) -> tuple[State, str]:
        """Return the state after `action`, and what is wrong with it."""
        k, kind, what, queue = action
        after = list(state)
        if queue >= 0:
            after[queue] = state[queue][1:]
        if kind == LOSE:
            after[self.losses] -= 1
            return tuple(after), ""
        if kind not in (SUBMIT, RECEIVE, ACK) and not self.is_calm(state):
            after[self.early] -= 1
        move = self.members[k].move(state[k], (kind, what))
        if move.broken:
            return state, move.broken
        after[k] = move.to
        self._send(after, k, move)
        violation = self._contradiction(after, k)
        if not violation and self.failures is not None:
            violation = self.failures.violation(tuple(after[: self.n]))
        return tuple(after), violation

    def _send(self, after: list[Any], k: int, move: Move) -> None:
        for dst, item in move.sends:
            for other in self.group if dst == EVERYONE else (dst,):
                if self.one_channel:
                    after[self.n + other] += (item,)
                elif other != k:
                    after[self.n + k * self.n + other] += (item,)

    # -- what must be so -------------------------------------------------------------------

    def _contradiction(self, state: list[Any], k: int) -> str:
        """Return what does not fit together after a step of member k, or ""."""
        for other in self.group:
            mine, theirs = (k, state[k]), (other, state[other])
            violation = self._compared(*mine, *theirs) or self._compared(*theirs, *mine)
            if violation:
                return violation
        return ""

    def _compare(self, i: int, here: int, k: int, there: int) -> str:
        """Return what member i in one state and member k in another cannot both be right in."""
        mine, theirs = self.members[i].locals[here], self.members[k].locals[there]
        # I4, I8: of k's messages i delivers those meant for it, in their order, each once.
        sent = [message(k, m, to) for m, to in enumerate(theirs.submitted) if to >> i & 1]
        received = [each.data for each in mine.delivered if each.source == k]
        if received != sent[: len(received)]:
            return f"I4: {i} delivers {received} of {k}'s {sent}"
        if self.total:
            pairs = zip(mine.delivered, theirs.delivered, strict=False)
            for place, (a, b) in enumerate(pairs):
                if a != b or a.position != (place if self.final else -1):
                    return f"I1: at {place} {i} delivers {a.data!r}, and {k} {b.data!r}"
        if mine.epoch != theirs.epoch:
            return ""
        if mine.treq[k] > theirs.seq:
            return f"I8: {i} has PDUs below {mine.treq[k]} of {k}, which is at {theirs.seq}"
        for j in self.group:
            has, believed = theirs.seq if j == k else theirs.treq[j], mine.al[j][k]
            if believed > has:
                return f"I8: {i} believes that {k} has all of {j} below {believed}, not {has}"
        has_phases = self.final and not self.one_channel
        return self._phase_three(i, mine, k, theirs) if has_phases else ""

    def _phase_three(self, i: int, mine: Local, k: int, theirs: Local) -> str:
        """PO-T2, SPO-T2: what i has delivered k can pre-acknowledge, if it concerns it."""
        for source, number, data, _ in mine.delivered:
            to = destinations_of(data)
            if not (to | 1 << source) >> k & 1:
                continue
            short = [m for m in self.group if to >> m & 1 and theirs.al[source][m] <= number]
            if short:
                return f"I8: {i} delivers {data!r}, and {k} cannot tell that {short} have it"
        return ""

    # -- that it ends well -----------------------------------------------------------------

    def check(self, state: State) -> Finding | None:
        """I7: return what is never delivered, or never ends, once nothing is under way."""
        if self.under_way(state):
            return None
        self._ahead_so_far.clear()
        try:
            self._ending_well.update(self._to_the_end(state))
        except Stuck as stuck:
            return Finding(str(stuck), tuple(self._ahead_so_far))
        return None

    def _to_the_end(self, state: State) -> list[State]:
        """Go on until no timer runs; return the states on the way, up to one that ends well."""
        on_the_way: list[State] = []
        for _ in range(ROUNDS):
            if state in self._ending_well:
                return on_the_way
            on_the_way.append(state)
            state = self._drained(state)
            if state in self._ending_well:
                return on_the_way
            on_the_way.append(state)
            if not any(self.local(state, k).timers for k in self.group):
                violation = self._undelivered(state)
                if violation:
                    raise Stuck(violation)
                return on_the_way
            state = self._after_every_timer(state)
            if state in on_the_way:  # and so on for ever
                break
        raise Stuck(self._undelivered(state) or "I7: they send without end")

    def _after_every_timer(self, state: State) -> State:
        """Every timer passes once, and what is sent arrives."""
        for k in self.group:
            for kind, what in self.local(state, k).timers:
                if (kind, what) in self.local(state, k).timers:
                    state = self._drained(self._go_on(state, (k, kind, what, -1)))
        return state

    def _drained(self, state: State) -> State:
        """Everything that is under way arrives, everything that is owed is said."""
        for _ in range(STEPS):
            if self.is_calm(state):
                return state
            state = self._go_on(state, self._next(state))
        raise Stuck(self._undelivered(state) or "I7: acknowledgements without end")

    def _next(self, state: State) -> Action:
        """The oldest PDU of some queue arrives, or else somebody acknowledges."""
        for queue, k in zip(self.queues, self.receivers, strict=True):
            if state[queue]:
                return k, RECEIVE, state[queue][0], queue
        k = next(k for k in self.group if self.local(state, k).acks)
        return k, ACK, 0, -1

    def _go_on(self, state: State, action: Action) -> State:
        if len(self._ahead_so_far) <= AHEAD:
            self._ahead_so_far.append(action)
        after, violation = self._after(state, action)
        if violation:
            raise Stuck(violation)
        return after

    def _undelivered(self, state: State) -> str:
        for source in self.group:
            for number, to in enumerate(self.local(state, source).submitted):
                data = message(source, number, to)
                for k in self.group:
                    delivered = self.local(state, k).delivered
                    if to >> k & 1 and not any(each.data == data for each in delivered):
                        return f"I7: {k} never delivers {data.decode()}"
        return ""

    # -- in words --------------------------------------------------------------------------

    def explain(
        self, states: Sequence[State], steps: Sequence[Action], finding: Finding
    ) -> tuple[str, list[str]]:
        lines = [self._line(action) for action in (*steps, *finding.ahead[:AHEAD])]
        if len(finding.ahead) > AHEAD:
            lines.append("… and so on")
        return finding.violation, lines

    def _line(self, action: Action) -> str:
        k, kind, what, _ = action
        if kind == SUBMIT:
            to = [other for other in self.group if what >> other & 1]
            return f"{k} submits a message" + (f" to {to}" if to != list(self.group) else "")
        if kind in (RECEIVE, LOSE):
            source, pdu = self.items[what]
            verb = "gets" if kind == RECEIVE else "loses"
            return f"{k} {verb} from {source}: {describe(pdu)}"
        if kind == GAP:
            return f"{k}: t_wait for {what} passes"
        return f"{k}: {'t_ack' if kind == ACK else 't_stat' if kind == STAT else 't_rst'} passes"


class Failures:
    """What becomes of a cluster if one of its members stops for good.

    Whatever is under way is lost; the others say what they hold and hand over the rest (TR-16).
    Then all of them must have been given the same, and what is given back to its submitter nobody
    may have.  It remembers what it has looked at: the same states of the others, whatever is under
    way.
    """

    def __init__(self, members: list[Member], total: bool) -> None:
        self.members = members
        self.total = total
        self._known_disagreement = cache(self._disagreement)

    def violation(self, states: tuple[int, ...]) -> str:
        """Return what survivors would disagree on, whoever fails in these states of the members."""
        for failed in range(len(states)):
            others = tuple((k, state) for k, state in enumerate(states) if k != failed)
            disagreement = self._known_disagreement(others)
            if disagreement:
                return f"I2: if {failed} fails now {disagreement}"
        return ""

    def _disagreement(self, survivors: tuple[tuple[int, int], ...]) -> str:
        """Return what members in these states would disagree on if they were left alone."""
        states = dict(survivors)
        others = tuple(states)
        engines = {k: self.members[k].engine(state) for k, state in survivors}
        tails = {k: engine.tail(others) for k, engine in engines.items()}
        delivered: dict[int, tuple[Delivered, ...]] = {}
        returned: dict[bytes, int] = {}
        for k, engine in engines.items():
            engine.flush(tails)
            rest = each_delivered(engine.take().deliveries)
            delivered[k] = self.members[k].locals[states[k]].delivered + rest
            returned |= {data: k for bundle in engine.undelivered() for data in bundle}
        received = {k: {each.data for each in log} for k, log in delivered.items()}
        for data in sorted(set().union(*received.values())):
            for k in others:
                if destinations_of(data) >> k & 1 and data not in received[k]:
                    return f"{k} is not given {data.decode()}, which another was"
            if data in returned:
                return f"{returned[data]} gets {data.decode()} back, which somebody was given"
        for k, log in delivered.items():
            if len(log) > len(received[k]):
                return f"{k} is given something twice"
            if self.total and log != delivered[others[0]]:
                return f"{others[0]} and {k} disagree on the order"
        return ""
