"""The judge of `roundelay chaos --api`: it sees what applications noted down (`chaos_api.notes`),
and nothing else.  What it finds is one of

=============  ===================================================================================
lost           a confirmed message is missing where it had to be given
twice          a message was given again
order          another message at the same position, or a sender's messages out of their order
invented       a message that nobody sent, or other bytes, or another sender's name
jump           `seq` went on behind a gap, and no error had named it
refused        a message that was refused was given all the same
receipt        a receipt names another position than the delivery
hang           after the last fault somebody could not get a message confirmed in time, or was
               not given what others had confirmed
twin           a second process of one name took part, or one that was replaced was not told
silence        the group ended as if it were over, and no error said so
history        a member went on in another history without an error
told           positions are missing that a recorder had to have
=============  ===================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final

from msgspec import Struct, field

from roundelay.core.families import NONE, TOTAL, Family
from roundelay.runs.chaos_api.notes import LEFT_OUT, MEMBER, NAME_TAKEN, TWIN, Life, Note
from roundelay.runs.chaos_api.plan import FAMILY_OF

HANDED_OVER_NS: Final = 1_000_000_000
"""So long a node may take to hand a message to its application: what it still had when it was
killed went with it."""

SAID_MAX: Final = 5
"""Findings of one kind that are told one by one."""


class Case(Struct, frozen=True, kw_only=True):
    """What a judge has to know of the round."""

    service: str
    recorded: bool = False
    """A recorder had everything, all the time."""
    away: dict[str, list[tuple[int, int]]] = {}
    """When members were killed, stopped or cut off, by their names."""
    killed: dict[str, list[int]] = {}
    """When nodes were killed, by the names of their members: their applications learn it later."""
    woken: dict[str, int] = {}
    """Lives that were stopped, and went on when another had their name: NAME.LIFE and when."""
    settle_s: float = 60.0
    """How long the last message of each member may take."""

    @property
    def family(self) -> Family:
        """The record of its protocol."""
        return FAMILY_OF[self.service]


class Judgement(Struct):
    """What came out."""

    findings: list[str] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    given: int = 0
    sent: int = 0
    confirmed: int = 0
    doubtful: int = 0
    denied: int = 0
    missing_told: int = 0
    """Positions that were missing, and an error said so."""
    slowest_s: float = 0.0
    """The longest that a last message took."""

    def find(self, kind: str, text: str) -> None:
        count = self.kinds.get(kind, 0)
        self.kinds[kind] = count + 1
        if count < SAID_MAX:
            self.findings.append(f"{kind}: {text}")


# -- judging ---------------------------------------------------------------------------------


def judge(case: Case, lives: list[Life]) -> Judgement:
    """Every rule, over all lives of all members."""
    out = Judgement()
    _name_ancestors(lives)
    for life in lives:
        out.given += len(life.given)
        out.sent += len(life.sent)
        out.confirmed += len(life.confirmed)
        out.doubtful += len(life.doubtful)
        out.denied += len(life.denied)
    sent = {ident: life for life in lives for ident in life.sent}
    for life in lives:
        _judge_contents(out, life, sent)
        _judge_senders(out, case, life, sent)
        if life.over:
            out.find("silence", f"{life}: the group ended without a word {life.over} times")
        if life.role == TWIN:
            _judge_twin(out, life)
        woken = case.woken.get(f"{life.name}.{life.number}")
        if woken is not None:
            _judge_replaced(out, life, woken, lives)
    _judge_denied(out, lives)
    if case.family.order == TOTAL:
        _judge_order(out, lives)
        for life in lives:
            _judge_positions(out, case, life)
        _judge_lost_in_total(out, lives)
    else:
        _judge_lost_per_sender(out, case, lives)
    _judge_end(out, case, lives)
    return out


def _judge_contents(out: Judgement, life: Life, sent: Mapping[str, Life]) -> None:
    """Nothing is given that was not sent, and nothing twice."""
    known: set[tuple[str, str]] = set()
    for given in life.given:
        author = sent.get(given.ident)
        if author is None:
            out.find("invented", f"{life} was given {given.ident!r}, which nobody sent")
        elif given.damaged:
            out.find("invented", f"{life} was given {given.ident} with other bytes than were sent")
        elif given.sender != author.name:
            out.find("invented", f"{life} was given {given.ident} as a message of {given.sender}")
        key = (_root(given.history, given.seq or 0), given.ident)
        if key in known:
            out.find("twice", f"{life} was given {given.ident} again, at position {given.seq}")
        known.add(key)


def _judge_senders(out: Judgement, case: Case, life: Life, sent: Mapping[str, Life]) -> None:
    """Each sender's messages in the order in which they were sent."""
    if case.family.order == NONE:
        return
    newest: dict[tuple[str, str, int, str], int] = {}
    for given in life.given:
        author = sent.get(given.ident)
        if author is None:
            continue
        history = _root(given.history, given.seq or 0)
        key = (history, author.name, author.number, author.role)
        number = author.sent[given.ident].number
        if number < newest.get(key, -1):
            out.find("order", f"{life} was given {given.ident} behind a later one of {author}")
        newest[key] = max(newest.get(key, -1), number)


