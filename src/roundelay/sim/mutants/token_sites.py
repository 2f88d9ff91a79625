"""Engines with one rule broken each.  What each is for, and what catches it: `mutants.token`.

A mutant is a site one part of which breaks the rule, or the site itself where no part has it.
Only tests make them, and the option `--mutant` of the command line.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, structs

from roundelay.core.engine import NEVER, ONLY_LINE, UNKNOWN_LIFE, Pdu
from roundelay.core.token.ballot import Ballot
from roundelay.core.token.log import Commit, Log
from roundelay.core.token.ordering import Ordering
from roundelay.core.token.own import OwnMessages
from roundelay.core.token.pdu import (
    DATA,
    NO_LIST,
    NULL,
    YES,
    Ack,
    B,
    Invite,
    NewTl,
    NewToken,
    RecoverData,
    Version,
    Vote1,
    Vote2,
)
from roundelay.core.token.phases import NORMAL, OUT, S1, S2, W3
from roundelay.core.token.recovery import Recovery
from roundelay.core.token.reformation import Reformation
from roundelay.core.token.retransmission import Answers
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Base, Stable, Wiped
from roundelay.core.token.token_list import TokenList


class MutantSite(TokenSite):
    """What is wrong with it must be noticed by what it does to others, not by a look inside."""

    __slots__ = ()

    def check_invariants(self) -> None:
        pass


def _with(ballot: type[Ballot] = Ballot, **parts: type[Any]) -> type[TokenSite]:
    """A site with that ballot, and these parts."""

    class Mutant(MutantSite):
        __slots__ = ()
        PARTS = TokenSite.PARTS | parts
        BALLOT = ballot

    return Mutant


def _put(site: TokenSite, phase: str, now: int) -> None:
    """Make `site` enter `phase`, though no transition leads there."""
    site.phase = phase
    site.bind_handlers()
    if phase == NORMAL:
        site.timers.reform_due = NEVER
        site.timers.watch(now)


# -- recovery after a crash --------------------------------------------------------------------


class RecoveredIsOrdinary(MutantSite):
    __slots__ = ()

    def restore(self, stable: Stable) -> None:
        super().restore(stable)
        self.reformation.amnesia = False


class _WritesWhatIsCommitted(Log):
    __slots__ = ()

    def __init__(self, site: TokenSite) -> None:
        super().__init__(site)
        self.writes_stamped = False


WritesWhatIsCommitted = _with(log=_WritesWhatIsCommitted)


class JoinedVersionLost(MutantSite):
    """Its boot number never changes: that is a second defence, and would cover for the first."""

    __slots__ = ()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.boot = 0

    def restore(self, stable: Stable) -> None:
        super().restore(stable)
        self.reformation.max_joined = self.tl
        self.reformation.seen_version = max(0, self.tl[0])


class RestartResumes(MutantSite):
    __slots__ = ()

    def __init__(
        self, me: int, group: Any, config: Any, rng: Any, now: int = 0, stable: Any = None
    ) -> None:
        super().__init__(me, group, config, rng, now, stable)
        if stable is not None and self.tl != NO_LIST:
            _put(self, NORMAL, now)
            self.token_list.authorize()


class _PromiseNotPersisted(TokenList):
    __slots__ = ()

    def enter(self, new: NewTl, base: Base | None = None) -> None:
        super().enter(new, base)
        persists = self.site.out.persists
        persists[-1] = structs.replace(persists[-1], entries=())
        self.site.log.logged = self.site.log.cnts


PromiseNotPersisted = _with(token_list=_PromiseNotPersisted)


class _ListNotPersisted(TokenList):
    __slots__ = ()

    def enter(self, new: NewTl, base: Base | None = None) -> None:
        if new.v == (0, 0):
            super().enter(new, base)
        else:
            self.begin(new.v, new.members, new.start_ts, new.nts_site)


ListNotPersisted = _with(token_list=_ListNotPersisted)


class _WipedCounts(Ballot):
    __slots__ = ()

    def majority(self) -> bool:
        return 2 * len(self.votes) > len(self.group)


WipedCounts = _with(_WipedCounts)


class _HalfIsEnough(Ballot):
    __slots__ = ()

    def majority(self) -> bool:
        return 2 * sum(not vote.wiped for vote in self.votes.values()) >= len(self.group)


HalfIsEnough = _with(_HalfIsEnough)


class _WipedIsWitness(Ballot):
    __slots__ = ()

    def witness(self, vote: Vote1) -> bool:
        return not (vote.amnesia and vote.tl == self.old)


WipedIsWitness = _with(_WipedIsWitness)


class WipeNotPersisted(Stable):
    __slots__ = ()

    def apply(self, record: Struct) -> None:
        if not isinstance(record, Wiped):
            super().apply(record)


# -- lists -------------------------------------------------------------------------------------


class _ResumesOldList(Reformation):
    __slots__ = ()

    def back_off(self, now: int) -> None:
        super().back_off(now)
        _put(self.site, NORMAL, now)


ResumesOldList = _with(reformation=_ResumesOldList)


class _NoMajority(Ballot):
    __slots__ = ()

    def majority(self) -> bool:
        return True


NoMajority = _with(_NoMajority)


class _NoUnanimity(Reformation):
    __slots__ = ()

    def unanimous(self) -> bool:
        return self.site.me in self.yes_votes


NoUnanimity = _with(reformation=_NoUnanimity)


class _NoResiliencyTest(Ballot):
    __slots__ = ()

    def resilient(self) -> bool:
        return True


NoResiliencyTest = _with(_NoResiliencyTest)


class _WitnessTooFar(Ballot):
    __slots__ = ()

    def resilient(self) -> bool:
        level = self.config.resilience
        self.config = structs.replace(self.config, resilience=level + 1)
        passed = super().resilient()
        self.config = structs.replace(self.config, resilience=level)
        return passed


WitnessTooFar = _with(_WitnessTooFar)


class _KnowsTheHeir(Ballot):
    __slots__ = ()

    def resilient(self) -> bool:
        free = self.config
        self.config = structs.replace(free, to_source=False)
        passed = super().resilient()
        self.config = free
        return passed


KnowsTheHeir = _with(_KnowsTheHeir)


class _StartsTooLow(Ballot):
    __slots__ = ()

    def basis(self) -> tuple[Version, int]:
        old, _ = super().basis()
        return old, min(vote.nts for vote in self.votes.values() if vote.tl == old)


StartsTooLow = _with(_StartsTooLow)


class _ElectsAnyList(Ballot):
    __slots__ = ()

    def new_list(self, version: Version, rng: Any) -> NewTl:
        self.start_ts = max(vote.nts for vote in self.votes.values())
        return super().new_list(version, rng)

    def elect(self) -> int:
        return min(site for site, vote in self.votes.items() if vote.nts == self.start_ts)

    def history_after(self, past: Any, rng: Any) -> Any:
        at = self.start_ts
        self.start_ts = self.basis()[1]
        history = super().history_after(past, rng)
        self.start_ts = at
        return history


class _AdoptsAnyList(Recovery):
    __slots__ = ()

    def adopt(self, new: NewTl, now: int) -> None:
        if new.nts_site == self.site.me:
            self.site.token_list.version = new.old
        super().adopt(new, now)


ElectsAnyList = _with(_ElectsAnyList, recovery=_AdoptsAnyList)


class _KeepsOldEntries(Recovery):
    __slots__ = ()

    def adopt(self, new: NewTl, now: int) -> None:
        if self.site.nts <= new.start_ts:
            self.site.token_list.version = new.old
        super().adopt(new, now)


KeepsOldEntries = _with(recovery=_KeepsOldEntries)


class _JoinsAnyVersion(Reformation):
    __slots__ = ()

    def on_invite(self, pdu: Invite, source: int, now: int) -> None:
        if self.site.phase in (NORMAL, OUT) and pdu.v > self.site.tl:
            self.max_joined = self.site.tl
        super().on_invite(pdu, source, now)


JoinsAnyVersion = _with(reformation=_JoinsAnyVersion)


class _VersionUsedTwice(Reformation):
    __slots__ = ()

    def start(self, now: int) -> None:
        self.seen_version = max(0, self.site.tl[0])
        self.max_joined = self.site.tl
        super().start(now)


VersionUsedTwice = _with(reformation=_VersionUsedTwice)


class _VotesUnrecovered(Recovery):
    __slots__ = ()

    def adopt(self, new: NewTl, now: int) -> None:
        if self.site.phase == S2:
            self.site.send(new.v[1], Vote2(new.v, YES, self.site.reformation.inviter))
        super().adopt(new, now)


VotesUnrecovered = _with(recovery=_VotesUnrecovered)


class TokenOfAnAbandonedList(MutantSite):
    __slots__ = ()

    def receive(
        self, pdu: Pdu, source: int, now: int, line: int = ONLY_LINE, life: int = UNKNOWN_LIFE
    ) -> None:
        abandoned = self.phase in (W3, OUT, S1)
        if isinstance(pdu, NewToken) and abandoned and pdu.v == self.tl:
            _put(self, W3, now)
            self.reformation.attempt = pdu.v
        super().receive(pdu, source, now, line, life)


# -- commit ------------------------------------------------------------------------------------


class _NullAtOnce(Commit):
    __slots__ = ()

    def commit(self) -> None:
        super().commit()
        log = self.site.log
        while (
            self.site.authorized and log.cnts < log.nts and log.entries[log.cnts].ack.kind == NULL
        ):
            self.commit_upto(log.cnts + 1)


NullAtOnce = _with(commit=_NullAtOnce)


class _SentIsAccepted(Commit):
    __slots__ = ()

    def commit(self) -> None:
        accepted, self.accepted_upto = self.accepted_upto, self.site.nts - 1
        super().commit()
        self.accepted_upto = accepted


SentIsAccepted = _with(commit=_SentIsAccepted)


class _EntersCommitted(TokenList):
    __slots__ = ()

    def enter(self, new: NewTl, base: Base | None = None) -> None:
        super().enter(new, base)
        self.site.commit.commit_upto(new.start_ts)


class _CommitsForward(Commit):
    __slots__ = ()

    def commit_upto(self, upto: int) -> None:
        if upto > self.site.cnts:  # the commit mark never moves back, not even behind a gap
            super().commit_upto(upto)


CommitsUnauthorized = _with(token_list=_EntersCommitted, commit=_CommitsForward)


class _CommitsOnArrival(Recovery):
    __slots__ = ()

    def on_recover_data(self, pdu: RecoverData, source: int, now: int) -> None:
        super().on_recover_data(structs.replace(pdu, cnts=1 << 30), source, now)


CommitsOnArrival = _with(recovery=_CommitsOnArrival)


class _CommitsWhatIsStamped(Commit):
    __slots__ = ()

    def commit(self) -> None:
        if self.site.authorized and self.site.nts > self.site.cnts:
            self.commit_upto(self.site.nts)


CommitsWhatIsStamped = _with(commit=_CommitsWhatIsStamped)


# -- messages ----------------------------------------------------------------------------------


class _StampsTwice(Ordering):
    __slots__ = ()

    def on_b(self, pdu: B, source: int, now: int) -> None:
        site = self.site
        if site.holding and pdu.n < site.log.next_num[pdu.s]:
            self.qb[(pdu.s, pdu.n)] = pdu.bundle
            site.stamping.issue(DATA, pdu.s, pdu.n, now)
            return
        super().on_b(pdu, source, now)


StampsTwice = _with(ordering=_StampsTwice)


class _KeepsCommitted(OwnMessages):
    __slots__ = ()

    def let_go(self, ack: Ack) -> bool:
        self.base = max(self.base, ack.n + 1)
        return True


KeepsCommitted = _with(own=_KeepsCommitted)


class _KeepsQueueAcrossLists(Ordering):
    __slots__ = ()

    def begin_list(self) -> None:
        self.qc.clear()


KeepsQueueAcrossLists = _with(ordering=_KeepsQueueAcrossLists)


class _OldAckGrants(Answers):
    __slots__ = ()

    def answer_old_ack(self, ack: Ack) -> None:
        site = self.site
        if ack.next == site.me and not site.holding and site.phase == NORMAL:
            site.stamping.accept(ack.ts, 0)
            return
        super().answer_old_ack(ack)


OldAckGrants = _with(answers=_OldAckGrants)


class _ReplacedCounts(Ballot):
    __slots__ = ()

    def believed(self, votes: dict[int, Vote1]) -> dict[int, Vote1]:
        return votes


ReplacedCounts = _with(_ReplacedCounts)


class ListensToTwins(MutantSite):
    """What another life of a site sends is taken for its own, votes for another included; and the
    replaced one counts: that is a second defence, and would cover for the first."""

    __slots__ = ()
    BALLOT = _ReplacedCounts

    def receive(
        self, pdu: Pdu, source: int, now: int, line: int = ONLY_LINE, life: int = UNKNOWN_LIFE
    ) -> None:
        if isinstance(pdu, Vote1 | Vote2):
            pdu = structs.replace(pdu, inviter=UNKNOWN_LIFE)
        super().receive(pdu, source, now)


class _TakesReceiptsOfTwins(OwnMessages):
    __slots__ = ()

    def let_go(self, ack: Ack) -> bool:
        super().let_go(ack)
        return True


TakesReceiptsOfTwins = _with(own=_TakesReceiptsOfTwins)
