"""The token list that a site is committed to, and what it does about other lists."""

from __future__ import annotations

from dataclasses import dataclass, field

from roundelay.core.engine import NEVER
from roundelay.core.errors import InvariantBroken
from roundelay.core.notices import GapUnavailable, ListInForce, Unblocked
from roundelay.core.token.ballot import note
from roundelay.core.token.part import Part
from roundelay.core.token.pdu import AT_START, NO_HISTORY, NO_LIST, History, NewTl, TlHint, Version
from roundelay.core.token.phases import NORMAL
from roundelay.core.token.stable import Base, Listed, Wiped


@dataclass(slots=True, eq=False)
class TokenList(Part):
    """Its version, its members in ring order, where it starts, and whether it has a token."""

    version: Version = NO_LIST  # tl_i
    members: tuple[int, ...] = ()  # in ring order
    successor: dict[int, int] = field(default_factory=dict)
    start_ts: int = 0
    start_seq: int = 0
    first: int = -1  # its first token site
    authorized: bool = False  # its token is known to exist
    history: History = NO_HISTORY  # the history of the group that it belongs to
    lives: dict[int, int] = field(default_factory=dict)
    """Boot numbers of the list, or of the one announced."""

    # -- a new list ------------------------------------------------------------------------

    def enter(self, new: NewTl, base: Base | None = None) -> None:
        """Commit to list `new`: end of CM-R11.  Durable before the vote that says so."""
        site = self.site
        log, start_ts, history = site.log, new.start_ts, new.history
        if log.nts != start_ts:
            raise InvariantBroken(f"enters a list that starts at {start_ts} with nts {log.nts}")
        if history[2] == AT_START:
            history = (history[0], history[1], max(log.nseq, new.floor))
        promised = tuple(log.entries[ts] for ts in range(log.cnts, start_ts))
        site.out.persists.append(
            Listed(new.v, new.members, start_ts, new.nts_site, promised, base, history, new.boots)
        )
        log.logged = start_ts
        self.history = history
        log.nseq = max(log.nseq, history[2])
        note(site.reformation.seen, new.v, new.members, new.boots)
        site.own.note_list(new.v)
        self.begin(new.v, new.members, start_ts, new.nts_site)

    def begin(self, version: Version, members: tuple[int, ...], start_ts: int, first: int) -> None:
        """Be in that list; what the parts of this site know of the one before is void."""
        site = self.site
        self.version, self.members = version, members
        self.start_ts, self.first = start_ts, first
        self.start_seq = site.log.nseq
        self.successor = dict(zip(members, (*members[1:], members[0]), strict=True))
        self.authorized = False
        site.log.exp = first
        site.reformation.amnesia = False
        site.ordering.begin_list()
        site.requests.begin_list(start_ts)
        site.commit.begin_list(members, start_ts)
        site.stamping.since_data = site.config.kr
        site.own.begin_list()

    def authorize(self) -> None:
        """The list's token exists: commits may begin (CM-R16)."""
        site = self.site
        log = site.log
        self.authorized = True
        site.reformation.succeeded()
        if site.reformation.wiped:
            # Every member of this list has promised again, after we forgot: we count once more.
            site.reformation.wiped = False
            site.out.persists.append(Wiped(False))
        site.timers.auth_due = site.timers.token_due = NEVER
        site.notify(ListInForce(self.version, self.members, self.first, self.start_seq))
        if site.reformation.blocked:
            site.reformation.blocked = None
            site.notify(Unblocked())
        site.commit.commit()
        base = self.history[2]
        if log.seq < base and log.cnts >= self.start_ts:
            # This history goes on behind what is recorded of the one before.
            site.notify(GapUnavailable(log.seq, base))
            log.seq = base
        site.commit.prune()

    # -- other lists -----------------------------------------------------------------------

    def other(self, version: Version, source: int, now: int) -> None:
        """CM-N1: differing lists cause a reformation; a site of an older list is told."""
        site = self.site
        reformation = site.reformation
        if version[0] > reformation.seen_version:
            reformation.seen_version = version[0]
        if site.phase != NORMAL:
            return
        if version <= self.version:
            site.send(source, TlHint(self.version))
        elif version > reformation.max_joined:
            reformation.start(now)

    def on_tl_hint(self, pdu: TlHint, source: int, now: int) -> None:
        """CM-N1: somebody is ahead of us."""
        if pdu.tl > self.version:
            self.other(pdu.tl, source, now)

    def on_silence_timer(self, now: int) -> None:
        """CM-N21: with the beacon on, a list that falls silent has lost its token site."""
        site = self.site
        config, timers = site.config, site.timers
        due = timers.heard + config.silence_ns
        if now < due or site.stamping.holding or len(self.members) == 1:
            timers.silence_due = max(due, now + config.idle_ns)
            return
        site.reformation.start(now)

    def check_invariants(self) -> None:
        """In NORMAL there is a list, we are in it, and the log has reached its start."""
        site = self.site
        if self.version > site.reformation.max_joined:
            raise InvariantBroken(f"in list {self.version}, which was never joined")
        if site.phase != NORMAL:
            return
        if site.me not in self.successor or self.first not in self.successor:
            raise InvariantBroken(f"in list {self.version} of {self.members}")
        if site.log.nts < self.start_ts:
            raise InvariantBroken(f"nts {site.log.nts} below the list's start {self.start_ts}")
        if site.log.exp not in self.successor:
            raise InvariantBroken(f"expects site {site.log.exp}, not in {self.members}")
        if self.authorized and site.log.cnts < self.start_ts:
            raise InvariantBroken(f"an authorized list starts above cnts {site.log.cnts}")
