"""Whatever a peer sends, a GRSB site neither fails nor grows."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.engine import MS, Pdu
from roundelay.core.errors import QueueFull, Refused
from roundelay.core.grsb import pdu as grsb
from roundelay.core.grsb.config import DEMO, FAILSAFE, GrsbConfig, Roles
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import GrsbStable
from roundelay.wire.codec import encode

CONFIG = GrsbConfig(
    da_buffer=8, overwrite_group=2, history=12, heard_max=16, rec_burst=8, own_limit=8, window=3,
    unit_bytes=64,
).check()  # fmt: skip


class Mess:
    """Makes PDUs out of small and absurd numbers."""

    def __init__(self, rng: Random, sites: int) -> None:
        self.rng = rng
        self.sites = sites

    def number(self) -> int:
        rng = self.rng
        if rng.random() < 0.03:
            return rng.choice((2**31, 2**62))
        return rng.randrange(rng.choice((1, 3, 10, 40)))

    def epoch(self) -> int:
        return self.rng.choice((0, 0, 0, 0, 0, 0, self.number()))

    def rising(self, many: int) -> list[int]:
        """Mostly as they should be."""
        made = [self.number() for _ in range(many)]
        return made if self.rng.random() < 0.1 else sorted(made)

    def few(self) -> int:
        return self.rng.randrange(5)

    def site(self) -> int:
        sites: tuple[int, ...] = (*range(self.sites), 60_000)
        return self.rng.choice(sites)

    def bundle(self) -> Bundle:
        rng = self.rng
        return Bundle.of(*[bytes(rng.randrange(30)) for _ in range(rng.choice((0, 1, 1, 1, 3)))])

    def message(self) -> grsb.Message:
        n = self.number
        return grsb.Message(
            self.epoch(), n(), n(), self.site(), self.few(), self.few(), self.few(), self.few(),
            self.few(), self.few(), self.bundle(),
        )  # fmt: skip

    def state(self) -> grsb.State:
        counters = tuple(
            grsb.Counter(
                self.site(), self.few(), self.few(), self.number(), self.rng.random() < 0.5
            )
            for _ in range(self.few())
        )
        low, high = sorted((self.number(), self.number()))
        return grsb.State(low, high, self.number(), self.few(), self.few(), counters)

    def ranges(self) -> tuple[tuple[int, int], ...]:
        many = self.rng.choice((0, 1, 1, 1, 2, 20))
        pairs = [self.rising(2) for _ in range(many)]
        return tuple((lo, hi) for lo, hi in pairs if lo < hi)

    def some(self) -> tuple[int, ...]:
        return tuple({self.few() for _ in range(self.few())})

    def bcast(self) -> Pdu:
        message = self.message()
        return grsb.Bcast(message, self.rng.choice((message.gseq, 0, self.number())))

    def alive(self) -> Pdu:
        start, recorded, acked, top = self.rising(4)
        mode = self.rng.randrange(2)
        return grsb.Alive(
            self.epoch(), min(start, acked), top, acked, recorded, 5, mode, self.few()
        )

    def recovered(self) -> Pdu:
        messages = tuple(self.message() for _ in range(self.rng.randrange(3)))
        lo, hi = self.rising(2)
        return grsb.Recovered(lo, hi, messages, self.epoch())

    def request(self) -> Pdu:
        since, until = self.rising(2)
        return grsb.ReplayReq(
            256 * self.few(), since, self.number(), until, self.some(), self.some(), self.some(),
            self.number(),
        )  # fmt: skip

    def pdu(self) -> Pdu:
        n, few, site = self.number, self.few, self.site
        rng = self.rng
        makers: tuple[Any, ...] = (
            lambda: grsb.Submit(few(), few(), few(), few(), few(), few(), b"", self.bundle()),
            lambda: grsb.SubmitAck(few(), few(), rng.randrange(2), n()),
            self.bcast,
            self.bcast,
            lambda: grsb.DaAck(self.epoch(), *self.rising(2)[::-1]),  # type: ignore[arg-type]
            self.alive,
            lambda: grsb.Recover(self.ranges(), self.epoch()),
            self.recovered,
            lambda: grsb.Poll(n()),
            lambda: grsb.PollOk(n()),
            lambda: grsb.Slow(rng.randrange(256)),
            self.request,
            lambda: grsb.ReplayData(256 * few(), 0, self.message()),
            lambda: grsb.ReplayEnd(256 * few(), *self.rising(2), few()),  # type: ignore[call-arg]
            lambda: grsb.Takeover(few(), n(), site(), site(), self.state()),
            lambda: grsb.Grant(few(), n(), n(), site(), site(), rng.randrange(4), self.state()),
            lambda: grsb.Stale(n(), site()),
        )
        made: Pdu = rng.choice(makers)()
        return made


@pytest.mark.parametrize("seed", range(32))
@pytest.mark.parametrize("layout", [DEMO, FAILSAFE])
def test_nothing_that_arrives_makes_a_site_fail_or_grow(layout: str, seed: int) -> None:
    rng = Random(f"{layout}/{seed}")
    roles = Roles.profile(layout, 8)
    mess = Mess(rng, roles.sites)
    me = seed % 8
    archive = GrsbStable()
    site = GrsbSite(me, roles, CONFIG, Random(seed), archive=archive, inc=1)
    now = 0
    for step in range(1500):
        now += rng.choice((0, MS, 30 * MS, 400 * MS))
        if site.deadline <= now:
            site.on_timer(now)
        site.receive(mess.pdu(), rng.randrange(roles.sites), now, rng.randrange(2))
        if site.user is not None and step % 7 == 0:
            with suppress(QueueFull, Refused):
                site.submit(Bundle.of(b"x"), now)
        out = site.take()
        for record in out.persists:
            archive.apply(record)
        for _, pdu, line in out.sends:
            encode(pdu, sender=me, group_id=1, line=line)  # what it says can be said
        assert len(out.sends) < 400
        caps = site.caps()
        for what, used in site.usage().items():
            assert used <= caps[what], what
    assert site.drops["malformed"] < 750, "hardly anything got through"
