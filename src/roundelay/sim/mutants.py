"""Mutants: engines with one rule broken each, and how the suite notices.

A checker that never finds anything proves nothing.  Each class below breaks exactly one rule of
the protocol; `MUTANTS` says which, why it matters, and what catches it: an exploration (`scope`)
or random runs (`seeds`).  Only tests use them, and the option `--mutant` of the command line.
"""

from __future__ import annotations

from random import Random
from typing import Final

from msgspec import Struct

from roundelay.core.engine import NEVER
from roundelay.core.token.config import TokenConfig
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
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Base, Listed, Stable
from roundelay.core.token.state import NORMAL, OUT, S1, S2, W3
from roundelay.sim.explore_scope import Scope
from roundelay.sim.explore_turns import JOINED, LISTED


class Mutant(Struct, frozen=True, kw_only=True):
    """An engine with a broken rule."""

    name: str
    rule: str
    """Ids of the rule, and what is missing."""
    wrong: str
    """Why it is needed."""
    site_class: type[TokenSite]
    stable_class: type[Stable] = Stable
    scope: Scope | None = None
    """The exploration that catches it."""
    seeds: tuple[int, int] | None = None
    """Otherwise the seeds, A up to but not including B, among which the swarm catches it."""
    memory: str = JOINED
    """What its sites never forget, see `explore_turns`."""

    @property
    def caught_by(self) -> str:
        """The command that shows it."""
        if self.name in ELUSIVE:
            return f"nothing yet: {self.name} is out of reach of the scopes and seeds tried so far"
        if self.scope is not None:
            return self.scope.command(self.name)
        assert self.seeds is not None
        return f"roundelay swarm --seeds {self.seeds[0]}:{self.seeds[1]} --mutant {self.name}"


# -- recovery after a crash --------------------------------------------------------------------


class RecoveredIsOrdinary(TokenSite):
    __slots__ = ()

    def restore(self, stable: Stable) -> None:
        super().restore(stable)
        self.amnesia = False


class JoinedVersionLost(TokenSite):
    __slots__ = ()

    def restore(self, stable: Stable) -> None:
        super().restore(stable)
        self.max_joined = self.tl
        self.seen_version = max(0, self.tl[0])


class RestartResumes(TokenSite):
    __slots__ = ()

    def __init__(
        self,
        me: int,
        group: tuple[int, ...],
        config: TokenConfig,
        rng: Random,
        stable: Stable | None = None,
        now: int = 0,
    ) -> None:
        super().__init__(me, group, config, rng, stable, now)
        if stable is not None and self.tl != NO_LIST:
            self.phase = NORMAL
            self.reform_due = NEVER
            self.watch(now)
            self.authorize(now)


class PromiseNotPersisted(TokenSite):
    __slots__ = ()

    def enter_list(
        self,
        tl: Version,
        members: tuple[int, ...],
        start_ts: int,
        first: int,
        base: Base | None = None,
    ) -> None:
        self.out.persists.append(Listed(tl, members, start_ts, first, (), base))
        self.take_list(tl, members, start_ts, first)


class ListNotPersisted(TokenSite):
    __slots__ = ()

    def enter_list(
        self,
        tl: Version,
        members: tuple[int, ...],
        start_ts: int,
        first: int,
        base: Base | None = None,
    ) -> None:
        if tl == (0, 0):
            super().enter_list(tl, members, start_ts, first, base)
        else:
            self.take_list(tl, members, start_ts, first)


class WipedCounts(TokenSite):
    __slots__ = ()

    def majority(self, votes: dict[int, Vote1]) -> bool:
        return 2 * len(votes) > len(self.group)


class WipedIsWitness(TokenSite):
    __slots__ = ()

    def witness(self, vote: Vote1, old: tuple[int, int]) -> bool:
        return not (vote.amnesia and vote.tl == old)

    def resilient(self, votes: dict[int, Vote1], old: tuple[int, int], start_ts: int) -> bool:
        return super().resilient(votes, old, start_ts)


# -- lists -------------------------------------------------------------------------------------


class ResumesOldList(TokenSite):
    __slots__ = ()

    def back_off(self, now: int) -> None:
        super().back_off(now)
        self.phase = NORMAL
        self.reform_due = NEVER
        self.watch(now)


class NoMajority(TokenSite):
    __slots__ = ()

    def majority(self, votes: dict[int, Vote1]) -> bool:
        return True


class NoUnanimity(TokenSite):
    __slots__ = ()

    def unanimous(self) -> bool:
        return self.me in self.yes_votes


