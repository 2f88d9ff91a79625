"""Mutants: engines with one rule broken each, and how the suite notices.

A checker that never finds anything proves nothing.  Each engine of `mutant_sites.py` breaks exactly
one rule of the protocol; `MUTANTS` says which, why it matters, and what catches it: an exploration
(`scope`), as small as shows it, or random runs (`seeds`).  What the explorer never does, because
its reductions rest on the rule in question, is left to the random runs: to work again in a list
that was left, and to keep messages of an earlier list.

The shipped engine is clean in the same scopes and seeds: the test that runs a mutant runs it too.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from roundelay.core.token.config import COLD
from roundelay.core.token.site import TokenSite
from roundelay.core.token.stable import Stable
from roundelay.sim import mutant_sites as broken
from roundelay.sim.explore_scope import Scope
from roundelay.sim.explore_use import JOINED, LISTED


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
    """What its sites never forget, see `explore_use`."""

    @property
    def caught_by(self) -> str:
        """The command that shows it.

        >>> MUTANTS["no-resiliency-test"].caught_by
        'roundelay explore --sites 3 --resilience 0 --timestamps 1 --crashes 0 --attempts 1 \
--messages 1 --mutant no-resiliency-test'
        """
        if self.scope is not None:
            return self.scope.command(self.name)
        assert self.seeds is not None
        seeds = f"{self.seeds[0]}:{self.seeds[1]}"
        return f"roundelay swarm --seeds {seeds} --stop-at-first --mutant {self.name}"


MUTANTS: dict[str, Mutant] = {}

WITHIN: Final = (0, 200)
"""Seeds among which the swarm has to catch a mutant; the first that does ends the search."""


def _add(
    name: str,
    site_class: type[TokenSite],
    rule: str,
    wrong: str,
    by: Scope | tuple[int, int],
    memory: str = JOINED,
    stable_class: type[Stable] = Stable,
) -> None:
    scope, seeds = (by, None) if isinstance(by, Scope) else (None, by)
    MUTANTS[name] = Mutant(
        name=name,
        rule=rule,
        wrong=wrong,
        site_class=site_class,
        stable_class=stable_class,
        scope=scope,
        seeds=seeds,
        memory=memory,
    )


# One timestamp is enough to give it away twice; one message, if it shows by a list that starts
# below what is committed; two, if by two messages in one place.
_ONE: Final = Scope(resilience=1, timestamps=1, crashes=0, attempts=1, messages=1)
_ONE_L0: Final = Scope(resilience=0, timestamps=1, crashes=0, attempts=1, messages=1)
_TWO: Final = Scope(resilience=1, timestamps=1, crashes=0, attempts=2, messages=1)
_RIVALS: Final = Scope(resilience=1, timestamps=1, crashes=0, attempts=2, messages=2)
_CRASH: Final = Scope(resilience=1, timestamps=1, crashes=1, attempts=2, messages=1)
# Without a first list there is less to do before the interesting part.
_COLD: Final = Scope(resilience=0, timestamps=1, crashes=0, attempts=2, messages=1, boot=COLD)
_COLD_CRASH: Final = Scope(resilience=0, timestamps=1, crashes=1, attempts=2, messages=1, boot=COLD)

# -- recovery after a crash --------------------------------------------------------------------

_add(
    "recovered-is-ordinary",
    broken.RecoveredIsOrdinary,
    "CM-R3, CM-R17: a restarted site does not say that it may have forgotten entries",
    "it passes for a witness of what it forgot, and a committed message is given away",
    Scope(resilience=1, timestamps=1, crashes=1, attempts=1, messages=1),
)
_add(
    "writes-what-is-committed",
    broken.WritesWhatIsCommitted,
    "CM-R17: entries are written when they are committed, not when they are processed",
    "a site whose disk is whole passes for a witness of what it never wrote",
    Scope(resilience=1, timestamps=1, crashes=0, restarts=1, attempts=1, messages=1),
)
_add(
    "half-is-enough",
    broken.HalfIsEnough,
    "CM-R3.1: half of the group that remembers is enough, without a majority that votes",
    "in a group of an even number two halves go on by themselves",
    Scope(sites=2, resilience=0, timestamps=1, crashes=0, attempts=1, messages=1),
)
_add(
    "joined-version-lost",
    broken.JoinedVersionLost,
    "CM-R9: the joined version is not on disk (nor does a boot number tell two lives apart)",
    "after a restart the site joins a list it had promised never to join, and its vote of before "
    "the restart counts in another",
    _COLD_CRASH,
    LISTED,
)
_add(
    "restart-resumes",
    broken.RestartResumes,
    "CM-R17: a restarted site resumes its old list",
    "it commits in a list that others have replaced",
    WITHIN,
)
_add(
    "promise-not-persisted",
    broken.PromiseNotPersisted,
    "CM-R11: entries below the start of a list are not on disk",
    "the vote promised to hold them; a crash forgets them",
    _CRASH,
)
_add(
    "list-not-persisted",
    broken.ListNotPersisted,
    "CM-R11: the list committed to is not on disk",
    "a restarted site votes for an older list than the one it helped to authorize",
    _COLD_CRASH,
)
_add(
    "wiped-counts",
    broken.WipedCounts,
    "CM-R3.1: a site that lost its disk counts for the majority",
    "two majorities no longer share a site that remembers",
    Scope(resilience=0, timestamps=1, crashes=0, wipes=1, attempts=2, messages=1, boot=COLD),
)
_add(
    "wiped-is-witness",
    broken.WipedIsWitness,
    "CM-R3.3: a site that lost its disk is a witness",
    "it proves nothing about what it processed",
    Scope(resilience=0, timestamps=1, crashes=0, wipes=1, attempts=1, messages=2),
)
_add(
    "wipe-not-persisted",
    TokenSite,
    "CM-R3: that the disk was lost is not on the new disk",
    "a second crash, and the site counts, and is a witness, as if it had forgotten nothing",
    Scope(resilience=0, timestamps=1, crashes=1, wipes=1, attempts=1, messages=2),
    stable_class=broken.WipeNotPersisted,
)

# -- lists -------------------------------------------------------------------------------------

_add(
    "resumes-old-list",
    broken.ResumesOldList,
    "CM-R9: a site that leaves an attempt goes on in its old list",
    "the freeze is what makes the resiliency test sound",
    _TWO,
)
_add(
    "no-majority",
    broken.NoMajority,
    "CM-R3.1: no majority test",
    "two lists can commit side by side",
    _ONE,
)
_add(
    "no-unanimity",
    broken.NoUnanimity,
    "CM-R5: no unanimous vote",
    "a list is authorized whose members lack committed messages",
    _TWO,
)
_add(
    "no-resiliency-test",
    broken.NoResiliencyTest,
    "CM-R3.3: no resiliency test",
    "the old list may still commit what the new one gives away",
    _ONE_L0,
)
_add(
    "witness-too-far",
    broken.WitnessTooFar,
    "CM-R3.3: one site too many counts as a witness",
    "the site behind the L successors need not have processed what was committed",
    _ONE_L0,
)
_add(
    "knows-the-heir",
    broken.KnowsTheHeir,
    "CM-R3.3, `to_source`: the next sites in the ring count as those that stamp next",
    "the token went to the source: a site that never had it vouches that nothing was committed",
    Scope(resilience=1, timestamps=1, crashes=1, attempts=1, messages=1, to_source=True),
)
_add(
    "starts-too-low",
    broken.StartsTooLow,
    "CM-R3.2: the new list starts at the smallest nts",
    "committed timestamps are given away again",
    _ONE,
)
_add(
    "elects-any-list",
    broken.ElectsAnyList,
    "CM-R3, E 51: the basis is taken among all voters, whatever their list",
    "a site of an older list may have more timestamps, and void ones",
    _RIVALS,
)
_add(
    "keeps-old-entries",
    broken.KeepsOldEntries,
    "CM-R11: entries of another list are kept",
    "they stand where the old list put something else",
    _RIVALS,
)
_add(
    "joins-any-version",
    broken.JoinsAnyVersion,
    "CM-R9: no sequence test",
    "a site joins an older list after a newer one",
    _COLD,
    LISTED,
)
_add(
    "version-used-twice",
    broken.VersionUsedTwice,
    "CM-R1: an originator uses a version again",
    "two lists of one version with different members",
    _COLD,
    LISTED,
)
_add(
    "votes-unrecovered",
    broken.VotesUnrecovered,
    "CM-R11: a slave votes before it has recovered",
    "the list starts with members that lack its messages",
    _TWO,
)
_add(
    "token-of-an-abandoned-list",
    broken.TokenOfAnAbandonedList,
    "CM-R13: NEW_TOKEN is accepted by a site that has left",
    "a list without all its members commits, or has two tokens",
    WITHIN,
)

# -- commit ------------------------------------------------------------------------------------

_add(
    "null-at-once",
    broken.NullAtOnce,
    "CM-N15, E 11: a NULL is committed at once",
    "the commit mark runs over a timestamp that the next list gives to a message",
    Scope(resilience=1, timestamps=2, crashes=0, kr=2, attempts=1, messages=1),
)
_add(
    "sent-is-accepted",
    broken.SentIsAccepted,
    "CM-N15, E 7: a transfer counts when it is sent",
    "the last of the L + 1 holders may have nothing",
    _ONE,
)
_add(
    "commits-unauthorized",
    broken.CommitsUnauthorized,
    "CM-R16, E 59: entries are committed before the list has a token",
    "an unauthorized list may be abandoned",
    _RIVALS,
)
_add(
    "commits-on-arrival",
    broken.CommitsOnArrival,
    "CM-R11: everything recovered is committed, not only what the sender had committed",
    "the list may never be authorized",
    WITHIN,
)
_add(
    "commits-what-is-stamped",
    broken.CommitsWhatIsStamped,
    "CM-N15: an acknowledged message is committed",
    "it may vanish with its holder",
    _ONE,
)

# -- messages ----------------------------------------------------------------------------------

_add(
    "stamps-twice",
    broken.StampsTwice,
    "CM-N6: a message that has a stamp is stamped again",
    "it is delivered twice",
    Scope(resilience=0, crashes=0, attempts=0, messages=2),
)
_add(
    "keeps-committed",
    broken.KeepsCommitted,
    "CM-N5: an own message is kept when it has been committed",
    "it is sent again as the next one, and delivered twice",
    Scope(resilience=1, crashes=0, attempts=0, messages=2),
)
_add(
    "keeps-queue-across-lists",
    broken.KeepsQueueAcrossLists,
    "CM-R11: Q_B survives a list change",
    "a number that a restarted source gives to another message is stamped with the old content",
    WITHIN,
)
_add(
    "old-ack-grants",
    broken.OldAckGrants,
    "E 55: a repeated old acknowledgement grants the token again",
    "two sites stamp the same timestamp",
    Scope(resilience=1, crashes=0, attempts=0, messages=3),
)

# -- lives -------------------------------------------------------------------------------------

_add(
    "listens-to-twins",
    broken.ListensToTwins,
    "PDUs of a list are taken from any life of a member, votes for any life of the originator",
    "two processes of one name give one number to two messages",
    (60, 70),
)
_add(
    "takes-receipts-of-twins",
    broken.TakesReceiptsOfTwins,
    "CM-N5: what another life of the site has sent is let go as an own message",
    "a message is confirmed that nobody is ever given",
    (0, 10),
)
_add(
    "replaced-counts",
    broken.ReplacedCounts,
    "a site that knows less of its lists than others know of it counts for the majority",
    "its replacement has promised what it does not know: two majorities",
    (60, 70),
)