def _judge_twin(out: Judgement, life: Life) -> None:
    if life.confirmed:
        out.find("twin", f"{life}, the second of its name, had {len(life.confirmed)} confirmed")
    elif not life.errors:
        out.find("twin", f"{life}, the second of its name, was not told so")


def _judge_replaced(out: Judgement, life: Life, woken: int, lives: list[Life]) -> None:
    """One of two lives of a name is told when the first wakes: the first, or else the second if it
    had done nothing yet, for then it is heard too late that the name is in use."""
    if any(error.time > woken for error in life.errors):
        return
    for other in lives:
        if (other.name, other.number, other.role) == (life.name, life.number + 1, MEMBER):
            done = [given.time for given in other.given]
            done += [receipt.time for receipt in other.confirmed.values()]
            warned = any(e.kind == NAME_TAKEN and e.time > woken for e in other.errors)
            if warned and not any(time < woken for time in done):
                return
    out.find("twin", f"{life} was replaced while it was stopped, and was not told so")


def _judge_denied(out: Judgement, lives: list[Life]) -> None:
    denied = {ident for life in lives for ident in life.denied}
    for life in lives:
        for given in life.given:
            if given.ident in denied:
                out.find("refused", f"{life} was given {given.ident}, which was refused")


def _judge_order(out: Judgement, lives: list[Life]) -> None:
    """One message a position, everywhere and for ever, and receipts say which."""
    placed: dict[tuple[str, int], tuple[str, str]] = {}
    where: dict[tuple[str, str], tuple[int, str]] = {}
    for life in lives:
        for given in life.given:
            if given.seq is None:
                out.find("order", f"{life} was given {given.ident} without a position")
                continue
            history = _root(given.history, given.seq)
            ident, by = placed.setdefault((history, given.seq), (given.ident, str(life)))
            if ident != given.ident:
                place = f"position {given.seq} of history {history or '?'}"
                out.find("order", f"{place}: {ident} at {by}, {given.ident} at {life}")
            seq, by = where.setdefault((history, given.ident), (given.seq, str(life)))
            if seq != given.seq:
                out.find(
                    "order", f"{given.ident} is at {seq} for {by} and at {given.seq} for {life}"
                )
    for life in lives:
        for ident, receipt in life.confirmed.items():
            known = where.get((_root(receipt.history, receipt.seq or 0), ident))
            if known is not None and known[0] != receipt.seq:
                says = f"{ident}: the receipt says {receipt.seq}"
                out.find("receipt", f"{says}, it was given at {known[0]}")


def _name_ancestors(lives: list[Life]) -> None:
    """Let ids of histories name all they continue: as noted, each names the last one only."""
    parents: dict[str, str] = {}
    for life in lives:
        histories = {given.history for given in life.given}
        histories |= {receipt.history for receipt in life.confirmed.values()}
        for history in histories:
            own, at, before = history.partition("@")
            if at and len(before) > len(parents.get(own, "")):
                parents[own] = before

    def full(history: str) -> str:
        own, _, before = history.partition("@")
        steps, seen = [own], {own}
        before = before or parents.get(own, "")
        while before:
            step, _, rest = before.partition("@")
            parent = step.partition(":")[0]
            if parent in seen:
                break
            seen.add(parent)
            steps.append(step)
            before = rest or parents.get(parent, "")
        return "@".join(steps)

    for life in lives:
        for note in (*life.given, *life.confirmed.values()):
            note.history = full(note.history)
        life.since = life.since and (full(life.since[0]), life.since[1])
        life.joins = [(at, since and (full(since[0]), since[1])) for at, since in life.joins]


