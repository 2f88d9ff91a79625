"""One site in the explorer: its states, and the steps between them.

The engine is the shipped one.  What a site does depends on its state and the input alone, so each
step is carried out once and remembered: a `Local` is one state of one site, and each `Move` leads
to another.  That makes the search fast: the same local step is part of a great many steps of the
group.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec import Struct, structs

from roundelay.core.bundle import Bundle
from roundelay.core.engine import COMMITTED, NEVER, Delivery
from roundelay.core.errors import InvariantBroken
from roundelay.core.token.config import REJOIN
from roundelay.core.token.pdu import DATA, Ack, B, Confirm, Invite, Version
from roundelay.core.token.phases import NORMAL
from roundelay.core.token.site import DUES, TokenSite
from roundelay.core.token.stable import UNSYNCED, Stable
from roundelay.sim.explore.engines import (
    TRIED,
    Still,
    copied_disk,
    fingerprint,
    fire,
    frozen,
    on_disk,
    thawed,
)
from roundelay.sim.explore.network import Pool, bits
from roundelay.sim.explore.scope import Scope

DOWN: Final = "DOWN"  # a phase that only the explorer knows

# What a move costs, packed: seven bits and a guard for each bound of the scope.
FREE: Final = 0
ATTEMPT: Final = 1
MESSAGE: Final = 1 << 8
CRASH: Final = 1 << 16
WIPE: Final = 1 << 24
RESTART: Final = 1 << 32
GUARD: Final = 0x8080808080


def purse(scope: Scope) -> int:
    """Everything a run may cost."""
    return (
        scope.attempts * ATTEMPT + scope.messages * MESSAGE + scope.crashes * CRASH
        + scope.wipes * WIPE + scope.restarts * RESTART
    )  # fmt: skip


def affordable(cost: int, purse: int) -> bool:
    """Whether no part of `cost` is above that part of `purse`.

    >>> affordable(CRASH, CRASH + ATTEMPT), affordable(CRASH, 5 * ATTEMPT)
    (True, False)
    """
    return ((purse | GUARD) - cost) & GUARD == GUARD


# -- states and moves ------------------------------------------------------------------------


class Profile:
    """What others need to know of a site to tell which PDUs can still matter.

    There is one object for equal contents (`Registry`), so that they compare at once.
    """

    __slots__ = ("attempt", "max_joined", "phase", "tl")

    def __init__(
        self, phase: str, attempt: Version | None, tl: Version, max_joined: Version
    ) -> None:
        self.phase = phase
        self.attempt = attempt
        self.tl = tl
        self.max_joined = max_joined


Said = tuple[Delivery, ...]
"""Everything a site has ever delivered, before restarts too."""

Outcome = tuple[Said, ...]
"""What each site has delivered, at the same time."""


class Fact:
    """What can be held against what another site did: I1 and I3 are about pairs of these.

    One object for equal contents, too.
    """

    __slots__ = ("committed", "list", "said")

    def __init__(
        self, said: Said, committed: tuple[Version, int] | None, list_: tuple[Version, int] | None
    ) -> None:
        self.said = said
        self.committed = (
            committed  # in list `tl` all below `cnts`; it takes nothing from later ones
        )
        self.list = list_  # the list `tl` that starts at `start_ts` has a token


class Registry:
    """The one object of each content."""

    def __init__(self) -> None:
        self._profiles: dict[tuple[Any, ...], Profile] = {}
        self._facts: dict[tuple[Any, ...], Fact] = {}

    def profile(
        self, phase: str, attempt: Version | None, tl: Version, max_joined: Version
    ) -> Profile:
        key = (phase, attempt, tl, max_joined)
        found = self._profiles.get(key)
        if found is None:
            found = self._profiles[key] = Profile(*key)
        return found

    def fact(
        self, said: Said, committed: tuple[Version, int] | None = None,
        list_: tuple[Version, int] | None = None,
    ) -> Fact:  # fmt: skip
        key = (said, committed, list_)
        found = self._facts.get(key)
        if found is None:
            found = self._facts[key] = Fact(*key)
        return found


class Input(Struct, frozen=True):
    """What makes a site move.

    kind: `receive` (items: numbers of the PDUs, one or two), `timer` (name), `reform`, `submit`,
    `crash` and `restart` (name: what is left on the disk).  `amid`: it crashes after so many
    records of that batch; nothing of it is sent, and with `whole` it is known that nothing else
    was written.  `again`: it restarts in the same step.
    """

    kind: str
    name: str = ""
    items: tuple[int, ...] = ()
    amid: int = 0
    again: bool = False
    whole: bool = False


class Move(Struct, frozen=True):
    """A step of one site to state `to`; `broken` names the invariant it violates, if any."""

    to: int
    sends: int
    cost: int
    input: Input
    broken: str = ""


# What is left on the disk after a crash.
WHOLE: Final = "everything, and it is known that it is"
EVERYTHING: Final = "everything"
SYNCED: Final = "what was synced"
NOTHING: Final = "nothing"


class Local:
    """One state of one site.  `ice` is None while it is down."""

    __slots__ = (
        "disk", "effective", "fact", "ice", "id", "inner", "life", "profile", "replies",
        "submitted", "synced", "tested",
    )  # fmt: skip

    def __init__(
        self, number: int, engine: TokenSite | None, disk: Stable | None, synced: Stable | None,
        said: Said, submitted: int, life: int, registry: Registry,
    ) -> None:  # fmt: skip
        self.id = number
        self.ice = None if engine is None else frozen(engine)
        self.disk = disk  # None: lost
        self.synced = synced  # what surely is on it
        self.submitted = submitted
        self.life = life  # how often the disk was lost; -1: retired
        if engine is None:
            kept = disk or Stable()
            self.profile = registry.profile(DOWN, None, kept.tl, kept.max_joined)
            self.fact = registry.fact(said)
        else:
            tl, listed = engine.tl, engine.phase == NORMAL and engine.authorized
            self.profile = registry.profile(
                engine.phase, engine.attempt, tl, engine.reformation.max_joined
            )
            self.fact = registry.fact(
                said,
                (tl, engine.cnts) if listed else None,
                (tl, engine.token_list.start_ts) if listed else None,
            )
        self.tested = 0  # PDUs whose effect here is known
        self.effective: list[tuple[int, Move]] = []  # (PDUs needed, what they bring about)
        self.replies: list[tuple[int, Move]] = []  # moves that change nothing but the network
        self.inner: list[Move] | None = None  # moves without a PDU


class Member:
    """All states of one site that were met, and its moves."""

    def __init__(
        self,
        me: int,
        scope: Scope,
        pool: Pool,
        registry: Registry,
        site_class: type[TokenSite],
        stable_class: type[Stable],
        key: Callable[[TokenSite], tuple[Any, ...]] = fingerprint,
    ) -> None:
        self.me = me
        self.group = tuple(range(scope.sites))
        self.scope = scope
        self.pool = pool
        self.registry = registry
        self.site_class = site_class
        self.stable_class = stable_class
        self.config = scope.config()
        self.config_after_loss = scope.config(REJOIN)
        self.plain = pool.plain
        self.locals: list[Local] = []
        self._index: dict[tuple[Any, ...], int] = {}
        self._fingerprint = key

    def begin(self) -> Move:
        """The move into the first state."""
        engine = self.site_class(self.me, self.group, self.config, Still(0))
        return self._settled(None, engine, Input("start"), FREE)[0]

    # -- moves ---------------------------------------------------------------------------------

    def learn(self, local: Local, inbox: int) -> None:
        """Make sure that all moves of `local` with PDUs of `inbox` are known."""
        if local.inner is None:
            local.inner = []
            self._learn_inner(local, local.inner)
        todo = inbox & ~local.tested
        if not todo:
            return
        local.tested |= todo
        if local.ice is None:
            return
        engine = thawed(local.ice)
        for bit in bits(todo):
            needed = bit if self.plain else self._worth_delivering(engine, bit)
            if not needed:
                continue
            numbers = tuple(one.bit_length() - 1 for one in [*bits(needed ^ bit), bit])
            items = [self.pool.items[number] for number in numbers]

            def arrive(site: TokenSite, items: list[Any] = items) -> None:
                for item in items:
                    site.receive(item.pdu, item.source, 0)

            for move in self._tried(local, arrive, Input("receive", items=numbers)):
                if move.to != local.id or move.broken:
                    local.effective.append((needed, move))
                elif move.sends:
                    local.replies.append((needed, move))

    def _worth_delivering(self, engine: TokenSite, bit: int) -> int:
        """The PDUs to deliver together with that one, or none if it can as well wait.

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
            if (
                pdu.ts == engine.nts
                and pdu.kind == DATA
                and (pdu.s, pdu.n) not in engine.ordering.qb
            ):
                return bit | self.pool.messages.get((pdu.tl, pdu.s, pdu.n), 0)
        elif isinstance(pdu, B) and pdu.tl == engine.tl:
            return bit if engine.holding and pdu.n <= engine.log.next_num[pdu.s] else 0
        elif isinstance(pdu, Confirm) and pdu.tl == engine.tl:
            return bit if pdu.ts < engine.nts else 0
        return bit

    def _learn_inner(self, local: Local, inner: list[Move]) -> None:
        moves: list[Move] = []
        if local.life < 0:
            return
        if local.ice is None:
            moves += self._restarted(local, Input("restart"), FREE)
        else:
            engine = thawed(local.ice)
            for due in DUES:
                if getattr(engine.timers, due) < NEVER and (self.plain or due in TRIED):
                    moves += self._tried(local, partial(fire, due=due), Input("timer", due))
            moves += self._tried(local, lambda site: site.reform(0), Input("reform"))
            # A message that would have to wait can as well be submitted later.
            free = engine.phase == NORMAL and engine.own.outstanding < 0
            if (free or self.plain) and local.submitted < self.scope.messages:
                bundle = Bundle.of(b"%d.%d" % (self.me, local.submitted))
                moves += self._tried(
                    local, lambda site: site.submit(bundle, 0), Input("submit"), MESSAGE
                )
            moves += self._crashed(local)
        known = set()
        for move in moves:
            what = (move.to, move.sends, move.cost, move.broken)
            if what in known or (move.to == local.id and not move.sends and not move.broken):
                continue
            known.add(what)
            if move.to == local.id and not move.broken:
                local.replies.append((0, move))
            else:
                inner.append(move)

    def _tried(
        self, local: Local, act: Callable[[TokenSite], None], how: Input, cost: int = FREE
    ) -> list[Move]:
        assert local.ice is not None
        engine = thawed(local.ice)
        try:
            act(engine)
            engine.check_invariants()
        except InvariantBroken as error:
            return [Move(local.id, 0, cost, how, f"engine: {error}")]
        except Exception as error:  # a bug of an engine is a finding, whatever it looks like
            return [Move(local.id, 0, cost, how, f"engine: {type(error).__name__}: {error}")]
        return self._settled(local, engine, how, cost)

    def _crashed(self, local: Local) -> list[Move]:
        """A crash keeps the disk, or all of it that was synced, or nothing of it.

        Of a process that died alone it is known that its disk is whole; of a machine it is not.
        """
        moves: list[Move] = []
        assert local.disk is not None
        if self.scope.restarts:
            whole = copied_disk(local.disk, whole=True)
            moves += self._gone(local, whole, Input("crash", WHOLE), RESTART)
        if self.scope.crashes:
            moves += self._gone(local, copied_disk(local.disk), Input("crash", EVERYTHING), CRASH)
            if not self.config.sync_commits:
                moves += self._gone(local, local.synced, Input("crash", SYNCED), CRASH)
        if self.scope.wipes:
            moves += self._gone(local, None, Input("crash", NOTHING), WIPE)
        return moves

    def _gone(
        self, local: Local, disk: Stable | None, how: Input, cost: int, submitted: int = -1
    ) -> list[Move]:
        """A site that stays down is one that does not move; so it restarts at once, or never."""
        if submitted < 0:
            submitted = local.submitted
        life = local.life + (disk is None)
        down = Local(0, None, disk, disk, local.fact.said, submitted, life, self.registry)
        if not self.plain:
            return self._restarted(down, structs.replace(how, again=True), cost)
        return [Move(self._intern(None, disk, disk, down.fact.said, submitted, life), 0, cost, how)]

    def _restarted(self, down: Local, how: Input, cost: int) -> list[Move]:
        """The node hands over what the disk says was committed, then makes a new engine."""
        disk = down.disk
        broken = ""
        config = self.config_after_loss
        if disk is not None:
            config = self.config
            said, broken = self._delivered(down, recorded(disk), again=True)
            down = Local(0, None, disk, disk, said, down.submitted, down.life, self.registry)
        else:
            fresh = self.stable_class()
            down = Local(
                0, None, fresh, fresh, down.fact.said, down.submitted, down.life, self.registry
            )
        try:
            engine = self.site_class(self.me, self.group, config, Still(down.life), 0, disk)
        except Exception as error:
            broken = f"engine: {type(error).__name__}: {error}"
        if broken:
            return [Move(0, 0, cost, how, broken)]
        return self._settled(down, engine, how, cost)

    # -- what a step brought about ---------------------------------------------------------------

    def _settled(self, old: Local | None, engine: TokenSite, how: Input, cost: int) -> list[Move]:
        """Carry out the effects; no move at all if they go beyond the timestamps in scope."""
        out = engine.take()
        sends = 0
        for destination, pdu, _ in out.sends:
            if isinstance(pdu, Ack) and pdu.ts >= self.scope.timestamps:
                return []
            if isinstance(pdu, Invite):
                cost |= ATTEMPT
            sends |= self.pool.bit(self.me, destination, pdu)
        if old is None:
            old = Local(0, None, self.stable_class(), self.stable_class(), (), 0, 0, self.registry)
        submitted = old.submitted + (cost & MESSAGE > 0)
        disk, synced = old.disk, old.synced
        assert disk is not None
        torn: list[Move] = []
        if out.persists:
            disk = copied_disk(disk)
            for count, record in enumerate(out.persists, 1):
                disk.apply(record)
                last = count == len(out.persists)
                if not isinstance(record, UNSYNCED) or self.config.sync_commits:
                    synced = disk if last else copied_disk(disk)
                if last or old.ice is None:
                    continue
                amid = Input("crash", how.kind + " " + how.name, how.items, count)
                if self.scope.crashes:
                    torn += self._gone(old, copied_disk(disk), amid, cost | CRASH, submitted)
                if self.scope.restarts:
                    whole = copied_disk(disk, whole=True)
                    known = structs.replace(amid, whole=True)
                    torn += self._gone(old, whole, known, cost | RESTART, submitted)
        said, broken = self._delivered(old, out.deliveries)
        broken = broken or self._lists(old, engine)
        to = self._intern(engine, disk, synced, said, submitted, old.life)
        return [Move(to, sends, cost, how, broken), *torn]

    def _delivered(
        self, old: Local, deliveries: list[Delivery], again: bool = False
    ) -> tuple[Said, str]:
        """I1 and I4, as far as one site alone can break them."""
        said = old.fact.said
        broken = ""
        for one in map(as_delivered, deliveries):
            if one.stage != COMMITTED:
                continue
            before = [other for other in said if other.seq == one.seq]
            if before:
                # After the loss of records a site says again what it said; it must be the same.
                if before[0] != one:
                    broken = f"I1: site {self.me} delivers {told(one)} after {told(before[0])}"
                elif self.config.sync_commits and not self.scope.wipes and not again:
                    broken = f"I4: site {self.me} delivers {told(one)} again"
                continue
            if any(other.bundle == one.bundle for other in said):
                broken = f"I4: site {self.me} delivers {told(one)} a second time"
            if not one.bundle.data.startswith(b"%d." % one.source):
                broken = f"I4: site {self.me} delivers {told(one)}, which was never sent"
            said = (*said, one)
        return said, broken

    def _lists(self, old: Local, engine: TokenSite) -> str:
        """I3, as far as one site alone can break it."""
        if engine.tl < old.profile.tl and old.life == 0:
            return f"I3: site {self.me} goes back from list {old.profile.tl} to {engine.tl}"
        if engine.authorized and 2 * len(engine.members) <= len(self.group):
            return f"I3: a minority, {engine.members}, forms list {engine.tl}"
        return ""

    def _intern(
        self, engine: TokenSite | None, disk: Stable | None, synced: Stable | None,
        said: Said, submitted: int, life: int,
    ) -> int:  # fmt: skip
        crashes = self.scope.crashes + self.scope.restarts > 0
        key = (
            None if engine is None else self._fingerprint(engine),
            None if disk is None or not (crashes or engine is None) else on_disk(disk),
            on_disk(synced)
            if synced is not None and self.scope.crashes and not self.config.sync_commits
            else None,
            said, submitted, life,
        )  # fmt: skip
        number = self._index.get(key)
        if number is None:
            number = self._index[key] = len(self.locals)
            self.locals.append(
                Local(number, engine, disk, synced, said, submitted, life, self.registry)
            )
        return number

    def derived(self, local: Local, change: Callable[[TokenSite], None]) -> int:
        """The state that `change` makes of the engine's."""
        assert local.ice is not None
        engine = thawed(local.ice)
        change(engine)
        return self._intern(
            engine, local.disk, local.synced, local.fact.said, local.submitted, local.life
        )

    def retired(self, local: Local) -> int:
        """A state that does nothing any more; what was delivered counts for ever."""
        return self._intern(None, None, None, local.fact.said, -1, -1)


def recorded(disk: Stable) -> list[Delivery]:
    """What was committed according to `disk`."""
    return [
        Delivery(entry.seq, entry.ack.s, entry.ack.n, entry.bundle, COMMITTED)
        for ts, entry in sorted(disk.entries.items())
        if ts < disk.cnts and entry.ack.kind == DATA
    ]


def as_delivered(one: Delivery) -> Delivery:
    """What everybody is given, whether its sender knows it for its own life's or not."""
    return one if type(one) is Delivery else Delivery(*structs.astuple(one))


def told(one: Delivery) -> str:
    """A delivery in words.

    >>> told(Delivery(3, 1, 0, Bundle.of(b"1.0"), COMMITTED))
    "'1.0' (message 0 of site 1) as number 3"
    """
    return (
        f"'{one.bundle.data.decode()}' (message {one.number} of site {one.source}) as number "
        f"{one.seq}"
    )
