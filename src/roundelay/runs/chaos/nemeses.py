"""What `roundelay chaos` does to its sites, besides what both commands do (`chaos.harness`).

What `chaos --api` does besides (a site that is replaced while it is stopped, an old copy of a
folder) cannot be judged by traces: they take a name for one site that never forgets what it has
delivered.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from roundelay.core.events import FAULT, NOBODY
from roundelay.runs.chaos import kinds
from roundelay.runs.chaos.harness import Strikes
from roundelay.runs.chaos.kinds import APPLICATION, Trouble
from roundelay.runs.chaos.network import SwitchNet
from roundelay.runs.chaos.plan import TimedTrouble

if TYPE_CHECKING:
    from roundelay.runs.chaos.run import Chaos, Site

HOLDS_S: Final = 5.0
"""In that time the token comes to everybody."""
TWIN_S: Final = 20.0
"""In that time the second of a name has ended with an error."""
TWIN_MESSAGES: Final = 100


class SiteStrikes(Strikes):
    """Troubles that the trace has, and what they found."""

    run: Chaos

    def __init__(self, run: Chaos) -> None:
        super().__init__(run)
        self.violations: list[str] = []
        self.with_token = False
        """Whether a site was killed while it held the token."""

    async def strike(self, trouble: Trouble) -> None:
        assert isinstance(trouble, TimedTrouble)
        with_token = ""
        if trouble.holder and trouble.kind == kinds.KILL:
            site = self.run.machines[trouble.who[0]]
            site.tell(APPLICATION, "die")
            self.with_token = await site.ends(HOLDS_S) is not None
            with_token = " and the token with it," if self.with_token else ""
        what = f"{trouble.kind} {trouble.target}".strip()
        names = ", ".join(trouble.who)
        self.run.say(f"{what} {names}{with_token} for {trouble.lasts_s:.1f} s")
        await super().strike(trouble)

    async def restart(self, machines: list[Site]) -> None:
        for site in machines:
            await site.start()
        await self.run.wait("those killed to start", lambda: all(site.word for site in machines))
        for site in machines:
            site.tell(APPLICATION, "go")

    async def majority_returned(self, machines: list[Site], trouble: Trouble) -> None:
        await asyncio.sleep(trouble.lasts_s)

    def record(self, event: int, detail: object, machine: Any = None) -> None:
        self.run.row(NOBODY if machine is None else machine.number, event, detail)

    async def _drop(self, trouble: TimedTrouble, sites: list[Site]) -> None:
        lost = {"kind": trouble.target, "nth": 1, "many": self.run.params.sites}
        assert isinstance(self.run.net, SwitchNet)
        self.run.net.apply({"drop": lost})
        self.record(FAULT, f"target:{trouble.target.lower()}")
        await self._kill(trouble, sites)

    async def _two(self, trouble: Trouble, sites: list[Site]) -> None:
        """One is killed while all that another sends is late."""
        killed, clogged = sites
        self.separate(kinds.CLOG, trouble, [clogged])
        await self._kill(trouble, [killed])
        self.run.net.heal()

    async def _twin(self, trouble: Trouble, sites: list[Site]) -> None:
        """Another process of that name: it has to end with an error, and to commit nothing."""
        [site] = sites
        folder = self.run.folder
        orders = msgspec.structs.replace(
            site.orders, folder=f"{site.orders.folder}-twin", life=site.orders.life + 1000,
            traces=str(folder / "twin"), messages=TWIN_MESSAGES, rate=TWIN_MESSAGES,
            record=False,
        )  # fmt: skip
        twin = type(site)(site.number, orders, folder / f"{site.name}.twin.log")
        twin.command_prefix = site.command_prefix
        await twin.start()
        twin.tell(APPLICATION, "go")
        status = await twin.ends(TWIN_S)
        if status is None:
            self.violations.append(f"twin: the second {site.name} was not told so in {TWIN_S:g} s")
        elif status == 0:
            self.violations.append(f"twin: the second {site.name} ended without an error")
        await twin.kill()
