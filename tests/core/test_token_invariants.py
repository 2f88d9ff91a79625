"""The invariants of a token site notice what breaks them: each is broken here by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from roundelay.core.errors import InvariantBroken
from roundelay.core.token.phases import NORMAL, O1, OUT, S2, W3
from roundelay.core.token.site import TokenSite
from tests.core.ring import MS, Ring

Break = Callable[[Any], object]


def running(held: bool) -> TokenSite:
    """A site of a group that has committed some messages; `held`: one that has the token."""
    ring = Ring(3)
    for number in range(6):
        ring.submit(number % 3, f"message {number}")
        ring.run(50 * MS)
    site = next(site for site in ring.sites.values() if site.stamping.holding == held)
    site.check_invariants()
    return site


def put(path: str, value: Any) -> Break:
    """Set `part.attribute` to a value, or to what a function makes of the site."""

    def do(site: Any) -> None:
        *parts, name = path.split(".")
        holder = site
        for part in parts:
            holder = getattr(holder, part)
        setattr(holder, name, value(site) if callable(value) else value)

    return do


def phase(name: str, *breaks: Break) -> Break:
    def do(site: Any) -> None:
        site.stamping.holding, site.stamping.passing = False, -1
        site.phase = name
        for one in breaks:
            one(site)

    return do


BREAKS: dict[str, Break] = {
    "cnts above nts": put("log.cnts", lambda site: site.log.nts + 1),
    "logged above nts": put("log.logged", lambda site: site.log.nts + 1),
    "an entry is gone": lambda site: site.log.entries.popitem(),
    "fewer than none uncommitted": put("log.uncommitted", -1),
    "more retained than there are": put("log.retained", 1 << 20),
    "the position at cnts above that at nts": put("log.seq", lambda site: site.log.nseq + 1),
    "another message is out than the next": put("own.outstanding", 1 << 20),
    "bytes wait in no bundle": put("own.waiting_bytes", 5),
    "fewer bytes than none": put("own.waiting_bytes", -1),
    "a transfer above nts": put("commit.transfers", lambda site: deque([site.log.nts + 3])),
    "a transfer is accepted before it was made": put("commit.accepted_upto", 1 << 20),
    "somebody holds more than there is": put(
        "commit.issues", lambda site: deque([(site.log.nts + 7, 0)])
    ),
    "a confirmation waits for the past": put("commit.confirm_ts", 0),
    "a list that was never joined": put("token_list.version", (1 << 20, 0)),
    "a list without its first": put("token_list.first", 9),
    "nts below the list's start": put("token_list.start_ts", 1 << 20),
    "a site is expected that is in no list": put("log.exp", 9),
    "a timer is due before the deadline": put("deadline", 1 << 61),
    "an acknowledgement of the past waits": lambda site: site.ordering.qc.update({0: None}),
    "a stamped message waits for a stamp": lambda site: site.ordering.qb.update({(1, 0): None}),
    "an acknowledgement is asked for that is here": lambda site: site.requests.pending.update(
        {0: [1 << 60, 0, 0]}
    ),
    "a request is due before its timer": lambda site: (
        site.requests.pending.update({site.log.nts + 5: [0, 0, 0]}),
        put("timers.request_due", 1 << 60)(site),
    ),
    "an attempt above what was joined": put("reformation.attempt", (1 << 20, 0)),
    "no attempt in a reformation": phase(O1, put("reformation.attempt", None)),
    "an attempt outside of all lists": phase(
        OUT, put("reformation.attempt", lambda site: site.reformation.max_joined)
    ),
    "no list in the second phase": phase(
        S2, put("reformation.attempt", lambda site: site.reformation.max_joined),
        put("reformation.new_tl", None),
    ),
    "no list while the token is waited for": phase(
        W3, put("reformation.attempt", lambda site: site.reformation.max_joined),
        put("reformation.new_tl", None),
    ),
    "an originator without its vote": phase(
        O1, put("reformation.attempt", lambda site: site.reformation.max_joined),
        put("reformation.votes", {}),
    ),
    "staged entries in the normal phase": put("recovery.staged", {3: None}),
}  # fmt: skip

OF_A_HOLDER: dict[str, Break] = {
    "the token is held and passed": put("stamping.passing", 1),
    "the token is held, and another is expected": put(
        "log.exp", lambda site: next(m for m in site.token_list.members if m != site.me)
    ),
    "the token came by a stamp above nts": put("stamping.hold_ts", 1 << 20),
    "the token is held outside of the normal phase": put("phase", OUT),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_invariant_is_noticed(name: str) -> None:
    site = running(held=False)
    assert site.phase == NORMAL
    BREAKS[name](site)
    with pytest.raises(InvariantBroken):
        site.check_invariants()


@pytest.mark.parametrize("name", OF_A_HOLDER)
def test_a_broken_invariant_of_the_one_who_has_the_token_is_noticed(name: str) -> None:
    site = running(held=True)
    OF_A_HOLDER[name](site)
    with pytest.raises(InvariantBroken):
        site.check_invariants()
