"""The demo with real processes: five nodes, a lossy network between them, and a kill.

A chaos run (`runs.chaos.run`) with one trouble only: a site is killed while it holds the token, and
comes back.  It kills itself, since the token moves on faster than anybody outside could strike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from roundelay.core.engine import MS
from roundelay.runs.chaos.kinds import KILL
from roundelay.runs.chaos.plan import NAMES, ChaosParams, TimedTrouble
from roundelay.runs.chaos.run import Chaos
from roundelay.runs.folder import RunFolder
from roundelay.runs.report import agreement, beside, grid, page, picture, promises, verdict
from roundelay.trace.diagram.drawing import render
from roundelay.trace.live import ALL
from roundelay.trace.reader import TraceFile


def live_params(seed: int, messages: int = 100_000) -> ChaosParams:
    """What decides the demo, as far as anything does."""
    return ChaosParams(
        seed=seed, sites=5, senders=3, loss=0.05, messages=messages, seconds=messages / 5000,
        kills=1, pauses=0, partitions=0, recorders=2, level=ALL,
    )  # fmt: skip


class LiveDemo(Chaos):
    """A chaos run that can be watched."""

    def __init__(self, params: ChaosParams, folder: RunFolder, tell: Callable[[str], None]) -> None:
        super().__init__(params, folder.path, tell)
        self.home = folder
        victim = self.rng.choice(NAMES[: params.sites])
        self.plan = [TimedTrouble(KILL, (victim,), 3.0, at=0.4, holder=True)]
        self.weather = {"loss": params.loss}

    async def watched(self, look: Callable[[], None], every_s: float = 0.1) -> dict[str, Any]:
        """The run, with somebody who looks at it now and then."""

        async def looking() -> None:
            while True:
                look()
                await asyncio.sleep(every_s)

        looker = asyncio.create_task(looking())
        try:
            return await self.run()
        finally:
            looker.cancel()

    def write(self, results: dict[str, Any], more: Sequence[str] = ()) -> None:
        """Diagram, results and report, with what else there is to say in it."""
        home = self.home
        home.write_params("demo", msgspec.to_builtins(self.params))
        home.write_results(results)
        trace = TraceFile(home.trace)
        crash = trace.first("CRASH") or 0
        back = trace.first("RESTART") or crash
        title = "The token site is killed" if results["killed_with_token"] else "A site is killed"
        picture_of_crash = render(trace, *_around(crash), title=title)
        picture_of_return = render(trace, *_around(back), title="It comes back")
        html = self._report(results, picture_of_crash, picture_of_return, more)
        home.write_report(picture_of_crash, html)

    def sentence(self, results: dict[str, Any]) -> str:
        """The verdict in words."""
        if results["verdict"] == "kept":
            return agreement(self.params.sites, results["everywhere"]) + self.surplus(results)
        return f"The sites do NOT agree, or a promise was broken. {results['failure']}"

    def surplus(self, results: dict[str, Any]) -> str:
        """Why more messages may be there than were asked for, and fewer than were sent."""
        more = results["everywhere"] - self.params.messages
        lost = results["sent"] - results["everywhere"]
        text = ""
        if more > 0:
            text += (
                f" That is {more} more than the {self.params.messages:,} asked for: the site that "
                "was killed had not heard what became of its last messages, and sent them once "
                "more."
            )
        if lost > 0:
            text += (
                f" {lost} more were sent and are nowhere: they died with the process that was "
                "killed, which had been told of none of them that it is committed."
            )
        return text

    def _report(self, results: dict[str, Any], crash: str, back: str, more: Sequence[str]) -> str:
        params = self.params
        broken = {text.split(":")[0].split()[0] for text in results["violations"]}
        traffic = results["datagrams"]
        numbers = [
            ("messages asked for", self.params.messages),
            ("messages sent", results["sent"]),
            ("messages committed", results["committed"]),
            ("messages at every site", results["everywhere"]),
            ("receipts", results["settled"]),
            ("fate not known to the sender", results["doubtful"]),
            ("datagrams sent", traffic["received"]),
            ("copies lost on purpose", traffic["dropped"].get("loss", 0)),
            ("processes started", results["lives"]),
            ("seconds", results["seconds"]),
        ]
        story = [tuple(line.strip().split("  ", 1)) for line in results["story"]]
        sections = [
            verdict(results["verdict"] == "kept", self.sentence(results)),
            beside(promises(broken), grid("Numbers", ("", ""), numbers)),
            grid("What happened", ("", ""), story),
            picture("The kill", crash),
            picture("The return", back, 1),
            *more,
        ]
        subtitle = (
            f"{params.sites} processes, {params.senders} of them sending, {params.loss:.0%} of all "
            f"copies lost on the way, L = {params.resilience}"
        )
        return page("Roundelay demo", subtitle, sections)


def _around(moment: int) -> tuple[int, int]:
    return max(0, moment - 15 * MS), moment + 60 * MS