class NoResiliencyTest(TokenSite):
    __slots__ = ()

    def resilient(self, votes: dict[int, Vote1], old: tuple[int, int], start_ts: int) -> bool:
        return True


class WitnessTooFar(TokenSite):
    __slots__ = ()

    def resilient(self, votes: dict[int, Vote1], old: tuple[int, int], start_ts: int) -> bool:
        self.resilience += 1
        passed = super().resilient(votes, old, start_ts)
        self.resilience -= 1
        return passed


class StartsTooLow(TokenSite):
    __slots__ = ()

    def basis(self, votes: dict[int, Vote1]) -> tuple[tuple[int, int], int]:
        old, _ = super().basis(votes)
        return old, min(vote.nts for vote in votes.values() if vote.tl == old)


class ElectsAnyList(TokenSite):
    __slots__ = ()

    def basis(self, votes: dict[int, Vote1]) -> tuple[tuple[int, int], int]:
        old, _ = super().basis(votes)
        return old, max(vote.nts for vote in votes.values())

    def resilient(self, votes: dict[int, Vote1], old: tuple[int, int], start_ts: int) -> bool:
        return super().resilient(votes, *super().basis(votes))

    def elect(self, votes: dict[int, Vote1], old: tuple[int, int], start_ts: int) -> int:
        return min(site for site, vote in votes.items() if vote.nts == start_ts)

    def adopt(self, new: NewTl, now: int) -> None:
        if new.nts_site == self.me:
            self.tl = new.old
        super().adopt(new, now)


class KeepsOldEntries(TokenSite):
    __slots__ = ()

    def adopt(self, new: NewTl, now: int) -> None:
        if self.nts <= new.start_ts:
            self.tl = new.old
        super().adopt(new, now)


class JoinsAnyVersion(TokenSite):
    __slots__ = ()

    def on_invite(self, pdu: Invite, source: int, now: int) -> None:
        if self.phase in (NORMAL, OUT) and pdu.v > self.tl:
            self.max_joined = self.tl
        super().on_invite(pdu, source, now)


class VersionUsedTwice(TokenSite):
    __slots__ = ()

    def start_reformation(self, now: int, why: str) -> None:
        self.seen_version = max(0, self.tl[0])
        self.max_joined = self.tl
        super().start_reformation(now, why)


class VotesUnrecovered(TokenSite):
    __slots__ = ()

    def adopt(self, new: NewTl, now: int) -> None:
        if self.phase == S2:
            self.send(new.v[1], Vote2(new.v, YES))
        super().adopt(new, now)


class TokenOfAnAbandonedList(TokenSite):
    __slots__ = ()

    def on_new_token(self, pdu: NewToken, source: int, now: int) -> None:
        if self.phase in (W3, OUT, S1) and pdu.v == self.tl:
            self.phase, self.attempt = W3, pdu.v
        super().on_new_token(pdu, source, now)


# -- commit ------------------------------------------------------------------------------------


class NullAtOnce(TokenSite):
    __slots__ = ()

    def commit(self) -> None:
        super().commit()
        while self.authorized and self.cnts < self.nts and self.log[self.cnts].ack.kind == NULL:
            self.commit_upto(self.cnts + 1)


class SentIsAccepted(TokenSite):
    __slots__ = ()

    def commit(self) -> None:
        accepted, self.accepted_upto = self.accepted_upto, self.nts - 1
        super().commit()
        self.accepted_upto = accepted


class CommitsUnauthorized(TokenSite):
    __slots__ = ()

    def take_list(self, tl: Version, members: tuple[int, ...], start_ts: int, first: int) -> None:
        super().take_list(tl, members, start_ts, first)
        if self.cnts < start_ts <= self.nts:
            self.commit_upto(start_ts)


class CommitsOnArrival(TokenSite):
    __slots__ = ()

    def on_recover_data(self, pdu: RecoverData, source: int, now: int) -> None:
        super().on_recover_data(
            RecoverData(pdu.v, pdu.entries, 1 << 30, pdu.first_available, pdu.counters, pdu.seq),
            source,
            now,
        )


class CommitsWhatIsStamped(TokenSite):
    __slots__ = ()

    def commit(self) -> None:
        if self.authorized and self.nts > self.cnts:
            self.commit_upto(self.nts)


# -- messages ----------------------------------------------------------------------------------


class StampsTwice(TokenSite):
    __slots__ = ()

    def on_b(self, pdu: B, source: int, now: int) -> None:
        if self.holding and pdu.tl == self.tl and pdu.n < self.next_num[pdu.s]:
            self.issue(DATA, pdu.s, pdu.n, pdu.bundle, now)
            return
        super().on_b(pdu, source, now)


