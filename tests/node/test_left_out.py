"""Members of groups without positions that the others took for dead: nothing is lost in silence."""

from __future__ import annotations

import asyncio

import pytest

import roundelay
from tests.node.live import Net, delivered, freeze, membership_of, thaw, together, until

NULLS = {"partial": "PO_NULL", "selective": "SPO_NULL"}


@pytest.mark.parametrize(
    ("service", "seconds", "late_ring"),
    [
        ("partial", 0.5, False),
        ("selective", 0.5, False),
        ("partial", 6.0, False),
        ("partial", 0.5, True),
        ("selective", 0.5, True),
    ],
)
async def test_who_was_stopped_after_a_confirmation_is_given_it_or_told(
    service: str, seconds: float, late_ring: bool
) -> None:
    """d has accepted it, and hears of the others' acknowledgements only when all is over.

    `late_ring`: its ring has no list yet, as on a busy machine; messages went to and fro all the
    same, and then it was told nothing.
    """
    async with Net("switch", seed=3) as net:
        members = await net.form("abcd", service=service)
        d = members[3]
        epoch = membership_of(d).epoch
        left = members[:3]
        await members[0].group.broadcast(b"before")
        await delivered(members, 1)
        lost = {"kind": NULLS[service], "nth": 1, "many": 10_000, "to": "d"}
        net.switch.apply({"drop": lost})
        sending = asyncio.create_task(members[0].group.broadcast(b"confirmed"))
        await asyncio.sleep(0.1)
        freeze(d.node)
        if late_ring:
            membership_of(d).condition = "forming"
        await sending
        await together(left)
        await asyncio.sleep(seconds)
        net.switch.apply({"heal": True})
        thaw(d.node)
        await together(members)
        await members[1].group.broadcast(b"after")
        await delivered(left, 3)
        await until(lambda: d.error or b"after" in d.data, "something")
        if d.data != [b"before", b"confirmed", b"after"]:
            assert isinstance(d.error, roundelay.LeftOut)
            assert (d.error.epoch, d.data[:1]) == (epoch, [b"before"])
