"""Mutants of the token protocol: sites one part of which breaks a rule, or the site itself where
no part has it.

What the explorer never does, because its reductions rest on the rule in question, is left to the
random runs: to work again in a list that was left, and to keep messages of an earlier list.
*Lives* are the rules of docs/token.md, "Two lives of one site".

The shipped engine is clean in the same scopes and seeds: `tests/sim/test_mutants.py` runs it, too.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from msgspec import Struct, structs

from roundelay.core.engine import NEVER, ONLY_LINE, UNKNOWN_LIFE, Pdu
from roundelay.core.token.ballot import Ballot
from roundelay.core.token.config import COLD
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
from roundelay.core.token.recovery import LogRecovery
from roundelay.core.token.reformation import Reformation
from roundelay.core.token.retransmission import Answers
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Base, Stable, Wiped
from roundelay.core.token.token_list import TokenList
from roundelay.sim.explore.scope import Scope
from roundelay.sim.explore.token.relevance import LISTED
from roundelay.sim.mutants.mutant import MutantTable

_small: Final = partial(Scope, timestamps=1, crashes=0, attempts=1, messages=1)
"""One timestamp is enough to give it away twice; one message, if it shows by a list that starts
below what is committed; two, if by two messages in one place.  Without a first list (COLD) there is
less to do before the interesting part."""


class MutantSite(TokenSite):
    """What is wrong with it must be noticed by what it does to others, not by a look inside."""

    def check_invariants(self) -> None:
        pass


def _breaks(*broken: type[Any]) -> dict[str, type[Any]]:
    """Return the classes of a mutant: a site, its disk, or a site with these parts and ballot."""
    if issubclass(broken[0], TokenSite):
        return {"site_class": broken[0]}
    if issubclass(broken[0], Stable):
        return {"stable_class": broken[0]}
    parts = {
        name: part
        for name, kind in TokenSite.PARTS.items()
        for part in broken
        if issubclass(part, kind)
    }
    ballot = next((part for part in broken if issubclass(part, Ballot)), Ballot)
    fields = {"PARTS": TokenSite.PARTS | parts, "BALLOT": ballot}
    return {"site_class": type("Mutant", (MutantSite,), fields)}


broken: Final = MutantTable(_breaks, seeds=(0, 200))


def _put(site: TokenSite, phase: str, now: int) -> None:
    """Make `site` enter `phase`, though no transition leads there."""
    site.phase = phase
    site.bind_handlers()
    if phase == NORMAL:
        site.timers.reform_due = NEVER
        site.timers.watch(now)


# -- recovery after a crash --------------------------------------------------------------------


@broken("I3", scope=_small(crashes=1))
class RecoveredIsOrdinary(MutantSite):
    """CM-R3, CM-R17: a restarted site does not say that it may have forgotten entries; it passes
    for a witness of what it forgot, and a committed message is given away."""

    def restore(self, stable: Stable) -> None:
        super().restore(stable)
        self.reformation.amnesia = False


@broken("I3", scope=_small(restarts=1))
class WritesWhatIsCommitted(Log):
    """CM-R17: entries are written when they are committed, not when they are processed; a site
    whose disk is whole passes for a witness of what it never wrote."""

    def __init__(self, site: TokenSite) -> None:
        super().__init__(site)
        self.writes_stamped = False


@broken("I3", scope=_small(sites=2, resilience=0))
class HalfIsEnough(Ballot):
    """CM-R3.1: half of the group that remembers is enough, without a majority that votes; in a
    group of an even number two halves go on by themselves."""

    def majority(self) -> bool:
        return 2 * sum(not vote.wiped for vote in self.votes.values()) >= len(self.group)


@broken(
    "InvariantBroken: below our",
    scope=_small(resilience=0, crashes=1, attempts=2, boot=COLD),
    memory=LISTED,
)
class JoinedVersionLost(MutantSite):
    """CM-R9: the joined version is not on disk, nor does a boot number tell lives apart; after a
    restart the site joins a list it had promised never to join, and its vote of before the restart
    counts in another.

    Its boot number never changes: that is a second defence, and would cover for the first.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.boot = 0

    def restore(self, stable: Stable) -> None:
        super().restore(stable)
        self.reformation.max_joined = self.tl
        self.reformation.seen_version = max(0, self.tl[0])


