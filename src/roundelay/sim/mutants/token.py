"""Mutants of the token protocol.

What the explorer never does, because its reductions rest on the rule in question, is left to the
random runs: to work again in a list that was left, and to keep messages of an earlier list.
*Lives* are the rules of docs/token.md, "Two lives of one site".

The shipped engine is clean in the same scopes and seeds: `tests/sim/test_mutants.py` runs it, too.
"""

from __future__ import annotations

from typing import Final

from roundelay.core.token.config import COLD
from roundelay.sim.explore.token.relevance import LISTED
from roundelay.sim.explore.token.scope import Scope
from roundelay.sim.mutants import token_sites as broken
from roundelay.sim.mutants.mutant import Mutant

WITHIN: Final = (0, 200)
"""Seeds among which the swarm has to catch a mutant; the first that does ends the search."""

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

TOKEN_MUTANTS: Final = (
    # -- recovery after a crash --------------------------------------------------------------------
    Mutant(
        name="recovered-is-ordinary",
        site_class=broken.RecoveredIsOrdinary,
        rule="CM-R3, CM-R17: a restarted site does not say that it may have forgotten entries",
        wrong="it passes for a witness of what it forgot, and a committed message is given away",
        expects=("I3",),
        scope=Scope(resilience=1, timestamps=1, crashes=1, attempts=1, messages=1),
    ),
    Mutant(
        name="writes-what-is-committed",
        site_class=broken.WritesWhatIsCommitted,
        rule="CM-R17: entries are written when they are committed, not when they are processed",
        wrong="a site whose disk is whole passes for a witness of what it never wrote",
        expects=("I3",),
        scope=Scope(resilience=1, timestamps=1, crashes=0, restarts=1, attempts=1, messages=1),
    ),
    Mutant(
        name="half-is-enough",
        site_class=broken.HalfIsEnough,
        rule="CM-R3.1: half of the group that remembers is enough, without a majority that votes",
        wrong="in a group of an even number two halves go on by themselves",
        expects=("I3",),
        scope=Scope(sites=2, resilience=0, timestamps=1, crashes=0, attempts=1, messages=1),
    ),
    Mutant(
        name="joined-version-lost",
        site_class=broken.JoinedVersionLost,
        rule="CM-R9: the joined version is not on disk, nor does a boot number tell lives apart",
        wrong=(
            "after a restart the site joins a list it had promised never to join, and its vote "
            "of before the restart counts in another"
        ),
        expects=("InvariantBroken: below our",),
        scope=_COLD_CRASH,
        memory=LISTED,
    ),
    Mutant(
        name="restart-resumes",
        site_class=broken.RestartResumes,
        rule="CM-R17: a restarted site resumes its old list",
        wrong="it commits in a list that others have replaced",
        expects=("I3",),
        seeds=WITHIN,
    ),
    Mutant(
        name="promise-not-persisted",
        site_class=broken.PromiseNotPersisted,
        rule="CM-R11: entries below the start of a list are not on disk",
        wrong="the vote promised to hold them; a crash forgets them",
        expects=("I3",),
        scope=_CRASH,
    ),
    Mutant(
        name="list-not-persisted",
        site_class=broken.ListNotPersisted,
        rule="CM-R11: the list committed to is not on disk",
        wrong="a restarted site votes for an older list than the one it helped to authorize",
        expects=("InvariantBroken: below our",),
        scope=_COLD_CRASH,
    ),
    Mutant(
        name="wiped-counts",
        site_class=broken.WipedCounts,
        rule="CM-R3.1: a site that lost its disk counts for the majority",
        wrong="two majorities no longer share a site that remembers",
        expects=("I3",),
        scope=Scope(
            resilience=0, timestamps=1, crashes=0, wipes=1, attempts=2, messages=1, boot=COLD
        ),
    ),
    Mutant(
        name="wiped-is-witness",
        site_class=broken.WipedIsWitness,
        rule="CM-R3.3: a site that lost its disk is a witness",
        wrong="it proves nothing about what it processed",
        expects=("I1",),
        scope=Scope(resilience=0, timestamps=1, crashes=0, wipes=1, attempts=1, messages=2),
    ),
    Mutant(
        name="wipe-not-persisted",
        stable_class=broken.WipeNotPersisted,
        rule="CM-R3: that the disk was lost is not on the new disk",
        wrong="after a second crash the site counts, and is a witness, as if nothing was forgotten",
        expects=("I1",),
        scope=Scope(resilience=0, timestamps=1, crashes=1, wipes=1, attempts=1, messages=2),
    ),
    # -- lists -------------------------------------------------------------------------------------
    Mutant(
        name="resumes-old-list",
        site_class=broken.ResumesOldList,
        rule="CM-R9: a site that leaves an attempt goes on in its old list",
        wrong="the freeze is what makes the resiliency test sound",
        expects=("I3",),
        scope=_TWO,
    ),
    Mutant(
        name="no-majority",
        site_class=broken.NoMajority,
        rule="CM-R3.1: no majority test",
        wrong="two lists can commit side by side",
        expects=("I3",),
        scope=_ONE,
    ),
    Mutant(
        name="no-unanimity",
        site_class=broken.NoUnanimity,
        rule="CM-R5: no unanimous vote",
        wrong="a list is authorized whose members lack committed messages",
        expects=("I3",),
        scope=_TWO,
    ),
    Mutant(
        name="no-resiliency-test",
        site_class=broken.NoResiliencyTest,
        rule="CM-R3.3: no resiliency test",
        wrong="the old list may still commit what the new one gives away",
        expects=("I3",),
        scope=_ONE_L0,
    ),
    Mutant(
        name="witness-too-far",
        site_class=broken.WitnessTooFar,
        rule="CM-R3.3: one site too many counts as a witness",
        wrong="the site behind the L successors need not have processed what was committed",
        expects=("I3",),
        scope=_ONE_L0,
    ),
    Mutant(
        name="knows-the-heir",
        site_class=broken.KnowsTheHeir,
        rule="CM-R3.3, `to_source`: the next sites in the ring count as those that stamp next",
        wrong="the source had the token: a site that never did vouches that nothing was committed",
        expects=("I3",),
        scope=Scope(resilience=1, timestamps=1, crashes=1, attempts=1, messages=1, to_source=True),
    ),
    Mutant(
        name="starts-too-low",
        site_class=broken.StartsTooLow,
        rule="CM-R3.2: the new list starts at the smallest nts",
        wrong="committed timestamps are given away again",
        expects=("InvariantBroken: below our",),
        scope=_ONE,
    ),
    Mutant(
        name="elects-any-list",
        site_class=broken.ElectsAnyList,
        rule="CM-R3, E 51: the basis is taken among all voters, whatever their list",
        wrong="a site of an older list may have more timestamps, and void ones",
        expects=("I1",),
        scope=_RIVALS,
    ),
    Mutant(
        name="keeps-old-entries",
        site_class=broken.KeepsOldEntries,
        rule="CM-R11: entries of another list are kept",
        wrong="they stand where the old list put something else",
        expects=("I1",),
        scope=_RIVALS,
    ),
    Mutant(
        name="joins-any-version",
        site_class=broken.JoinsAnyVersion,
        rule="CM-R9: no sequence test",
        wrong="a site joins an older list after a newer one",
        expects=("InvariantBroken: below our",),
        scope=_COLD,
        memory=LISTED,
    ),
    Mutant(
        name="version-used-twice",
        site_class=broken.VersionUsedTwice,
        rule="CM-R1: an originator uses a version again",
        wrong="two lists of one version with different members",
        expects=("InvariantBroken: below our",),
        scope=_COLD,
        memory=LISTED,
    ),
    Mutant(
        name="votes-unrecovered",
        site_class=broken.VotesUnrecovered,
        rule="CM-R11: a slave votes before it has recovered",
        wrong="the list starts with members that lack its messages",
        expects=("I3",),
        scope=_TWO,
    ),
    Mutant(
        name="token-of-an-abandoned-list",
        site_class=broken.TokenOfAnAbandonedList,
        rule="CM-R13: NEW_TOKEN is accepted by a site that has left",
        wrong="a list without all its members commits, or has two tokens",
        expects=("I3",),
        seeds=WITHIN,
    ),
    # -- commit ------------------------------------------------------------------------------------
    Mutant(
        name="null-at-once",
        site_class=broken.NullAtOnce,
        rule="CM-N15, E 11: a NULL is committed at once",
        wrong="the commit mark runs over a timestamp that the next list gives to a message",
        expects=("I3",),
        scope=Scope(resilience=1, timestamps=2, crashes=0, kr=2, attempts=1, messages=1),
    ),
    Mutant(
        name="sent-is-accepted",
        site_class=broken.SentIsAccepted,
        rule="CM-N15, E 7: a transfer counts when it is sent",
        wrong="the last of the L + 1 holders may have nothing",
        expects=("I3",),
        scope=_ONE,
    ),
    Mutant(
        name="commits-unauthorized",
        site_class=broken.CommitsUnauthorized,
        rule="CM-R16, E 59: entries are committed before the list has a token",
        wrong="an unauthorized list may be abandoned",
        expects=("I1",),
        scope=_RIVALS,
    ),
    Mutant(
        name="commits-on-arrival",
        site_class=broken.CommitsOnArrival,
        rule="CM-R11: everything recovered is committed, not only what the sender had committed",
        wrong="the list may never be authorized",
        expects=("I3",),
        seeds=WITHIN,
    ),
    Mutant(
        name="commits-what-is-stamped",
        site_class=broken.CommitsWhatIsStamped,
        rule="CM-N15: an acknowledged message is committed",
        wrong="it may vanish with its holder",
        expects=("I3",),
        scope=_ONE,
    ),
    # -- messages ----------------------------------------------------------------------------------
    Mutant(
        name="stamps-twice",
        site_class=broken.StampsTwice,
        rule="CM-N6: a message that has a stamp is stamped again",
        wrong="it is delivered twice",
        expects=("I4",),
        scope=Scope(resilience=0, crashes=0, attempts=0, messages=2),
    ),
    Mutant(
        name="keeps-committed",
        site_class=broken.KeepsCommitted,
        rule="CM-N5: an own message is kept when it has been committed",
        wrong="it is sent again as the next one, and delivered twice",
        expects=("I4",),
        scope=Scope(resilience=1, crashes=0, attempts=0, messages=2),
    ),
    Mutant(
        name="keeps-queue-across-lists",
        site_class=broken.KeepsQueueAcrossLists,
        rule="CM-R11: Q_B survives a list change",
        wrong="a number that a restarted source uses again is stamped with the old content",
        expects=("I1",),
        seeds=WITHIN,
    ),
    Mutant(
        name="old-ack-grants",
        site_class=broken.OldAckGrants,
        rule="E 55: a repeated old acknowledgement grants the token again",
        wrong="two sites stamp the same timestamp",
        expects=("CM-T3",),
        scope=Scope(resilience=1, crashes=0, attempts=0, messages=3),
    ),
    # -- lives -------------------------------------------------------------------------------------
    Mutant(
        name="listens-to-twins",
        site_class=broken.ListensToTwins,
        rule="lives 1: PDUs of a list are taken from any life of a member, votes from any life",
        wrong="two processes of one name give one number to two messages",
        expects=("I1",),
        seeds=(60, 70),
    ),
    Mutant(
        name="takes-receipts-of-twins",
        site_class=broken.TakesReceiptsOfTwins,
        rule="CM-N5, lives 3: what another life of the site has sent is let go as an own message",
        wrong="a message is confirmed that nobody is ever given",
        expects=("I1",),
        seeds=(0, 10),
    ),
    Mutant(
        name="replaced-counts",
        site_class=broken.ReplacedCounts,
        rule="lives 2: a site that knows less of its lists than others do counts for the majority",
        wrong="its replacement has promised what it does not know: two majorities",
        expects=("I1",),
        seeds=(60, 70),
    ),
)
