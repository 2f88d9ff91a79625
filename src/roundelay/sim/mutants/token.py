"""Mutants of the token protocol.

What the explorer never does, because its reductions rest on the rule in question, is left to the
random runs: to work again in a list that was left, and to keep messages of an earlier list.
*Lives* are the rules of docs/token.md, "Two lives of one site".

The shipped engine is clean in the same scopes and seeds: `tests/sim/test_mutants.py` runs it, too.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from msgspec import Struct, structs

from roundelay.core.engine import NEVER, UNKNOWN_LIFE, Pdu
from roundelay.core.token import pdu as p
from roundelay.core.token.ballot import Ballot
from roundelay.core.token.config import COLD
from roundelay.core.token.log import Commit, Log
from roundelay.core.token.ordering import Ordering
from roundelay.core.token.own import OwnMessages
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
_small_cold: Final = partial(_small, resilience=0, attempts=2, boot=COLD)
_without_faults: Final = partial(Scope, crashes=0, attempts=0)

_BELOW: Final = "InvariantBroken: below our"

broken: Final = MutantTable(seeds=(0, 200))


def _put(site: TokenSite, phase: str, now: int) -> None:
    """Make `site` enter `phase`, though no transition leads there."""
    site.phase = phase
    site.bind_handlers()
    if phase == NORMAL:
        site.timers.reform_due = NEVER
        site.timers.watch(now)


# -- recovery after a crash --------------------------------------------------------------------


@broken(TokenSite, "restore", "I3", scope=_small(crashes=1))
def recovered_is_ordinary(shipped: Any, self: TokenSite, stable: Stable) -> None:
    """CM-R3, CM-R17: a restarted site does not say that it may have forgotten entries; it passes
    for a witness of what it forgot, and a committed message is given away."""
    shipped(self, stable)
    self.reformation.amnesia = False


@broken(Log, "__init__", "I3", scope=_small(restarts=1))
def writes_what_is_committed(shipped: Any, self: Log, site: TokenSite) -> None:
    """CM-R17: entries are written when they are committed, not when they are processed; a site
    whose disk is whole passes for a witness of what it never wrote."""
    shipped(self, site)
    self.writes_stamped = False


@broken(Ballot, "majority", "I3", scope=_small(sites=2, resilience=0))
def half_is_enough(self: Ballot) -> bool:
    """CM-R3.1: half of the group that remembers is enough, without a majority that votes; in a
    group of an even number two halves go on by themselves."""
    return 2 * sum(not vote.wiped for vote in self.votes.values()) >= len(self.group)


def _forgets_what_it_joined(shipped: Any, self: TokenSite, stable: Stable) -> None:
    shipped(self, stable)
    self.reformation.max_joined = self.tl
    self.reformation.seen_version = max(0, self.tl[0])


@broken(
    TokenSite,
    "__init__",
    _BELOW,
    scope=_small_cold(crashes=1),
    memory=LISTED,
    also=((TokenSite, "restore", _forgets_what_it_joined),),
)
def joined_version_lost(shipped: Any, self: TokenSite, *args: Any) -> None:
    """CM-R9: the joined version is not on disk, nor does a boot number tell lives apart; after a
    restart the site joins a list it had promised never to join, and its vote of before the restart
    counts in another.

    Its boot number never changes: that is a second defence, and would cover for the first.
    """
    shipped(self, *args)
    self.boot = 0


@broken(TokenSite, "__init__", "I3")
def restart_resumes(shipped: Any, self: TokenSite, *given: Any, **named: Any) -> None:
    """CM-R17: a restarted site resumes its old list; it commits in a list that others have
    replaced."""
    shipped(self, *given, **named)
    if self.phase == OUT and self.tl != p.NO_LIST:
        _put(self, NORMAL, self.timers.heard)
        self.token_list.authorize()


@broken(TokenList, "enter", "I3", scope=_small(crashes=1, attempts=2))
def promise_not_persisted(shipped: Any, self: TokenList, new: p.NewTl, *base: Base) -> None:
    """CM-R11: entries below the start of a list are not on disk; the vote promised to hold them; a
    crash forgets them."""
    shipped(self, new, *base)
    persists = self.site.out.persists
    persists[-1] = structs.replace(persists[-1], entries=())
    self.site.log.logged = self.site.log.cnts


@broken(TokenList, "enter", _BELOW, scope=_small_cold(crashes=1))
def list_not_persisted(shipped: Any, self: TokenList, new: p.NewTl, *base: Base) -> None:
    """CM-R11: the list committed to is not on disk; a restarted site votes for an older list than
    the one it helped to authorize."""
    if new.v == (0, 0):
        shipped(self, new, *base)
    else:
        self.begin(new.v, new.members, new.start_ts, new.nts_site)


@broken(Ballot, "majority", "I3", scope=_small_cold(wipes=1))
def wiped_counts(self: Ballot) -> bool:
    """CM-R3.1: a site that lost its disk counts for the majority; two majorities no longer share a
    site that remembers."""
    return 2 * len(self.votes) > len(self.group)


@broken(Ballot, "witness", "I1", scope=_small(resilience=0, wipes=1, messages=2))
def wiped_is_witness(self: Ballot, vote: p.Vote1) -> bool:
    """CM-R3.3: a site that lost its disk is a witness; it proves nothing about what it
    processed."""
    return not (vote.amnesia and vote.tl == self.old)


@broken(Stable, "apply", "I1", scope=_small(resilience=0, crashes=1, wipes=1, messages=2))
def wipe_not_persisted(shipped: Any, self: Stable, record: Struct) -> None:
    """CM-R3: that the disk was lost is not on the new disk; after a second crash the site counts,
    and is a witness, as if nothing was forgotten."""
    if not isinstance(record, Wiped):
        shipped(self, record)


# -- lists -------------------------------------------------------------------------------------


@broken(Reformation, "back_off", "I3", scope=_small(attempts=2))
def resumes_old_list(shipped: Any, self: Reformation, now: int) -> None:
    """CM-R9: a site that leaves an attempt goes on in its old list; the freeze is what makes the
    resiliency test sound."""
    shipped(self, now)
    _put(self.site, NORMAL, now)


@broken(Ballot, "majority", "I3", scope=_small())
def no_majority(self: Ballot) -> bool:
    """CM-R3.1: no majority test; two lists can commit side by side."""
    return True


@broken(Reformation, "unanimous", "I3", scope=_small(attempts=2))
def no_unanimity(self: Reformation) -> bool:
    """CM-R5: no unanimous vote; a list is authorized whose members lack committed messages."""
    return self.site.me in self.yes_votes


@broken(Ballot, "resilient", "I3", scope=_small(resilience=0))
def no_resiliency_test(self: Ballot) -> bool:
    """CM-R3.3: no resiliency test; the old list may still commit what the new one gives away."""
    return True


def _with_config(shipped: Any, ballot: Ballot, **changed: Any) -> Any:
    """What `shipped` says of `ballot` under another configuration."""
    config = ballot.config
    ballot.config = structs.replace(config, **changed)
    passed = shipped(ballot)
    ballot.config = config
    return passed


@broken(Ballot, "resilient", "I3", scope=_small(resilience=0))
def witness_too_far(shipped: Any, self: Ballot) -> Any:
    """CM-R3.3: one site too many counts as a witness; the site behind the L successors need not
    have processed what was committed."""
    return _with_config(shipped, self, resilience=self.config.resilience + 1)


@broken(Ballot, "resilient", "I3", scope=_small(crashes=1, to_source=True))
def knows_the_heir(shipped: Any, self: Ballot) -> Any:
    """CM-R3.3, `to_source`: the next sites in the ring count as those that stamp next; the source
    had the token: a site that never did vouches that nothing was committed."""
    return _with_config(shipped, self, to_source=False)


@broken(Ballot, "basis", _BELOW, scope=_small())
def starts_too_low(shipped: Any, self: Ballot) -> tuple[p.Version, int]:
    """CM-R3.2: the new list starts at the smallest nts; committed timestamps are given away
    again."""
    old, _ = shipped(self)
    return old, min(vote.nts for vote in self.votes.values() if vote.tl == old)


def _adopts_any_list(shipped: Any, self: LogRecovery, new: p.NewTl, now: int) -> None:
    if new.nts_site == self.site.me:
        self.site.token_list.version = new.old
    shipped(self, new, now)


def _elects_any(self: Ballot) -> int:
    return min(site for site, vote in self.votes.items() if vote.nts == self.start_ts)


def _history_after_basis(shipped: Any, self: Ballot, *given: Any) -> Any:
    at = self.start_ts
    self.start_ts = self.basis()[1]
    history = shipped(self, *given)
    self.start_ts = at
    return history


@broken(
    Ballot,
    "new_list",
    "I1",
    scope=_small(attempts=2, messages=2),
    also=(
        (LogRecovery, "adopt", _adopts_any_list),
        (Ballot, "elect", _elects_any),
        (Ballot, "history_after", _history_after_basis),
    ),
)
def elects_any_list(shipped: Any, self: Ballot, *given: Any) -> Any:
    """CM-R3, E 51: the basis is taken among all voters, whatever their list; a site of an older
    list may have more timestamps, and void ones."""
    self.start_ts = max(vote.nts for vote in self.votes.values())
    return shipped(self, *given)


@broken(LogRecovery, "adopt", "I1", scope=_small(attempts=2, messages=2))
def keeps_old_entries(shipped: Any, self: LogRecovery, new: p.NewTl, now: int) -> None:
    """CM-R11: entries of another list are kept; they stand where the old list put something
    else."""
    if self.site.nts <= new.start_ts:
        self.site.token_list.version = new.old
    shipped(self, new, now)


@broken(Reformation, "on_invite", _BELOW, scope=_small_cold(), memory=LISTED)
def joins_any_version(
    shipped: Any, self: Reformation, pdu: p.Invite, source: int, now: int
) -> None:
    """CM-R9: no sequence test; a site joins an older list after a newer one."""
    if self.site.phase in (NORMAL, OUT) and pdu.v > self.site.tl:
        self.max_joined = self.site.tl
    shipped(self, pdu, source, now)


@broken(Reformation, "start", _BELOW, scope=_small_cold(), memory=LISTED)
def version_used_twice(shipped: Any, self: Reformation, now: int) -> None:
    """CM-R1: an originator uses a version again; two lists of one version with different
    members."""
    self.seen_version = max(0, self.site.tl[0])
    self.max_joined = self.site.tl
    shipped(self, now)


@broken(LogRecovery, "adopt", "I3", scope=_small(attempts=2))
def votes_unrecovered(shipped: Any, self: LogRecovery, new: p.NewTl, now: int) -> None:
    """CM-R11: a slave votes before it has recovered; the list starts with members that lack its
    messages."""
    if self.site.phase == S2:
        self.site.send(new.v[1], p.Vote2(new.v, p.YES, self.site.reformation.inviter))
    shipped(self, new, now)


@broken(TokenSite, "receive", "I3")
def token_of_an_abandoned_list(
    shipped: Any, self: TokenSite, pdu: Pdu, source: int, now: int, *rest: int
) -> None:
    """CM-R13: NEW_TOKEN is accepted by a site that has left; a list without all its members
    commits, or has two tokens."""
    abandoned = self.phase in (W3, OUT, S1)
    if isinstance(pdu, p.NewToken) and abandoned and pdu.v == self.tl:
        _put(self, W3, now)
        self.reformation.attempt = pdu.v
    shipped(self, pdu, source, now, *rest)


# -- commit ------------------------------------------------------------------------------------


@broken(Commit, "commit", "I3", scope=_small(timestamps=2, kr=2))
def null_at_once(shipped: Any, self: Commit) -> None:
    """CM-N15, E 11: a NULL is committed at once; the commit mark runs over a timestamp that the
    next list gives to a message."""
    shipped(self)
    log, token_list = self.site.log, self.site.token_list
    while token_list.authorized and log.cnts < log.nts and log.entries[log.cnts].ack.kind == p.NULL:
        self.commit_upto(log.cnts + 1)


@broken(Commit, "commit", "I3", scope=_small())
def sent_is_accepted(shipped: Any, self: Commit) -> None:
    """CM-N15, E 7: a transfer counts when it is sent; the last of the L + 1 holders may have
    nothing."""
    accepted, self.accepted_upto = self.accepted_upto, self.site.nts - 1
    shipped(self)
    self.accepted_upto = accepted


def _commits_forward(shipped: Any, self: Commit, upto: int) -> None:
    if upto > self.site.cnts:  # the commit mark never moves back, not even behind a gap
        shipped(self, upto)


@broken(
    TokenList,
    "enter",
    "I1",
    scope=_small(attempts=2, messages=2),
    also=((Commit, "commit_upto", _commits_forward),),
)
def commits_unauthorized(shipped: Any, self: TokenList, new: p.NewTl, *base: Base) -> None:
    """CM-R16, E 59: entries are committed before the list has a token; an unauthorized list may be
    abandoned."""
    shipped(self, new, *base)
    self.site.commit.commit_upto(new.start_ts)


@broken(LogRecovery, "on_recover_data", "I3")
def commits_on_arrival(shipped: Any, self: LogRecovery, pdu: p.RecoverData, *rest: int) -> None:
    """CM-R11: everything recovered is committed, not only what the sender had committed; the list
    may never be authorized."""
    shipped(self, structs.replace(pdu, cnts=1 << 30), *rest)


@broken(Commit, "commit", "I3", scope=_small())
def commits_what_is_stamped(self: Commit) -> None:
    """CM-N15: an acknowledged message is committed; it may vanish with its holder."""
    if self.site.token_list.authorized and self.site.nts > self.site.cnts:
        self.commit_upto(self.site.nts)


# -- messages ----------------------------------------------------------------------------------


@broken(Ordering, "on_b", "I4", scope=_without_faults(resilience=0))
def stamps_twice(shipped: Any, self: Ordering, pdu: p.B, source: int, now: int) -> None:
    """CM-N6: a message that has a stamp is stamped again; it is delivered twice."""
    site = self.site
    if site.holding and pdu.n < site.log.next_num[pdu.s]:
        self.qb[(pdu.s, pdu.n)] = pdu.bundle
        site.stamping.issue(p.DATA, pdu.s, pdu.n, now)
        return
    shipped(self, pdu, source, now)


@broken(OwnMessages, "let_go", "I4", scope=_without_faults())
def keeps_committed(self: OwnMessages, ack: p.Ack) -> bool:
    """CM-N5: an own message is kept when it has been committed; it is sent again as the next one,
    and delivered twice."""
    self.base = max(self.base, ack.n + 1)
    return True


@broken(Ordering, "begin_list", "I1")
def keeps_queue_across_lists(self: Ordering) -> None:
    """CM-R11: Q_B survives a list change; a number that a restarted source uses again is stamped
    with the old content."""
    self.qc.clear()


@broken(Answers, "answer_old_ack", "CM-T3", scope=_without_faults(messages=3))
def old_ack_grants(shipped: Any, self: Answers, ack: p.Ack) -> None:
    """E 55: a repeated old acknowledgement grants the token again; two sites stamp the same
    timestamp."""
    site = self.site
    if ack.next == site.me and not site.holding and site.phase == NORMAL:
        site.stamping.accept(ack.ts, 0)
        return
    shipped(self, ack)


# -- lives -------------------------------------------------------------------------------------


@broken(
    TokenSite,
    "receive",
    "I1",
    also=((Ballot, "believed", lambda self, votes: votes),),
    seeds=(60, 70),
)
def listens_to_twins(
    shipped: Any, self: TokenSite, pdu: Pdu, source: int, now: int, *rest: int
) -> None:
    """lives 1: PDUs of a list are taken from any life of a member, votes from any life; two
    processes of one name give one number to two messages.

    What another life of a site sends is taken for its own, votes for another included; and the
    replaced one counts: that is a second defence, and would cover for the first.
    """
    if isinstance(pdu, p.Vote1 | p.Vote2):
        pdu = structs.replace(pdu, inviter=UNKNOWN_LIFE)
    shipped(self, pdu, source, now)


@broken(OwnMessages, "let_go", "I1", seeds=(0, 10))
def takes_receipts_of_twins(shipped: Any, self: OwnMessages, ack: p.Ack) -> bool:
    """CM-N5, lives 3: what another life of the site has sent is let go as an own message; a message
    is confirmed that nobody is ever given."""
    shipped(self, ack)
    return True


@broken(Ballot, "believed", "I1", seeds=(60, 70))
def replaced_counts(self: Ballot, votes: dict[int, p.Vote1]) -> dict[int, p.Vote1]:
    """lives 2: a site that knows less of its lists than others do counts for the majority; its
    replacement has promised what it does not know: two majorities."""
    return votes