@broken("I3")
class RestartResumes(MutantSite):
    """CM-R17: a restarted site resumes its old list; it commits in a list that others have
    replaced."""

    def __init__(
        self, me: int, group: Any, config: Any, rng: Any, now: int = 0, stable: Any = None
    ) -> None:
        super().__init__(me, group, config, rng, now, stable)
        if stable is not None and self.tl != NO_LIST:
            _put(self, NORMAL, now)
            self.token_list.authorize()


@broken("I3", scope=_small(crashes=1, attempts=2))
class PromiseNotPersisted(TokenList):
    """CM-R11: entries below the start of a list are not on disk; the vote promised to hold them; a
    crash forgets them."""

    def enter(self, new: NewTl, base: Base | None = None) -> None:
        super().enter(new, base)
        persists = self.site.out.persists
        persists[-1] = structs.replace(persists[-1], entries=())
        self.site.log.logged = self.site.log.cnts


@broken("InvariantBroken: below our", scope=_small(resilience=0, crashes=1, attempts=2, boot=COLD))
class ListNotPersisted(TokenList):
    """CM-R11: the list committed to is not on disk; a restarted site votes for an older list than
    the one it helped to authorize."""

    def enter(self, new: NewTl, base: Base | None = None) -> None:
        if new.v == (0, 0):
            super().enter(new, base)
        else:
            self.begin(new.v, new.members, new.start_ts, new.nts_site)


@broken("I3", scope=_small(resilience=0, wipes=1, attempts=2, boot=COLD))
class WipedCounts(Ballot):
    """CM-R3.1: a site that lost its disk counts for the majority; two majorities no longer share a
    site that remembers."""

    def majority(self) -> bool:
        return 2 * len(self.votes) > len(self.group)


@broken("I1", scope=_small(resilience=0, wipes=1, messages=2))
class WipedIsWitness(Ballot):
    """CM-R3.3: a site that lost its disk is a witness; it proves nothing about what it
    processed."""

    def witness(self, vote: Vote1) -> bool:
        return not (vote.amnesia and vote.tl == self.old)


@broken("I1", scope=_small(resilience=0, crashes=1, wipes=1, messages=2))
class WipeNotPersisted(Stable):
    """CM-R3: that the disk was lost is not on the new disk; after a second crash the site counts,
    and is a witness, as if nothing was forgotten."""

    def apply(self, record: Struct) -> None:
        if not isinstance(record, Wiped):
            super().apply(record)


# -- lists -------------------------------------------------------------------------------------


@broken("I3", scope=_small(attempts=2))
class ResumesOldList(Reformation):
    """CM-R9: a site that leaves an attempt goes on in its old list; the freeze is what makes the
    resiliency test sound."""

    def back_off(self, now: int) -> None:
        super().back_off(now)
        _put(self.site, NORMAL, now)


@broken("I3", scope=_small())
class NoMajority(Ballot):
    """CM-R3.1: no majority test; two lists can commit side by side."""

    def majority(self) -> bool:
        return True


@broken("I3", scope=_small(attempts=2))
class NoUnanimity(Reformation):
    """CM-R5: no unanimous vote; a list is authorized whose members lack committed messages."""

    def unanimous(self) -> bool:
        return self.site.me in self.yes_votes


@broken("I3", scope=_small(resilience=0))
class NoResiliencyTest(Ballot):
    """CM-R3.3: no resiliency test; the old list may still commit what the new one gives away."""

    def resilient(self) -> bool:
        return True


@broken("I3", scope=_small(resilience=0))
class WitnessTooFar(Ballot):
    """CM-R3.3: one site too many counts as a witness; the site behind the L successors need not
    have processed what was committed."""

    def resilient(self) -> bool:
        level = self.config.resilience
        self.config = structs.replace(self.config, resilience=level + 1)
        passed = super().resilient()
        self.config = structs.replace(self.config, resilience=level)
        return passed


@broken("I3", scope=_small(crashes=1, to_source=True))
class KnowsTheHeir(Ballot):
    """CM-R3.3, `to_source`: the next sites in the ring count as those that stamp next; the source
    had the token: a site that never did vouches that nothing was committed."""

    def resilient(self) -> bool:
        free = self.config
        self.config = structs.replace(free, to_source=False)
        passed = super().resilient()
        self.config = free
        return passed