def _root(history: str, seq: int) -> str:
    """The history in which that position was first used: `ID@PARENT:BASE` has the positions below
    BASE from PARENT."""
    own, *before = history.split("@")
    for step in before:
        parent, _, base = step.partition(":")
        if seq >= int(base):
            break
        own = parent
    return own


def _continues(history: str, before: str, seq: int) -> bool:
    """Whether who was at position `seq` of `before` is still there in `history`."""
    if not history or not before:
        return True
    return _root(history, max(0, seq - 1)) == _root(before, max(0, seq - 1))


def _told(life: Life, lo: int, hi: int, before: int) -> bool:
    """Whether errors before that line had named all positions from `lo` to `hi - 1`."""
    for first, last in sorted(_missing([life], before)):
        if first <= lo:
            lo = max(lo, last + 1)
    return lo >= hi


def _missing(lives: list[Life], before: float = inf) -> list[tuple[int, int]]:
    """The first and last positions that errors before that line have named."""
    return [
        (error.first, error.last)
        for life in lives
        for error in life.errors
        if error.at < before and error.first is not None and error.last is not None
    ]


def _judge_positions(out: Judgement, case: Case, life: Life) -> None:
    """No jump, nothing from before the position that was asked for, no other history unsaid."""
    joins = list(life.joins)
    expected: int | None = life.since[1] if life.since else None
    history = life.since[0] if life.since else ""
    before = 0
    for given in life.given:
        if given.seq is None:
            continue
        again = False
        while joins and joins[0][0] < given.at:
            _, since = joins.pop(0)
            again = True
            if since is None:
                history, expected = "", None
            elif expected is None or (since[0] or history) != history:
                history, expected = since
        warned = any(before <= error.at < given.at for error in life.errors)
        if expected is not None and not _continues(given.history, history, expected):
            if not warned:
                went_on = f"{life} went on in history {given.history} at {given.seq}"
                out.find("history", f"{went_on}, from {history} at {expected}")
            expected = None
        if expected is not None and given.seq < expected:
            why = f"though it asked for {expected}" if again else f"behind {expected - 1}"
            out.find("twice", f"{life} was given position {given.seq} {why}")
        elif expected is not None and given.seq > expected:
            if case.family.has_roles:
                pass  # there are also positions without a message for applications
            elif not _told(life, expected, given.seq, given.at):
                out.find(
                    "jump", f"{life}: from position {expected - 1} to {given.seq}, and no error"
                )
            else:
                out.missing_told += given.seq - expected
                if case.recorded:
                    lost = f"{expected} to {given.seq - 1}"
                    out.find("told", f"{life}: {lost} are missing, though recorded")
        expected = given.seq + 1
        history = given.history or history
        before = given.at


def _judge_lost_in_total(out: Judgement, lives: list[Life]) -> None:
    """Each confirmed message is at every member that was there to the end, from where it began."""
    confirmed: dict[str, tuple[Note, Life]] = {}
    for life in lives:
        for ident, receipt in life.confirmed.items():
            confirmed[ident] = (receipt, life)
    everywhere = {given.ident for life in lives for given in life.given}
    for ident, (_, author) in confirmed.items():
        if ident not in everywhere:
            out.find("lost", f"{ident}, confirmed to {author}, was given to nobody")
    for final in _final(lives):
        chain = _chain(final, lives)
        last = next((given.history for given in reversed(final.given) if given.history), "")
        idents = {given.ident for life in chain for given in life.given}
        places = [given.seq for life in chain for given in life.given if given.seq is not None]
        if not places:
            continue
        first = min(places)
        missing = _missing(chain)
        for ident, (receipt, author) in confirmed.items():
            seq = receipt.seq
            if ident in idents or ident not in everywhere or seq is None:
                continue
            if last and receipt.history and _root(last, seq) != _root(receipt.history, seq):
                gone = f"{ident}, confirmed to {author} at {receipt.history}:{seq}"
                out.find("lost", f"{gone}, went with its history: {final} is in {last}")
                continue
            if seq < first:
                continue
            if any(lo <= seq <= hi for lo, hi in missing):
                continue
            at = f"confirmed to {author} at position {seq}"
            out.find("lost", f"{ident}, {at}, was never given to {final}")


def _final(lives: list[Life]) -> list[Life]:
    """Those that were there when all was over."""
    return [life for life in lives if life.role == MEMBER and life.left]


