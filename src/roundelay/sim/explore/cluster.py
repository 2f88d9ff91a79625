"""Every run of a small cluster, on the engines that ship.

    >>> found = explore_cluster(ClusterScope(protocol="po", sites=2, messages=1, losses=1))
    >>> found.complete, found.violations
    (True, ())

The network is what the protocols ask for.  MC: what one member sends to another arrives in order,
if it arrives.  1C (`to-channel`): every member sees one sequence, its own PDUs in it, each at its
own pace and but for what it has lost.  Messages are submitted by anybody at any moment, to any
destinations (SPO); deliveries happen in any order that the network allows; any copy may be lost,
a member's own on one channel, too, `losses` of them in all.  t_ack may pass at any moment.  The
other timers are long: they pass when nothing is under way and nobody has anything to acknowledge,
in any order, and `early` times also before that.

What is looked at, in every state that is met (`_ahead` says which are not):

I1, I4  what two members deliver is one sequence (TO); each source's messages come in their order,
        once, at their destinations only (PO, SPO)
I8      AL and PAL never fall; nobody believes of another that it has what it lacks; nobody
        acknowledges what was never sent; what is acknowledged at one member can be
        pre-acknowledged at every destination (phase three)
I2      with `fails`: whoever stops for good now, the others end alike (`cluster_fails`)
I7      from every state in which nothing is under way, if nothing more is lost and every timer
        passes now and then, everything is delivered and the network falls silent
TR-15   nobody gives up

The search is breadth first, so a violation is found after as few steps as can be; for I7, with the
steps that follow when nothing more is lost.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Struct

from roundelay.core.cluster.config import ClusterConfig
from roundelay.core.engine import ACKNOWLEDGED, EVERYONE
from roundelay.core.errors import ConfigError
from roundelay.core.families import CLUSTERS, FAMILIES, PO, TOTAL
from roundelay.sim.explore.cluster_failures import Failures
from roundelay.sim.explore.cluster_states import (
    ACK,
    GAP,
    RECEIVE,
    STAT,
    SUBMIT,
    Items,
    Local,
    Member,
    Move,
    Said,
    meant_for,
    message,
)
from roundelay.sim.explore.explorer import TICK, Progress, Result, Violation
from roundelay.sim.explore.network import describe

if TYPE_CHECKING:
    from roundelay.sim.mutants.mutant import Mutant

MAX_STATES: Final = 2_000_000
"""About a gigabyte."""

ROUNDS: Final = 50
"""So often every timer passes before a cluster counts as stuck."""

STEPS: Final = 2000
"""So many PDUs arrive, and debts are paid, before they count as endless."""

AHEAD: Final = 60
"""So many steps of what goes on for ever are printed."""

LOSE: Final = "lose"

State = tuple[Any, ...]
"""Number of each member's state, content of each queue, losses left, early timers left."""

Outcome = tuple[tuple[tuple[Said, ...], ...], int]
"""What each member has delivered when nothing is under way, and losses left."""

Action = tuple[int, str, int, int]
"""Member, kind of step, what it is about, and the queue that an item comes from, or -1."""


class ClusterScope(Struct, frozen=True, kw_only=True):
    """Bounds of one exploration."""

    protocol: str = PO
    sites: int = 2
    messages: int = 2
    """Messages submitted in total, by any member at any moment."""
    losses: int = 1
    """Copies lost in total."""
    early: int = 0
    """Times that a long timer passes while something is under way."""
    window: int = 1
    """W: a member's messages that may be under way at a time."""
    deliver_at: str = ACKNOWLEDGED
    """The stage at which messages are handed over."""
    fails: int = 0
    """1: in every state that is met, each member in turn stops for good."""

    def check(self) -> Self:
        """Raise ConfigError unless all bounds make sense."""
        if self.protocol not in CLUSTERS:
            raise ConfigError("protocol", self.protocol, " or ".join(CLUSTERS))
        for field, least, most in (
            ("sites", 2, 5), ("messages", 0, 9), ("losses", 0, 9), ("early", 0, 9),
            ("window", 1, 9), ("fails", 0, 1),
        ):  # fmt: skip
            value = getattr(self, field)
            if not least <= value <= most:
                raise ConfigError(field, value, f"a whole number from {least} to {most}")
        return self

    def config(self) -> ClusterConfig:
        """All timers are in the future, and t_wait is too short to hold a repetition back."""
        return ClusterConfig(
            ack_ns=1, wait_ns=1, stat_ns=1, reset_ns=1, attempts=2, window=self.window,
            deliver_at=self.deliver_at,
        )  # fmt: skip

    def command(self, mutant: str = "") -> str:
        """The command line that explores this.

        >>> ClusterScope(protocol="spo", sites=3).command()
        'roundelay explore --protocol spo --sites 3 --messages 2 --losses 1'
        """
        line = (
            f"roundelay explore --protocol {self.protocol} --sites {self.sites} "
            f"--messages {self.messages} --losses {self.losses}"
        )
        line += f" --early {self.early}" if self.early else ""
        line += f" --window {self.window}" if self.window != 1 else ""
        line += f" --fails {self.fails}" if self.fails else ""
        line += f" --deliver-at {self.deliver_at}" if self.deliver_at != ACKNOWLEDGED else ""
        return f"{line} --mutant {mutant}" if mutant else line


