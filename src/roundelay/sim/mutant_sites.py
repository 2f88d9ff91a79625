"""Engines with one rule broken each.  What each is for, and what catches it: `mutants.py`.

Only tests make them, and the option `--mutant` of the command line.
"""

from __future__ import annotations

from random import Random

from msgspec import Struct, structs

from roundelay.core.engine import NEVER, Pdu
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.lives import UNKNOWN
from roundelay.core.token.pdu import (
    DATA,
    NO_HISTORY,
    NO_LIST,
    NULL,
    YES,
    Ack,
    B,
    History,
    Invite,
    NewTl,
    NewToken,
    RecoverData,
    Version,
    Vote1,
    Vote2,
)
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Base, Listed, Stable, Wiped
from roundelay.core.token.state import NORMAL, OUT, S1, S2, W3

# -- recovery after a crash --------------------------------------------------------------------


class RecoveredIsOrdinary(TokenSite):
    __slots__ = ()

    def restore(self, stable: Stable) -> None:
        super().restore(stable)
        self.amnesia = False


class WritesWhatIsCommitted(TokenSite):
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
        self.logs = False


class JoinedVersionLost(TokenSite):
    """Its boot number never changes: that is a second defence, and would cover for the first."""

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
        self.boot = 0

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
        past: History = NO_HISTORY,
        floor: int = 0,
        boots: tuple[int, ...] = (),
    ) -> None:
        self.out.persists.append(Listed(tl, members, start_ts, first, (), base, past, boots))
        self.logged = self.cnts
        self.past = past
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
        past: History = NO_HISTORY,
        floor: int = 0,
        boots: tuple[int, ...] = (),
    ) -> None:
        if tl == (0, 0):
            super().enter_list(tl, members, start_ts, first, base, past, floor, boots)
        else:
            self.take_list(tl, members, start_ts, first)


class WipedCounts(TokenSite):
    __slots__ = ()

    def majority(self, votes: dict[int, Vote1]) -> bool:
        return 2 * len(votes) > len(self.group)


class HalfIsEnough(TokenSite):
    __slots__ = ()

    def majority(self, votes: dict[int, Vote1]) -> bool:
        return 2 * sum(not vote.wiped for vote in votes.values()) >= len(self.group)


class WipedIsWitness(TokenSite):
    __slots__ = ()

    def witness(self, vote: Vote1, old: tuple[int, int]) -> bool:
        return not (vote.amnesia and vote.tl == old)


class WipeNotPersisted(Stable):
    __slots__ = ()

    def apply(self, record: Struct) -> None:
        if not isinstance(record, Wiped):
            super().apply(record)


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


class KnowsTheHeir(TokenSite):
    __slots__ = ()

    def resilient(self, votes: dict[int, Vote1], old: tuple[int, int], start_ts: int) -> bool:
        free = self.config
        self.config = structs.replace(free, to_source=False)
        passed = super().resilient(votes, old, start_ts)
        self.config = free
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
            self.send(new.v[1], Vote2(new.v, YES, self.inviter))
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

    def enter_list(
        self,
        tl: Version,
        members: tuple[int, ...],
        start_ts: int,
        first: int,
        base: Base | None = None,
        past: History = NO_HISTORY,
        floor: int = 0,
        boots: tuple[int, ...] = (),
    ) -> None:
        super().enter_list(tl, members, start_ts, first, base, past, floor, boots)
        self.commit_upto(start_ts)

    def commit_upto(self, upto: int) -> None:
        if upto > self.cnts:  # the commit mark never moves back, not even behind a gap
            super().commit_upto(upto)


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

    def let_go(self, ack: Ack) -> bool:
        self.own_base = max(self.own_base, ack.n + 1)
        return True


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


class ListensToTwins(TokenSite):
    """What another life of a site sends is taken for its own, votes for another included; and the
    replaced one counts: that is a second defence, and would cover for the first."""

    __slots__ = ()

    def receive(self, pdu: Pdu, source: int, now: int, life: int = UNKNOWN) -> None:
        if isinstance(pdu, Vote1 | Vote2):
            pdu = structs.replace(pdu, inviter=UNKNOWN)
        super().receive(pdu, source, now)

    def believed(self) -> dict[int, Vote1]:
        return self.votes


class TakesReceiptsOfTwins(TokenSite):
    __slots__ = ()

    def let_go(self, ack: Ack) -> bool:
        super().let_go(ack)
        return True


class ReplacedCounts(TokenSite):
    __slots__ = ()

    def believed(self) -> dict[int, Vote1]:
        return self.votes