@broken("InvariantBroken: below our", scope=_small())
class StartsTooLow(Ballot):
    """CM-R3.2: the new list starts at the smallest nts; committed timestamps are given away
    again."""

    def basis(self) -> tuple[Version, int]:
        old, _ = super().basis()
        return old, min(vote.nts for vote in self.votes.values() if vote.tl == old)


class AdoptsAnyList(LogRecovery):
    def adopt(self, new: NewTl, now: int) -> None:
        if new.nts_site == self.site.me:
            self.site.token_list.version = new.old
        super().adopt(new, now)


@broken("I1", scope=_small(attempts=2, messages=2), also=(AdoptsAnyList,))
class ElectsAnyList(Ballot):
    """CM-R3, E 51: the basis is taken among all voters, whatever their list; a site of an older
    list may have more timestamps, and void ones."""

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


@broken("I1", scope=_small(attempts=2, messages=2))
class KeepsOldEntries(LogRecovery):
    """CM-R11: entries of another list are kept; they stand where the old list put something
    else."""

    def adopt(self, new: NewTl, now: int) -> None:
        if self.site.nts <= new.start_ts:
            self.site.token_list.version = new.old
        super().adopt(new, now)


@broken(
    "InvariantBroken: below our", scope=_small(resilience=0, attempts=2, boot=COLD), memory=LISTED
)
class JoinsAnyVersion(Reformation):
    """CM-R9: no sequence test; a site joins an older list after a newer one."""

    def on_invite(self, pdu: Invite, source: int, now: int) -> None:
        if self.site.phase in (NORMAL, OUT) and pdu.v > self.site.tl:
            self.max_joined = self.site.tl
        super().on_invite(pdu, source, now)


@broken(
    "InvariantBroken: below our", scope=_small(resilience=0, attempts=2, boot=COLD), memory=LISTED
)
class VersionUsedTwice(Reformation):
    """CM-R1: an originator uses a version again; two lists of one version with different
    members."""

    def start(self, now: int) -> None:
        self.seen_version = max(0, self.site.tl[0])
        self.max_joined = self.site.tl
        super().start(now)


@broken("I3", scope=_small(attempts=2))
class VotesUnrecovered(LogRecovery):
    """CM-R11: a slave votes before it has recovered; the list starts with members that lack its
    messages."""

    def adopt(self, new: NewTl, now: int) -> None:
        if self.site.phase == S2:
            self.site.send(new.v[1], Vote2(new.v, YES, self.site.reformation.inviter))
        super().adopt(new, now)


@broken("I3")
class TokenOfAnAbandonedList(MutantSite):
    """CM-R13: NEW_TOKEN is accepted by a site that has left; a list without all its members
    commits, or has two tokens."""

    def receive(
        self, pdu: Pdu, source: int, now: int, line: int = ONLY_LINE, life: int = UNKNOWN_LIFE
    ) -> None:
        abandoned = self.phase in (W3, OUT, S1)
        if isinstance(pdu, NewToken) and abandoned and pdu.v == self.tl:
            _put(self, W3, now)
            self.reformation.attempt = pdu.v
        super().receive(pdu, source, now, line, life)


# -- commit ------------------------------------------------------------------------------------


@broken("I3", scope=Scope(resilience=1, timestamps=2, crashes=0, kr=2, attempts=1, messages=1))
class NullAtOnce(Commit):
    """CM-N15, E 11: a NULL is committed at once; the commit mark runs over a timestamp that the
    next list gives to a message."""

    def commit(self) -> None:
        super().commit()
        log = self.site.log
        while (
            self.site.authorized and log.cnts < log.nts and log.entries[log.cnts].ack.kind == NULL
        ):
            self.commit_upto(log.cnts + 1)


@broken("I3", scope=_small())
class SentIsAccepted(Commit):
    """CM-N15, E 7: a transfer counts when it is sent; the last of the L + 1 holders may have
    nothing."""

    def commit(self) -> None:
        accepted, self.accepted_upto = self.accepted_upto, self.site.nts - 1
        super().commit()
        self.accepted_upto = accepted


class CommitsForward(Commit):
    def commit_upto(self, upto: int) -> None:
        if upto > self.site.cnts:  # the commit mark never moves back, not even behind a gap
            super().commit_upto(upto)


