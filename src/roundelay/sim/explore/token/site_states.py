"""One site in the explorer: its states, and the steps between them.

The engine is the shipped one.  What a site does depends on its state and the input alone, so each
step is carried out once and remembered: a `Local` is one state of one site, and each `Move` leads
to another.  That makes the search fast: the same local step is part of a great many steps of the
group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from msgspec import Struct, structs

from roundelay.core.bundle import Bundle
from roundelay.core.engine import COMMITTED, NEVER, Delivery
from roundelay.core.token.config import REJOIN
from roundelay.core.token.pdu import DATA, Ack, B, Confirm, Invite, Version
from roundelay.core.token.phases import NORMAL
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import UNSYNCED, Stable, undelivered
from roundelay.sim.explore.pdus import Numbered
from roundelay.sim.explore.scope import Scope
from roundelay.sim.explore.snapshot import Frozen, Snapshots, Still
from roundelay.sim.explore.token.fingerprint import TRIED, disk_fingerprint, fingerprint
from roundelay.sim.explore.token.network import Pool, bits

DOWN: Final = "DOWN"  # a phase that only the explorer knows
LONG_AGO: Final = -(1 << 60)

# What a move costs, packed: seven bits and a guard for each bound of the scope.
FREE: Final = 0
ATTEMPT: Final = 1
MESSAGE: Final = 1 << 8
CRASH: Final = 1 << 16
WIPE: Final = 1 << 24
RESTART: Final = 1 << 32
GUARD: Final = 0x8080808080


def budget_of(scope: Scope) -> int:
    """Return everything a run may cost."""
    attempts, messages = scope.attempts * ATTEMPT, scope.messages * MESSAGE
    crashes, wipes = scope.crashes * CRASH, scope.wipes * WIPE
    return attempts + messages + crashes + wipes + scope.restarts * RESTART


def affordable(cost: int, budget: int) -> bool:
    """Return whether no part of `cost` is above that part of `budget`.

    >>> affordable(CRASH, CRASH + ATTEMPT), affordable(CRASH, 5 * ATTEMPT)
    (True, False)
    """
    return ((budget | GUARD) - cost) & GUARD == GUARD


# -- states and moves ------------------------------------------------------------------------

Deliveries = tuple[Delivery, ...]
"""Everything a site has ever delivered, before restarts too."""


@dataclass(slots=True, eq=False)
class Profile:
    """What others need to know of a site to tell which PDUs can still matter.

    There is one object for equal contents (`Registry`), so that they compare at once.
    """

    phase: str
    attempt: Version | None
    tl: Version
    max_joined: Version


@dataclass(slots=True, eq=False)
class Fact:
    """What can be held against what another site did: I1 and I3 are about pairs of these.

    One object for equal contents, too.
    """

    delivered: Deliveries
    committed: tuple[Version, int] | None
    """In list `tl` all below `cnts`; it takes nothing from later ones."""
    list: tuple[Version, int] | None
    """The list `tl` that starts at `start_ts` has a token."""


class Registry:
    """The one object of each content."""

    def __init__(self) -> None:
        self.profile = cache(Profile)
        self.fact = cache(Fact)


# Kinds of input.
START: Final = "start"
RECEIVE: Final = "receive"
TIMER: Final = "timer"
REFORM: Final = "reform"
SUBMIT: Final = "submit"
CRASHES: Final = "crash"
RESTARTS: Final = "restart"

# What is left on the disk after a crash.
WHOLE: Final = "everything, and it is known that it is"
EVERYTHING: Final = "everything"
SYNCED: Final = "what was synced"
NOTHING: Final = "nothing"


class Input(Struct, frozen=True):
    """What makes a site move."""

    kind: str
    timer: str = ""
    items: tuple[int, ...] = ()
    """Numbers of the PDUs that arrive, one or two."""
    torn_after: int = 0
    """Not 0: it crashes after so many records of that batch; nothing of it is sent."""
    left: str = ""
    """What is left on the disk after a crash; of a torn batch, what was written."""
    restarts: bool = False
    """A crash: it restarts in the same step."""


class Move(Struct, frozen=True):
    """A step of one site to state `to`; `broken` names the invariant it violates, if any."""

    to: int
    sends: int
    cost: int
    input: Input
    broken: str = ""


class Memory(Struct, frozen=True):
    """What a site takes along from state to state, beside its engine."""

    disk: Stable | None
    """None: lost."""
    synced: Stable | None
    """What surely is on it."""
    delivered: Deliveries = ()
    submitted: int = 0
    """The number of its messages."""
    life: int = 0
    """How often the disk was lost; -1: retired."""


@dataclass(slots=True, eq=False)
class Local:
    """One state of one site; `frozen` is None while it is down."""

    id: int
    frozen: Frozen | None
    profile: Profile
    fact: Fact
    memory: Memory
    tested: int = 0  # PDUs whose effect here is known
    effective: list[tuple[int, Move]] = field(default_factory=list)
    """PDUs needed, and what they bring about."""
    replies: list[tuple[int, Move]] = field(default_factory=list)
    """The same, of moves that change nothing but the network."""
    inner: list[Move] | None = None  # moves without a PDU

    def moves(self, inbox: int) -> list[Move]:
        """Return the moves to other states with PDUs of `inbox`, or without any; `learn` first."""
        assert self.inner is not None
        return [move for needed, move in self.effective if needed & inbox == needed] + self.inner

    def replies_to(self, inbox: int) -> list[Move]:
        """Return the moves with PDUs of `inbox` that change nothing but the network."""
        return [move for needed, move in self.replies if needed & inbox == needed]


class Member:
    """All states of one site that were met, and its moves."""

    timers: tuple[str, ...] = TRIED
    """Those to try."""

    def __init__(self, me: int, scope: Scope, pool: Pool, registry: Registry) -> None:
        self.me = me
        self.group = tuple(range(scope.sites))
        self.scope = scope
        self.pool = pool
        self.registry = registry
        self.config = scope.config()
        self.config_after_loss = scope.config(REJOIN)
        self.budget = budget_of(scope)
        self.locals: list[Local] = []
        self._keys: Numbered[Any] = Numbered()  # what tells states apart
        self._snapshots = Snapshots(TokenSite(me, self.group, self.config, Still(0)))
        self.without_versions = cache(self._without_versions)

    def begin(self) -> Move:
        """The move into the first state."""
        engine = TokenSite(self.me, self.group, self.config, Still(0))
        disk = Stable()
        down = self._local(0, None, Memory(disk, disk))
        return self.settled(down, engine, Input(START), FREE)[0]

    # -- moves ---------------------------------------------------------------------------------

    def learn(self, local: Local, inbox: int) -> None:
        """Make sure that all moves of `local` with PDUs of `inbox` are known."""
        if local.inner is None:
            local.inner = self._learned_inner(local)
        untested = inbox & ~local.tested
        if not untested:
            return
        local.tested |= untested
        if local.frozen is None:
            return
        engine = self._snapshots.thaw(local.frozen)
        for bit in bits(untested):
            needed = self.delivered_with(engine, bit)
            if not needed:
                continue
            numbers = tuple(single.bit_length() - 1 for single in [*bits(needed ^ bit), bit])
            for move in self.tried(local, Input(RECEIVE, items=numbers)):
                if move.to != local.id or move.broken:
                    local.effective.append((needed, move))
                elif move.sends:
                    local.replies.append((needed, move))

    def delivered_with(self, engine: TokenSite, bit: int) -> int:
        """Return the PDUs to deliver together with that one, or none if it can as well wait.

        A PDU that a site would only keep for later can be delivered later: it is still there.
        A stamp can wait for its turn, and for its message, which is in the network with it; to
        authorize a list early there is the CONFIRM of its first token site.  A message can wait
        until its stamp comes or the site holds the token, a CONFIRM for the stamp it confirms.
        """
        pdu = self.pool.item(bit).pdu
        if engine.phase != NORMAL:
            return bit
        if isinstance(pdu, Ack) and pdu.tl == engine.tl:
            if pdu.ts > engine.nts:
                return 0
            stamps_data = pdu.ts == engine.nts and pdu.kind == DATA
            if stamps_data and (pdu.s, pdu.n) not in engine.ordering.qb:
                return bit | self.pool.messages.get((pdu.tl, pdu.s, pdu.n), 0)
        elif isinstance(pdu, B) and pdu.tl == engine.tl:
            return bit if engine.holding and pdu.n <= engine.log.next_num[pdu.s] else 0
        elif isinstance(pdu, Confirm) and pdu.tl == engine.tl:
            return bit if pdu.ts < engine.nts else 0
        return bit

    def may_submit(self, engine: TokenSite) -> bool:
        """Return whether to submit now: a message that has to wait can as well come later."""
        return engine.phase == NORMAL and engine.own.outstanding < 0

    def _learned_inner(self, local: Local) -> list[Move]:
        inner: list[Move] = []
        known = set()
        for move in self._inner_moves(local):
            effect = (move.to, move.sends, move.cost, move.broken)
            changes = move.to != local.id or bool(move.broken)
            if effect in known or not (changes or move.sends):
                continue
            known.add(effect)
            if changes:
                inner.append(move)
            else:
                local.replies.append((0, move))
        return inner

    def _inner_moves(self, local: Local) -> list[Move]:
        if local.memory.life < 0:  # retired
            return []
        if local.frozen is None:
            return self.restarted(local.memory, Input(RESTARTS), FREE)
        engine = self._snapshots.thaw(local.frozen)
        moves: list[Move] = []
        for due in self.timers:
            if getattr(engine.timers, due) < NEVER:
                moves += self.tried(local, Input(TIMER, due))
        moves += self.tried(local, Input(REFORM))
        if local.memory.submitted < self.scope.messages and self.may_submit(engine):
            moves += self.tried(local, Input(SUBMIT), MESSAGE)
        for disk, cost in ((WHOLE, RESTART), (EVERYTHING, CRASH), (SYNCED, CRASH), (NOTHING, WIPE)):
            if affordable(cost, self.budget) and (disk != SYNCED or not self.config.sync_commits):
                moves += self.crashed(local.memory, Input(CRASHES, left=disk), cost)
        return moves

    def tried(self, local: Local, how: Input, cost: int = FREE) -> list[Move]:
        """Return the moves of an input that is no crash: to its end, or to a crash amid it."""
        engine, broken = self.acted(local, how)
        if broken:
            return [Move(local.id, 0, cost, how, broken)]
        return self.settled(local, engine, how, cost)

    def acted(self, local: Local, how: Input) -> tuple[TokenSite, str]:
        """Return an engine after that input, and what it noticed by itself, or ''."""
        assert local.frozen is not None
        engine: TokenSite = self._snapshots.thaw(local.frozen)
        try:
            if how.kind == RECEIVE:
                for number in how.items:
                    item = self.pool.items[number]
                    engine.receive(item.pdu, item.source, 0)
            elif how.kind == TIMER:
                _fire(engine, how.timer)
            elif how.kind == REFORM:
                engine.reform(0)
            else:
                engine.submit(Bundle.of(message(self.me, local.memory.submitted)), 0)
            engine.check_invariants()
        except Exception as error:  # a bug of an engine is a finding, whatever it looks like
            return engine, _engine_error(error)
        return engine, ""

    def crashed(self, memory: Memory, how: Input, cost: int) -> list[Move]:
        """Return the moves of a crash.

        It keeps the disk, or all of it that was synced, or nothing of it.  Of a process that died
        alone it is known that its disk is whole; of a machine it is not.
        """
        assert memory.disk is not None
        if how.left == NOTHING:
            disk = None
        elif how.left == SYNCED:
            disk = memory.synced
        else:
            disk = copied_disk(memory.disk, how.left == WHOLE)
        life = memory.life + (disk is None)
        return self.gone(structs.replace(memory, disk=disk, synced=disk, life=life), how, cost)

    def gone(self, memory: Memory, how: Input, cost: int) -> list[Move]:
        """Return the moves of a site that is down.

        One that stays down is one that does not move; so it restarts at once, or never.
        """
        return self.restarted(memory, structs.replace(how, restarts=True), cost)

    def restarted(self, memory: Memory, how: Input, cost: int) -> list[Move]:
        """The node hands over what the disk says was committed, then makes a new engine."""
        disk, config, broken = memory.disk, self.config, ""
        if disk is None:
            fresh, config = Stable(), self.config_after_loss
            memory = structs.replace(memory, disk=fresh, synced=fresh)
        else:
            recorded, _ = undelivered(disk, 0)
            delivered, broken = self._delivered(memory.delivered, recorded, again=True)
            memory = structs.replace(memory, delivered=delivered)
        try:
            engine = TokenSite(self.me, self.group, config, Still(memory.life), 0, disk)
        except Exception as error:
            broken = _engine_error(error)
        if broken:
            return [Move(0, 0, cost, how, broken)]
        return self.settled(self._local(0, None, memory), engine, how, cost)

    # -- what a step brought about ---------------------------------------------------------------

    def settled(self, old: Local, engine: TokenSite, how: Input, cost: int) -> list[Move]:
        """Carry out the effects; no move at all if they go beyond the timestamps in scope."""
        out = engine.take()
        sends = 0
        for destination, pdu, _ in out.sends:
            if isinstance(pdu, Ack) and pdu.ts >= self.scope.timestamps:
                return []
            if isinstance(pdu, Invite):
                cost |= ATTEMPT
            sends |= self.pool.bit(self.me, destination, pdu)
        memory = old.memory
        disk, synced = memory.disk, memory.synced
        submitted = memory.submitted + (cost & MESSAGE > 0)
        assert disk is not None
        torn: list[Move] = []
        if out.persists:
            disk = copied_disk(disk)
            for count, record in enumerate(out.persists, 1):
                disk.apply(record)
                last = count == len(out.persists)
                if not isinstance(record, UNSYNCED) or self.config.sync_commits:
                    synced = disk if last else copied_disk(disk)
                if not last and old.frozen is not None:
                    written = structs.replace(memory, disk=disk, submitted=submitted)
                    torn += self.torn(written, structs.replace(how, torn_after=count), cost)
        delivered, broken = self._delivered(memory.delivered, out.deliveries)
        broken = broken or self._list_violation(old, engine)
        to = self.intern(engine, Memory(disk, synced, delivered, submitted, memory.life))
        return [Move(to, sends, cost, how, broken), *torn]

    def torn(self, memory: Memory, how: Input, cost: int) -> list[Move]:
        """Return the moves of a crash amid a batch, some of whose records are on the disk."""
        moves: list[Move] = []
        for left, crash in ((EVERYTHING, CRASH), (WHOLE, RESTART)):
            if affordable(crash, self.budget):
                moves += self.crashed(memory, structs.replace(how, left=left), cost | crash)
        return moves

    def _delivered(
        self, before: Deliveries, deliveries: Iterable[Delivery], again: bool = False
    ) -> tuple[Deliveries, str]:
        """Return all deliveries, and how they break I1 or I4, as far as one site alone can.

        `again`: after a restart a site says what it said before; it must be the same.
        """
        once = self.config.sync_commits and not self.scope.wipes and not again
        broken = ""
        for delivery in map(_as_delivered, deliveries):
            if delivery.stage != COMMITTED:
                continue
            words = f"site {self.me} delivers {describe_delivery(delivery)}"
            rival = next((other for other in before if other.seq == delivery.seq), None)
            if rival is not None:
                if rival != delivery:
                    broken = f"I1: {words} after {describe_delivery(rival)}"
                elif once:
                    broken = f"I4: {words} again"
                continue
            if any(other.bundle == delivery.bundle for other in before):
                broken = f"I4: {words} a second time"
            if not delivery.bundle.data.startswith(b"%d." % delivery.source):
                broken = f"I4: {words}, which was never sent"
            before = (*before, delivery)
        return before, broken

    def _list_violation(self, old: Local, engine: TokenSite) -> str:
        """Return how `engine` breaks I3, as far as one site alone can, or ''."""
        if engine.tl < old.profile.tl and old.memory.life == 0:
            return f"I3: site {self.me} goes back from list {old.profile.tl} to {engine.tl}"
        if engine.token_list.authorized and 2 * len(engine.token_list.members) <= len(self.group):
            return f"I3: a minority, {engine.token_list.members}, forms list {engine.tl}"
        return ""

    def intern(self, engine: TokenSite | None, memory: Memory) -> int:
        """Return the number of a state; `engine` None: the site is down."""
        disk, synced, *rest = structs.astuple(memory)
        compares_disk = self.scope.crashes + self.scope.restarts > 0 or engine is None
        compares_synced = self.scope.crashes and not self.config.sync_commits
        key = (
            None if engine is None else self.fingerprint(engine),
            disk_fingerprint(disk) if disk is not None and compares_disk else None,
            disk_fingerprint(synced) if synced is not None and compares_synced else None,
            *rest,
        )
        number = self._keys.number(key)
        if number == len(self.locals):
            self.locals.append(self._local(number, engine, memory))
        return number

    def _local(self, number: int, engine: TokenSite | None, memory: Memory) -> Local:
        registry = self.registry
        if engine is None:
            disk = memory.disk or Stable()
            profile = registry.profile(DOWN, None, disk.tl, disk.max_joined)
            return Local(number, None, profile, registry.fact(memory.delivered, None, None), memory)
        committed = listed = None
        if engine.phase == NORMAL and engine.token_list.authorized:
            committed = (engine.tl, engine.cnts)
            listed = (engine.tl, engine.token_list.start_ts)
        joined = engine.reformation.max_joined
        profile = registry.profile(engine.phase, engine.reformation.attempt, engine.tl, joined)
        fact = registry.fact(memory.delivered, committed, listed)
        return Local(number, self._snapshots.freeze(engine), profile, fact, memory)

    def fingerprint(self, engine: TokenSite) -> tuple[Any, ...]:
        """Return what decides all later steps of `engine`."""
        return fingerprint(engine)

    def _without_versions(self, number: int) -> int:
        """Return the state of a site that has not heard of any version of others."""
        local = self.locals[number]
        if local.frozen is None:
            return number
        engine = self._snapshots.thaw(local.frozen)
        engine.reformation.seen_version = 0
        return self.intern(engine, local.memory)

    def retired(self, local: Local) -> int:
        """Return a state that does nothing any more; what was delivered counts for ever."""
        return self.intern(None, Memory(None, None, local.memory.delivered, -1, -1))


def _fire(site: TokenSite, due: str) -> None:
    """Let the timer `due` come."""
    timers, own = site.timers, site.own
    setattr(timers, due, 0)
    timers.heard = timers.progress = own.send_last = LONG_AGO
    if due == "request_due":
        for request in site.requests.pending.values():
            request[0] = 0
    site.on_timer(0)
    timers.heard = timers.progress = own.send_last = 0


def _engine_error(error: Exception) -> str:
    return f"engine: {type(error).__name__}: {error}"


def message(source: int, number: int) -> bytes:
    """Return what a site submits."""
    return b"%d.%d" % (source, number)


def copied_disk(stable: Stable, whole: bool = False) -> Stable:
    """A disk of its own; `whole`: whether a restart from it will know that nothing is missing."""
    new = object.__new__(stable.__class__)
    for name in Stable.__slots__:
        value = getattr(stable, name)
        setattr(new, name, value.copy() if isinstance(value, dict) else value)
    new.whole = whole
    return new


def _as_delivered(delivery: Delivery) -> Delivery:
    """Return what everybody is given, whether its sender knows it for its own life's or not."""
    return delivery if type(delivery) is Delivery else Delivery(*structs.astuple(delivery))


def describe_delivery(delivery: Delivery) -> str:
    """Return a delivery in words.

    >>> describe_delivery(Delivery(3, 1, 0, Bundle.of(b"1.0"), COMMITTED))
    "'1.0' (message 0 of site 1) as number 3"
    """
    data, source = delivery.bundle.data.decode(), delivery.source
    return f"'{data}' (message {delivery.number} of site {source}) as number {delivery.seq}"