class KeepsCommitted(TokenSite):
    __slots__ = ()

    def let_go(self, number: int) -> None:
        self.own_base = max(self.own_base, number + 1)


class KeepsQueueAcrossLists(TokenSite):
    __slots__ = ()

    def take_list(self, tl: Version, members: tuple[int, ...], start_ts: int, first: int) -> None:
        kept = dict(self.qb)
        super().take_list(tl, members, start_ts, first)
        self.qb.update(kept)


class OldAckGrants(TokenSite):
    __slots__ = ()

    def answer_old_ack(self, ack: Ack) -> None:
        if ack.next == self.me and not self.holding and self.phase == NORMAL:
            self.accept(ack.ts, 0)
            return
        super().answer_old_ack(ack)


_L0: Final = Scope(resilience=0)
_L1: Final = Scope(resilience=1)

ELUSIVE: Final = frozenset(
    {
        "commits-on-arrival",
        "commits-unauthorized",
        "elects-any-list",
        "joined-version-lost",
        "keeps-old-entries",
        "keeps-queue-across-lists",
        "list-not-persisted",
        "promise-not-persisted",
        "restart-resumes",
        "token-of-an-abandoned-list",
        "wiped-counts",
        "wiped-is-witness",
    }
)
"""Mutants that no scope searched in reasonable time has shown to be wrong: work left to do."""

BROKEN: Final = {
    "recovered-is-ordinary": (
        "CM-R3, CM-R17: a restarted site does not say that it may have forgotten entries",
        "it passes for a witness of what it forgot, and a committed message is given away",
    ),
    "joined-version-lost": (
        "CM-R9: the joined version is not on disk",
        "after a restart the site joins a list it had promised never to join",
    ),
    "restart-resumes": (
        "CM-R17: a restarted site resumes its old list",
        "it commits in a list that others have replaced",
    ),
    "promise-not-persisted": (
        "CM-R11: entries below the start of a list are not on disk",
        "the vote promised to hold them; a crash forgets them",
    ),
    "list-not-persisted": (
        "CM-R11: the list committed to is not on disk",
        "a restarted site votes for an older list than the one it helped to authorize",
    ),
    "wiped-counts": (
        "CM-R3.1: a site that lost its disk counts for the majority",
        "two majorities no longer share a site that remembers",
    ),
    "wiped-is-witness": (
        "CM-R3.3: a site that lost its disk is a witness",
        "it proves nothing about what it processed",
    ),
    "resumes-old-list": (
        "CM-R9: a site that leaves an attempt goes on in its old list",
        "the freeze is what makes the resiliency test sound",
    ),
    "no-majority": (
        "CM-R3.1: no majority test",
        "two lists can commit side by side",
    ),
    "no-unanimity": (
        "CM-R5: no unanimous vote",
        "a list is authorized whose members lack committed messages",
    ),
    "no-resiliency-test": (
        "CM-R3.3: no resiliency test",
        "the old list may still commit what the new one gives away",
    ),
    "witness-too-far": (
        "CM-R3.3: one site too many counts as a witness",
        "the site behind the L successors need not have processed what was committed",
    ),
    "starts-too-low": (
        "CM-R3.2: the new list starts at the smallest nts",
        "committed timestamps are given away again",
    ),
    "elects-any-list": (
        "CM-R3, E 51: the basis is taken among all voters, whatever their list",
        "a site of an older list may have more timestamps, and void ones",
    ),
    "keeps-old-entries": (
        "CM-R11: entries of another list are kept",
        "they stand where the old list put something else",
    ),
    "joins-any-version": (
        "CM-R9: no sequence test",
        "a site joins an older list after a newer one",
    ),
    "version-used-twice": (
        "CM-R1: an originator uses a version again",
        "two lists of one version with different members",
    ),
    "votes-unrecovered": (
        "CM-R11: a slave votes before it has recovered",
        "the list starts with members that lack its messages",
    ),
    "token-of-an-abandoned-list": (
        "CM-R13: NEW_TOKEN is accepted by a site that has left",
        "a list without all its members commits",
    ),
    "null-at-once": (
        "CM-N15, E 11: a NULL is committed at once",
        "the commit mark runs over a timestamp that the next list gives to a message",
    ),
    "sent-is-accepted": (
        "CM-N15, E 7: a transfer counts when it is sent",
        "the last of the L + 1 holders may have nothing",
    ),
    "commits-unauthorized": (
        "CM-R16, E 59: entries are committed before the list has a token",
        "an unauthorized list may be abandoned",
    ),
    "commits-on-arrival": (
        "CM-R11: everything recovered is committed, not only what the sender had committed",
        "the list may never be authorized",
    ),
    "commits-what-is-stamped": (
        "CM-N15: an acknowledged message is committed",
        "it may vanish with its holder",
    ),
    "stamps-twice": (
        "CM-N6: a message that has a stamp is stamped again",
        "it is delivered twice",
    ),
    "keeps-committed": (
        "CM-N15: the commit mark does not move",
        "the same entries are delivered again",
    ),
    "keeps-queue-across-lists": (
        "CM-R11: Q_B survives a list change",
        "a number that a restarted source gives to another message is stamped with the old content",
    ),
    "old-ack-grants": (
        "E 55: a repeated old acknowledgement grants the token again",
        "two sites stamp the same timestamp",
    ),
}
"""Name → the rule that is broken, and what it is for."""