@broken("I1", scope=_small(attempts=2, messages=2), also=(CommitsForward,))
class CommitsUnauthorized(TokenList):
    """CM-R16, E 59: entries are committed before the list has a token; an unauthorized list may be
    abandoned."""

    def enter(self, new: NewTl, base: Base | None = None) -> None:
        super().enter(new, base)
        self.site.commit.commit_upto(new.start_ts)


@broken("I3")
class CommitsOnArrival(LogRecovery):
    """CM-R11: everything recovered is committed, not only what the sender had committed; the list
    may never be authorized."""

    def on_recover_data(self, pdu: RecoverData, source: int, now: int) -> None:
        super().on_recover_data(structs.replace(pdu, cnts=1 << 30), source, now)


@broken("I3", scope=_small())
class CommitsWhatIsStamped(Commit):
    """CM-N15: an acknowledged message is committed; it may vanish with its holder."""

    def commit(self) -> None:
        if self.site.authorized and self.site.nts > self.site.cnts:
            self.commit_upto(self.site.nts)


# -- messages ----------------------------------------------------------------------------------


@broken("I4", scope=Scope(resilience=0, crashes=0, attempts=0, messages=2))
class StampsTwice(Ordering):
    """CM-N6: a message that has a stamp is stamped again; it is delivered twice."""

    def on_b(self, pdu: B, source: int, now: int) -> None:
        site = self.site
        if site.holding and pdu.n < site.log.next_num[pdu.s]:
            self.qb[(pdu.s, pdu.n)] = pdu.bundle
            site.stamping.issue(DATA, pdu.s, pdu.n, now)
            return
        super().on_b(pdu, source, now)


@broken("I4", scope=Scope(resilience=1, crashes=0, attempts=0, messages=2))
class KeepsCommitted(OwnMessages):
    """CM-N5: an own message is kept when it has been committed; it is sent again as the next one,
    and delivered twice."""

    def let_go(self, ack: Ack) -> bool:
        self.base = max(self.base, ack.n + 1)
        return True


@broken("I1")
class KeepsQueueAcrossLists(Ordering):
    """CM-R11: Q_B survives a list change; a number that a restarted source uses again is stamped
    with the old content."""

    def begin_list(self) -> None:
        self.qc.clear()


@broken("CM-T3", scope=Scope(resilience=1, crashes=0, attempts=0, messages=3))
class OldAckGrants(Answers):
    """E 55: a repeated old acknowledgement grants the token again; two sites stamp the same
    timestamp."""

    def answer_old_ack(self, ack: Ack) -> None:
        site = self.site
        if ack.next == site.me and not site.holding and site.phase == NORMAL:
            site.stamping.accept(ack.ts, 0)
            return
        super().answer_old_ack(ack)


# -- lives -------------------------------------------------------------------------------------


class _AnyLifeVotes(Ballot):
    def believed(self, votes: dict[int, Vote1]) -> dict[int, Vote1]:
        return votes


@broken("I1", seeds=(60, 70))
class ListensToTwins(MutantSite):
    """lives 1: PDUs of a list are taken from any life of a member, votes from any life; two
    processes of one name give one number to two messages.

    What another life of a site sends is taken for its own, votes for another included; and the
    replaced one counts: that is a second defence, and would cover for the first.
    """

    BALLOT = _AnyLifeVotes

    def receive(
        self, pdu: Pdu, source: int, now: int, line: int = ONLY_LINE, life: int = UNKNOWN_LIFE
    ) -> None:
        if isinstance(pdu, Vote1 | Vote2):
            pdu = structs.replace(pdu, inviter=UNKNOWN_LIFE)
        super().receive(pdu, source, now)


@broken("I1", seeds=(0, 10))
class TakesReceiptsOfTwins(OwnMessages):
    """CM-N5, lives 3: what another life of the site has sent is let go as an own message; a message
    is confirmed that nobody is ever given."""

    def let_go(self, ack: Ack) -> bool:
        super().let_go(ack)
        return True


@broken("I1", seeds=(60, 70))
class ReplacedCounts(_AnyLifeVotes):
    """lives 2: a site that knows less of its lists than others do counts for the majority; its
    replacement has promised what it does not know: two majorities."""