def explore_cluster(
    scope: ClusterScope,
    *,
    mutant: Mutant | None = None,
    max_states: int = MAX_STATES,
    progress: Progress | None = None,
) -> Result:
    """Look at every run in `scope`; ends with the first violation, or beyond `max_states`."""
    broken = None if mutant is None else mutant.site_class
    site_class = broken or FAMILIES[scope.check().protocol].engine
    return ClusterSearch(scope, site_class, max_states, progress).run()


class ClusterSearch:
    """One search."""

    def __init__(
        self,
        scope: ClusterScope,
        site_class: type[Any],
        max_states: int = MAX_STATES,
        progress: Progress | None = None,
        reduced: bool = True,
    ) -> None:
        self.scope = scope
        # What is put off leads to the same states in the end, but not through all on the way.
        self.reduced = reduced and not scope.fails
        self.max_states = max_states
        self.progress = progress
        self.n = n = scope.sites
        self.group = tuple(range(n))
        self.everyone = (1 << n) - 1
        family = FAMILIES[scope.protocol]
        self.one_channel = family.one_channel
        self.final = scope.deliver_at == ACKNOWLEDGED
        # Before the last stage only channel mode has one order for all.
        self.total = self.one_channel or (self.final and family.order == TOTAL)
        self.items = Items()
        config = scope.config().check(n)
        self.members = [Member(k, self.group, config, site_class, self.items) for k in self.group]
        # Queues: one per ordered pair of members, or on one channel one per receiver.
        self.receivers = self.group if self.one_channel else self.group * n
        self.queues = range(n, n + len(self.receivers))
        self.losses, self.early = self.queues.stop, self.queues.stop + 1
        self.destinations = (
            tuple(range(1, 1 << n)) if family.selective else (self.everyone,)
        )  # fmt: skip
        self.numbers: dict[State, int] = {}
        self.parents = array("q")
        self.actions: list[Action | None] = []
        self.failures = Failures(self.members, self.total) if scope.fails else None
        self._pairs: dict[tuple[int, int, int, int], str] = {}
        self._calmed: set[State] = set()  # states from which all ends well
        self.outcomes: set[Outcome] = set()
        self._going_on: list[Action] = []  # how it went on from where a search looked ahead

    # -- the search ------------------------------------------------------------------------

    def run(self) -> Result:
        """Step by step, until there is nothing new."""
        front = [self.begin()]
        self._meet(front[0], -1, None)
        depth = 0
        while front:
            following: list[State] = []
            for state in front:
                number = self.numbers[state]
                if self.progress is not None and number % TICK == 0:
                    self.progress(len(self.numbers), depth, len(front) + len(following))
                wrong = self.unfinished(state)
                if wrong:
                    return self._told(number, None, wrong, depth)
                for action in self.actions_in(state):
                    after, wrong = self.step(state, action)
                    if wrong:
                        return self._told(number, action, wrong, depth + 1)
                    if after not in self.numbers:
                        self._meet(after, number, action)
                        following.append(after)
                if len(self.numbers) > self.max_states:
                    return Result(len(self.numbers), depth, False, ())
            depth += bool(following)
            front = following
        return Result(len(self.numbers), depth, True, ())

    def begin(self) -> State:
        """Nothing has happened yet, but for what members say when they are made."""
        state: list[Any] = [member.first.to for member in self.members]
        state += [()] * len(self.receivers) + [self.scope.losses, self.scope.early]
        for member in self.members:
            self._send(state, member.me, member.first)
        return tuple(state)

    def _meet(self, state: State, parent: int, action: Action | None) -> None:
        self.numbers[state] = len(self.numbers)
        self.parents.append(parent)
        self.actions.append(action)

    def local(self, state: State, k: int) -> Local:
        return self.members[k].locals[state[k]]

    # -- what may happen -------------------------------------------------------------------

    def actions_in(self, state: State) -> Iterator[Action]:
        """Everything that may happen next, but for what may as well happen later."""
        locals_ = [self.local(state, k) for k in self.group]
        submit = sum(len(local.submitted) for local in locals_) < self.scope.messages
        ahead = self._ahead(state, locals_, submit)
        for queue, k in zip(self.queues, self.receivers, strict=True):
            if state[queue] and k in ahead:
                item = state[queue][0]
                yield k, RECEIVE, item, queue
                if state[self.losses]:
                    yield k, LOSE, item, queue
        long_ones = state[self.early] or self.calm(state)
        for k in ahead:
            if submit:
                for to in self.destinations:
                    yield k, SUBMIT, to, -1
            if locals_[k].acks:
                yield k, ACK, 0, -1
            if long_ones:
                for kind, what in locals_[k].timers:
                    yield k, kind, what, -1

    def _ahead(self, state: State, locals_: list[Local], submit: bool) -> Sequence[int]:
        """The members whose steps have to be tried now.

        Steps of different members commute: each changes one member, takes from the head of its
        queues and adds to the tail of others'.  So if nothing that others do can change what one
        member may do next, its steps may all be tried first, and those of the others after them.
        Every state in which nothing is under way is still met, for what has come to that member
        has to be taken, or lost, on every way there.

        MC: something has come from each other member; what comes next from each is settled.  1C:
        what is next is settled, but the order in which members send matters, so the member must
        have nothing to send.
        """
        if not self.reduced:
            return self.group
        if self.one_channel:
            if submit or state[self.early]:
                return self.group
            for k in self.group:
                queue = state[self.n + k]
                if queue and not locals_[k].acks:
                    move = self.members[k].move(state[k], (RECEIVE, queue[0]))
                    if not move.sends and not move.wrong:
                        return (k,)
            return self.group
        n = self.n
        for k in self.group:
            if all(state[n + other * n + k] for other in self.group if other != k):
                return (k,)
        return self.group

    def calm(self, state: State) -> bool:
        """Nothing is under way, and nobody has anything to acknowledge."""
        return not any(state[queue] for queue in self.queues) and not any(
            self.local(state, k).acks for k in self.group
        )

    def step(self, state: State, action: Action) -> tuple[State, str]:
        """The state after `action`, and what is wrong with it."""
        k, kind, what, queue = action
        after = list(state)
        if queue >= 0:
            after[queue] = state[queue][1:]
        if kind == LOSE:
            after[self.losses] -= 1
            return tuple(after), ""
        if kind not in (SUBMIT, RECEIVE, ACK) and not self.calm(state):
            after[self.early] -= 1
        move = self.members[k].move(state[k], (kind, what))
        if move.wrong:
            return state, move.wrong
        after[k] = move.to
        self._send(after, k, move)
        wrong = self.wrong(after, k)
        if not wrong and self.failures is not None:
            wrong = self.failures.wrong(tuple(after[: self.n]))
        return tuple(after), wrong

    def _send(self, after: list[Any], k: int, move: Move) -> None:
        for dst, item in move.sends:
            for other in self.group if dst == EVERYONE else (dst,):
                if self.one_channel:
                    after[self.n + other] += (item,)
                elif other != k:
                    after[self.n + k * self.n + other] += (item,)

    # -- what must be so -------------------------------------------------------------------

    def wrong(self, state: list[Any], k: int) -> str:
        """What does not fit together after a step of member k, or ""."""
        for other in self.group:
            for pair in ((k, state[k], other, state[other]), (other, state[other], k, state[k])):
                found = self._pairs.get(pair)
                if found is None:
                    found = self._pairs[pair] = self._misfit(*pair)
                if found:
                    return found
        return ""

    def _misfit(self, i: int, here: int, k: int, there: int) -> str:
        """What member i in one state and member k in another cannot both be right in."""
        one, other = self.members[i].locals[here], self.members[k].locals[there]
        # I4, I8: of k's messages i delivers those meant for it, in their order, each once.
        due = [message(k, m, to) for m, to in enumerate(other.submitted) if to >> i & 1]
        heard = [said.data for said in one.said if said.source == k]
        if heard != due[: len(heard)]:
            return f"I4: {i} delivers {heard} of {k}'s {due}"
        if self.total:
            both = list(zip(one.said, other.said, strict=False))
            for place, (mine, theirs) in enumerate(both):
                if mine != theirs or mine.position != (place if self.final else -1):
                    return f"I1: at {place} {i} delivers {mine.data!r}, and {k} {theirs.data!r}"
        if one.epoch != other.epoch:
            return ""
        if one.treq[k] > other.seq:
            return f"I8: {i} has PDUs below {one.treq[k]} of {k}, which is at {other.seq}"
        for j in self.group:
            has = other.seq if j == k else other.treq[j]
            if one.al[j][k] > has:
                return f"I8: {i} believes that {k} has all of {j} below {one.al[j][k]}, not {has}"
        phases = self.final and not self.one_channel
        return self._phase_three(i, one, k, other) if phases else ""

    def _phase_three(self, i: int, one: Local, k: int, other: Local) -> str:
        """PO-T2, SPO-T2: what i has delivered k can pre-acknowledge, if it concerns it."""
        for said in one.said:
            source, to = said.source, meant_for(said.data)
            if not (to | 1 << source) >> k & 1:
                continue
            short = [m for m in self.group if to >> m & 1 and other.al[source][m] <= said.number]
            if short:
                return f"I8: {i} delivers {said.data!r}, and {k} cannot tell that {short} have it"
        return ""

    # -- that it ends well -----------------------------------------------------------------

    def unfinished(self, state: State) -> str:
        """I7: what is never delivered, or never ends, once nothing is under way."""
        if any(state[queue] for queue in self.queues):
            return ""
        said = tuple(self.local(state, k).said for k in self.group)
        self.outcomes.add((said, state[self.losses]))
        self._going_on.clear()
        way = []
        wrong = ""
        for _ in range(ROUNDS):
            if state in self._calmed:
                break
            way.append(state)
            state, wrong = self._settled(state)
            if wrong or state in self._calmed:
                break
            way.append(state)
            if not any(self.local(state, k).timers for k in self.group):
                wrong = self._undelivered(state)
                break
            state, wrong = self._round(state)
            if state in way:  # and so on for ever
                wrong = wrong or self._undelivered(state) or "I7: they send without end"
            if wrong:
                break
        else:
            wrong = self._undelivered(state) or "I7: they send without end"
        if not wrong:
            self._calmed.update(way)
        return wrong

    def _round(self, state: State) -> tuple[State, str]:
        """Every timer passes once, and what is sent arrives."""
        for k in self.group:
            for kind, what in self.local(state, k).timers:
                if (kind, what) not in self.local(state, k).timers:
                    continue
                state, wrong = self._go_on(state, (k, kind, what, -1))
                if not wrong:
                    state, wrong = self._settled(state)
                if wrong:
                    return state, wrong
        return state, ""

    def _settled(self, state: State) -> tuple[State, str]:
        """Everything that is under way arrives, everything that is owed is said."""
        wrong = ""
        for _ in range(STEPS):
            if wrong or self.calm(state):
                return state, wrong
            state, wrong = self._next(state)
        return state, self._undelivered(state) or "I7: acknowledgements without end"

    def _next(self, state: State) -> tuple[State, str]:
        """The oldest PDU of some queue arrives, or else somebody acknowledges."""
        for queue, k in zip(self.queues, self.receivers, strict=True):
            if state[queue]:
                return self._go_on(state, (k, RECEIVE, state[queue][0], queue))
        k = next(k for k in self.group if self.local(state, k).acks)
        return self._go_on(state, (k, ACK, 0, -1))

    def _go_on(self, state: State, action: Action) -> tuple[State, str]:
        if len(self._going_on) <= AHEAD:
            self._going_on.append(action)
        return self.step(state, action)

    def _undelivered(self, state: State) -> str:
        for source in self.group:
            for number, to in enumerate(self.local(state, source).submitted):
                data = message(source, number, to)
                for k in self.group:
                    said = self.local(state, k).said
                    if to >> k & 1 and not any(one.data == data for one in said):
                        return f"I7: {k} never delivers {data.decode()}"
        return ""

    # -- telling ---------------------------------------------------------------------------

    def _told(self, number: int, last: Action | None, wrong: str, depth: int) -> Result:
        """The result of a search that found something."""
        way = [last] if last else self._going_on[AHEAD - 1 :: -1]
        while number >= 0:
            action = self.actions[number]
            if action is not None:
                way.append(action)
            number = self.parents[number]
        invariant, _, detail = wrong.partition(": ")
        steps = [self._line(action) for action in reversed(way)]
        if last is None and len(self._going_on) > AHEAD:
            steps.append("… and so on")
        violation = Violation(invariant, detail, depth, tuple(steps))
        return Result(len(self.numbers), depth, False, (violation,))

    def _line(self, action: Action) -> str:
        k, kind, what, _ = action
        if kind == SUBMIT:
            to = [other for other in self.group if what >> other & 1]
            return f"{k} submits a message" + (f" to {to}" if to != list(self.group) else "")
        if kind in (RECEIVE, LOSE):
            source, pdu = self.items.all[what]
            verb = "gets" if kind == RECEIVE else "loses"
            return f"{k} {verb} from {source}: {describe(pdu)}"
        if kind == GAP:
            return f"{k}: t_wait for {what} passes"
        return f"{k}: {'t_ack' if kind == ACK else 't_stat' if kind == STAT else 't_rst'} passes"
