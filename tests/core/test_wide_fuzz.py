"""Whatever a peer sends, a site of the hierarchy neither fails nor grows."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from roundelay.core.bundle import Bundle
from roundelay.core.engine import MS, Pdu
from roundelay.core.errors import QueueFull, Refused, UsageError
from roundelay.core.wide import pdu as wide
from roundelay.core.wide.config import WideConfig
from roundelay.core.wide.site import WideSite
from roundelay.core.wide.stable import WideStable
from roundelay.wire.codec import encode
from tests.core.test_grsb_fuzz import Mess
from tests.core.test_wide_rules import ATLAS, GCR, GDA, GPR, LB, LCR, LDA, LPR, A, B, C, U

CONFIG = WideConfig(
    da_buffer=8, overwrite_group=2, history=12, heard_max=16, rec_burst=8, own_limit=8, window=3,
    unit_bytes=64, credit=8, ready_max=4, ls_held=4, ls_keep=6, ls_repair=True, gpr_free=True,
).check()  # fmt: skip


class WideMess(Mess):
    """PDUs of the hierarchy as well, from those who could send them and from others."""

    def path(self) -> tuple[int, ...]:
        sites = [LB, A, B, C, U, self.site()]
        return tuple(dict.fromkeys(self.rng.choice(sites) for _ in range(self.rng.randrange(4))))

    def net(self) -> int:
        return self.rng.choice((1, 1, 2, 3, self.few()))

    def origin(self) -> int:
        return self.rng.choice((U, A, B, C, self.site()))

    def submission(self) -> tuple[int, int, int, int, int, int, int, Bundle]:
        few = self.few
        mtype = self.rng.randrange(4)
        return self.origin(), few(), few(), few(), mtype, few(), few(), self.bundle()

    def wide(self) -> Pdu:
        n, few, rng = self.number, self.few, self.rng
        gseq, acked = self.rising(2)
        choice = rng.randrange(11)
        made: tuple[Pdu, ...] = (
            wide.Up(self.net(), *self.submission()),
            wide.AckGcr(self.net(), self.origin(), few(), few(), gseq, 0, n(), acked),
            wide.Gbcast(self.net(), self.message(), n()),
            wide.AckLcr(self.net(), self.site(), acked, gseq),
            wide.Galive(self.epoch(), n(), acked, gseq, few()),
            wide.LsUp(*self.submission(), few(), self.path()),
            wide.LsDown(self.net(), self.message()),
            wide.Response(gseq, acked),
            wide.LsAck(self.origin(), few(), few(), n(), self.path()),
            wide.LsAsk(n(), self.path()),
            wide.LsData(self.net(), self.message(), self.path()),
        )
        return made[choice]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("me", [LCR, LDA, LPR, LB, U, A, B, GCR, GDA, GPR])
def test_nothing_that_arrives_makes_a_site_fail_or_grow(me: int, seed: int) -> None:
    rng = Random(f"{me}/{seed}")
    mess = WideMess(rng, ATLAS.sites)
    stable = WideStable()
    site = WideSite(
        me, ATLAS, CONFIG, Random(seed), inc=1, archive=stable.local, globe_archive=stable.globe
    )
    near = [LCR, LDA, LPR, LB, A, B, C, GCR, GPR, *range(ATLAS.sites)]
    now = 0
    taken = 0
    for step in range(700):
        now += rng.choice((0, MS, 30 * MS, 400 * MS))
        if site.deadline <= now:
            site.on_timer(now)
        flat = rng.random() < 0.4
        pdu = mess.pdu() if flat else mess.wide()
        line = rng.choice((0, 1, 2, 2, 3)) if flat else rng.choice((2, 3))
        before = dict(site.drops)
        site.receive(pdu, rng.choice(near), now, line)
        taken += before == site.drops
        if step % 7 == 0:
            with suppress(QueueFull, Refused, UsageError):
                site.submit(Bundle.of(b"x"), now)
        out = site.take()
        for record in out.persists:
            stable.apply(record)
        for _, sent, on in out.sends:
            encode(sent, sender=me, group_id=1, line=on)  # what it says can be said
        assert len(out.sends) < 400
        caps = site.caps()
        for what, used in site.usage().items():
            assert used <= caps[what], what
    assert taken > 100, "hardly anything got through"
