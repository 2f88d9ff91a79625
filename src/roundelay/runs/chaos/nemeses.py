"""The nemeses of `roundelay chaos` that trials by others found promises broken with.

What `chaos --api` does besides (a site that is replaced while it is stopped, an old copy of a
folder) cannot be judged by traces: they take a name for one site that never forgets what it has
delivered.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Final

import msgspec

from roundelay.core.events import FAULT, NOBODY
from roundelay.runs.chaos import kinds
from roundelay.runs.chaos.clock import WallClock, build
from roundelay.runs.chaos.plan import Trouble

if TYPE_CHECKING:
    from roundelay.runs.chaos.run import Chaos, Site

TWIN_S: Final = 20.0
"""In that time the second of a name has ended with an error."""
TWIN_MESSAGES: Final = 100


class Nemeses:
    """What they do to a run, and what they found."""

    def __init__(self, run: Chaos) -> None:
        self.run = run
        self.violations: list[str] = []

    def prepare(self) -> None:
        """Give every site a wall clock of its own, before it is started."""
        if any(trouble.kind == kinds.CLOCK for trouble in self.run.plan):
            folder = self.run.folder / "sites"
            folder.mkdir(parents=True, exist_ok=True)
            library = build(folder)
            for site in self.run.sites:
                site.clock = WallClock(library, folder / f"{site.name}.clock")
            if library is None:
                self.run.say("no C compiler here: clocks are not stepped")

    async def strike(self, trouble: Trouble, sites: list[Site]) -> None:
        await getattr(self, f"_{trouble.kind.replace('-', '_')}")(sites, trouble)

    async def _twin(self, sites: list[Site], trouble: Trouble) -> None:
        """Another process of that name: it has to end with an error, and to commit nothing."""
        site = sites[0]
        orders = msgspec.structs.replace(
            site.orders, folder=f"{site.orders.folder}-twin", life=site.orders.life + 1000,
            traces=str(self.run.folder / "twin"), messages=TWIN_MESSAGES, rate=TWIN_MESSAGES,
            record=False,
        )  # fmt: skip
        log = self.run.folder / f"{site.name}.twin.log"
        with log.open("ab") as errors:
            twin = await asyncio.create_subprocess_exec(
                *self.run.net.prefix(site.name), sys.executable, "-m",
                "roundelay.runs.chaos.site", msgspec.json.encode(orders).decode(),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip
        assert twin.stdin is not None
        twin.stdin.write(b"go\n")
        try:
            status = await asyncio.wait_for(twin.wait(), TWIN_S)
            if status == 0:
                self.violations.append(f"twin: the second {site.name} ended without an error")
        except TimeoutError:
            self.violations.append(f"twin: the second {site.name} was not told so in {TWIN_S:g} s")
            twin.kill()
            await twin.wait()

    async def _clock(self, sites: list[Site], trouble: Trouble) -> None:
        clock = sites[0].clock
        assert clock is not None
        self.run.row(NOBODY, FAULT, "clock:jump")
        clock.step(trouble.step_s)
        await asyncio.sleep(trouble.lasts_s)
        clock.step(0.0)

    async def _some(self, sites: list[Site], trouble: Trouble) -> None:
        """All are killed; a majority returns, and some time later the rest."""
        await self.run.end_lives(sites)
        await asyncio.sleep(trouble.lasts_s)
        most = len(sites) // 2 + 1
        await self.run.begin_lives(sites[:most])
        await asyncio.sleep(trouble.lasts_s)
        await self.run.begin_lives(sites[most:])

    async def _late_link(self, sites: list[Site], trouble: Trouble) -> None:
        await self.run.end_lives(sites)
        self.run.separate(kinds.LATE_LINK, [sites[0].name], trouble.lasts_s)
        await self.run.begin_lives(sites)
        await asyncio.sleep(trouble.lasts_s)
        self.run.net.heal()

    async def _two(self, sites: list[Site], trouble: Trouble) -> None:
        """One is killed while all that another sends is late."""
        killed, clogged = sites
        self.run.separate(kinds.CLOG, [clogged.name], trouble.lasts_s)
        await self.run.kill([killed], trouble)
        self.run.net.heal()