MUTANTS: dict[str, Mutant] = {}


def _add(
    name: str,
    site_class: type[TokenSite],
    scope: Scope | None,
    memory: str = JOINED,
    seeds: tuple[int, int] | None = None,
) -> None:
    rule, wrong = BROKEN[name]
    MUTANTS[name] = Mutant(
        name=name,
        rule=rule,
        wrong=wrong,
        site_class=site_class,
        scope=scope,
        memory=memory,
        seeds=seeds,
    )


_add("recovered-is-ordinary", RecoveredIsOrdinary, Scope(resilience=1, attempts=1, messages=1))
_add("joined-version-lost", JoinedVersionLost, Scope(resilience=1, messages=1), LISTED)
_add("restart-resumes", RestartResumes, Scope(resilience=1, messages=1))
_add("promise-not-persisted", PromiseNotPersisted, Scope(resilience=1, messages=1))
_add("list-not-persisted", ListNotPersisted, Scope(resilience=1, messages=1))
_add("wiped-counts", WipedCounts, Scope(resilience=1, crashes=0, wipes=1, messages=1))
_add("wiped-is-witness", WipedIsWitness, Scope(resilience=1, crashes=0, wipes=1, messages=1))
_add("resumes-old-list", ResumesOldList, Scope(resilience=1, crashes=0, messages=1))
_add("no-majority", NoMajority, Scope(resilience=1, crashes=0, messages=1))
_add("no-unanimity", NoUnanimity, Scope(resilience=1, crashes=0, messages=1))
_add("no-resiliency-test", NoResiliencyTest, Scope(resilience=0, crashes=0))
_add("witness-too-far", WitnessTooFar, Scope(resilience=0, crashes=0))
_add("starts-too-low", StartsTooLow, Scope(resilience=1, crashes=0, messages=1))
_add("elects-any-list", ElectsAnyList, Scope(resilience=1, crashes=0, messages=2))
_add("keeps-old-entries", KeepsOldEntries, Scope(resilience=1, crashes=0, messages=2))
_add("joins-any-version", JoinsAnyVersion, Scope(resilience=1, crashes=0, messages=1), LISTED)
_add("version-used-twice", VersionUsedTwice, Scope(resilience=1, crashes=0, messages=1), LISTED)
_add("votes-unrecovered", VotesUnrecovered, Scope(resilience=1, crashes=0, messages=1))
_add(
    "token-of-an-abandoned-list", TokenOfAnAbandonedList, Scope(resilience=1, crashes=0, messages=1)
)
_add("null-at-once", NullAtOnce, Scope(resilience=1, crashes=0, kr=2, messages=1, attempts=1))
_add("sent-is-accepted", SentIsAccepted, Scope(resilience=1, crashes=0, messages=1))
_add("commits-unauthorized", CommitsUnauthorized, Scope(resilience=1, crashes=0, messages=1))
_add("commits-on-arrival", CommitsOnArrival, Scope(resilience=1, crashes=1, messages=1))
_add("commits-what-is-stamped", CommitsWhatIsStamped, Scope(resilience=1, crashes=0, messages=1))
_add("stamps-twice", StampsTwice, Scope(resilience=0, crashes=0, attempts=0))
_add("keeps-committed", KeepsCommitted, Scope(resilience=1, crashes=0, attempts=0))
_add("keeps-queue-across-lists", KeepsQueueAcrossLists, Scope(resilience=1, crashes=1))
_add("old-ack-grants", OldAckGrants, Scope(resilience=1, crashes=0, attempts=0, messages=3))