def _chain(final: Life, lives: list[Life]) -> list[Life]:
    """A life and those before it, as far as each went on where the one before had stopped."""
    chain = [final]
    mine = {life.number: life for life in lives if life.name == final.name and life.role != TWIN}
    while chain[-1].since is not None and chain[-1].number - 1 in mine:
        chain.append(mine[chain[-1].number - 1])
    return chain


def _left_out(life: Life, author: Life, start: Note) -> bool:
    """Whether the life was told that messages may be missing where that one of the author is: it
    was given no later one before it was told so, and was not in again when it was sent."""
    later = {ident for ident, sent in author.sent.items() if sent.number > start.number}
    after = min((given.at for given in life.given if given.ident in later), default=None)
    signs = [given.time for given in life.given]
    signs += [view.time for view in life.views if view.state == "open"]
    again = max((time for time in signs if time < start.time), default=0)
    return any(
        error.kind == LEFT_OUT and error.time >= again and (after is None or error.at < after)
        for error in life.errors
    )


def _was_there(life: Life, start: Note, receipt: Note, killed: list[int]) -> bool:
    """Whether the life was in the group all the while, with one life of its node."""
    return any(
        lo < start.time and receipt.time < min([hi, *(at for at in killed if lo < at)])
        for lo, hi in life.there
    )


def _went_with_its_node(
    life: Life, author: Life, start: Note, receipt: Note, killed: list[int]
) -> bool:
    """Whether the node of that life may have had the message when it was killed: soon after it was
    confirmed, and before it had handed over any later one of the same sender."""
    end = min((at for at in killed if at > receipt.time), default=None)
    if end is None or end - receipt.time > HANDED_OVER_NS:
        return False
    later = {ident for ident, sent in author.sent.items() if sent.number > start.number}
    return not any(given.ident in later and given.time < end for given in life.given)


def _judge_lost_per_sender(out: Judgement, case: Case, lives: list[Life]) -> None:
    """Each confirmed message is at everybody its sender had in its view all the while."""
    final = {life.name: life for life in _final(lives)}
    idents = {name: {given.ident for given in life.given} for name, life in final.items()}
    for author in lives:
        for ident, receipt in author.confirmed.items():
            start = author.sent[ident]
            if case.family.own_packets and receipt.given_up is None:
                continue  # it does not say whom it left out
            there = set(start.members) & set(receipt.members)
            for view in author.views:
                if start.time <= view.time <= receipt.time:
                    there &= set(view.members)
            if start.to:
                there &= set(start.to)
            for name in sorted(there - set(receipt.given_up or ()) - {author.name}):
                life = final.get(name)
                if life is None or ident in idents[name] or not _knew(life, author, start.time):
                    continue
                killed = case.killed.get(name, [])
                if not _was_there(life, start, receipt, killed):
                    continue
                if _went_with_its_node(life, author, start, receipt, killed):
                    continue
                away = [*case.away.get(name, ()), *case.away.get(author.name, ())]
                if _left_out(life, author, start):
                    continue
                # Senders without an order go on without a receiver that is silent, and keep it in
                # their view.
                if case.family.order == NONE and any(
                    lo < receipt.time and start.time < hi for lo, hi in away
                ):
                    continue
                out.find("lost", f"{ident}, confirmed to {author}, was never given to {life}")


def _knew(life: Life, author: Life, time: int) -> bool:
    """Whether that life was in the group with `author` before, and not only on its way in."""
    return any(
        view.time < time and author.name in view.members and view.state == "open"
        for view in life.views
    )


def _judge_end(out: Judgement, case: Case, lives: list[Life]) -> None:
    """Everybody gets a last message through, and those of all others."""
    asked = [life for life in lives if life.role == MEMBER and life.settling]
    lasts = [(life, life.settled) for life in asked if life.settled]
    for life in asked:
        if not life.settled:
            out.find("hang", f"{life} could not get a last message confirmed")
            continue
        took = (life.confirmed[life.settled].time - life.settling) / 1e9
        out.slowest_s = max(out.slowest_s, took)
        if took > case.settle_s:
            out.find("hang", f"{life} had its last message confirmed after {took:.1f} s")
    for life in _final(lives):
        idents = {given.ident for given in life.given}
        for author, ident in lasts:
            if ident not in idents and author is not life:
                out.find("hang", f"{life} was not given {ident}, the last message of {author}")
