"""Chaos: a group of real processes, a network that loses, and processes that die.

Every site is a process (`chaos.site`), every datagram crosses the seeded switch.  While some of
them send, two are killed and started again, one is stopped for a while, the network is split and
heals; one trouble at a time, since that is what the promises are made for (L = 1).  Then the
network is left in peace, and when everybody has everything the traces of all lives of all sites
are put together and judged by the checkers that judge the simulator's.

The seed decides who suffers, when, for how long, and what becomes of every datagram; the rest is up
to the machine, so a seed does not give the same run twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from typing import Any, Final

import msgspec

from roundelay.core.errors import RoundelayError
from roundelay.core.events import END, FAULT, HEAL, MARK, NO_REF, NOBODY, PAUSE, RESUME, STOP
from roundelay.core.families import TOKEN, TOTAL
from roundelay.core.positions import union
from roundelay.journal.reader import Reader
from roundelay.node.storage.folders import journal_folder
from roundelay.runs.chaos import kinds
from roundelay.runs.chaos.clock import WallClock
from roundelay.runs.chaos.nemeses import Nemeses
from roundelay.runs.chaos.network import network
from roundelay.runs.chaos.plan import (
    DROP,
    HEALED,
    NAMES,
    NEMESES,
    NEMESES_BY_SWITCH,
    POWER,
    ChaosParams,
    Trouble,
    troubles,
    weather,
)
from roundelay.runs.chaos.site import GROUP, Orders, Word
from roundelay.runs.folder import RunFolder
from roundelay.trace.checkers.check import check_trace
from roundelay.trace.live import LiveTrace
from roundelay.trace.merge import merge

LIVENESS_S: Final = 60.0
"""In that time.  A fraction of what the protocol's own time-outs allow."""

LOOK_S: Final = 0.05
HOLDS_S: Final = 5.0
"""In that time the token comes to everybody."""
PATIENT_STOP_S: Final = 30.0
HARNESS_LOG: Final = "harness.log"
LINE_MAX: Final = 1 << 16


class RunFailed(RoundelayError):
    """A run that cannot go on; says why."""


class Site:
    """A process, as the one who started it sees it."""

    def __init__(self, number: int, orders: Orders) -> None:
        self.number = number
        self.name = orders.name
        self.orders = orders
        self.word: Word | None = None
        self.words = 0
        self.process: asyncio.subprocess.Process | None = None
        self.paused = False
        self.down = False  # on purpose
        self.last_words: list[Word] = []  # of earlier lives
        self.clock: WallClock | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self, log: Path, prefix: list[str]) -> None:
        self.word = None
        self.down = False
        environment = os.environ | (self.clock.environment() if self.clock else {})
        with log.open("ab") as errors:
            self.process = await asyncio.create_subprocess_exec(
                *prefix, sys.executable, "-m", "roundelay.runs.chaos.site",
                msgspec.json.encode(self.orders).decode(),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
                limit=LINE_MAX, env=environment,
            )  # fmt: skip
        self._reader = asyncio.create_task(self._listen(self.process))

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            with suppress(msgspec.MsgspecError):  # half a line of one that was killed
                self.word = msgspec.json.decode(line, type=Word)
                self.words += 1

    def tell(self, word: bytes) -> asyncio.subprocess.Process:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(word + b"\n")
        return self.process

    async def die_with_the_token(self, patience_s: float) -> bool:
        """Let it kill itself the moment it holds the token; whether that moment came."""
        process = self.tell(b"die")
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), patience_s)
            return True
        return False

    def signal(self, number: int) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            # Not by `send_signal`: that may reap a process before asyncio does.
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    async def killed(self, wiped: bool) -> None:
        """SIGKILL; what it had said last is what is known of this life."""
        assert self.process is not None
        assert self._reader is not None
        self.down = True
        self.signal(SIGKILL)
        await self.process.wait()
        await self._reader
        word, self.word = self.word, None
        messages = self.orders.messages
        if word is not None:
            self.last_words.append(word)
            messages -= word.settled
        self.orders = msgspec.structs.replace(
            self.orders, life=self.orders.life + 1, messages=max(0, messages), wiped=wiped
        )
        if wiped:
            shutil.rmtree(self.orders.folder)

    async def stopped(self, patience_s: float) -> int:
        """SIGTERM, and its exit status."""
        assert self.process is not None
        self.signal(SIGTERM)
        try:
            await asyncio.wait_for(self.process.wait(), patience_s)
        except TimeoutError:
            raise RunFailed(f"site {self.name} does not stop") from None
        assert self._reader is not None
        await self._reader
        return self.process.returncode or 0

    async def end(self) -> None:
        """However it stands, it is over."""
        if self.process is not None and self.process.returncode is None:
            self.signal(SIGKILL)
            await self.process.wait()
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)

    @property
    def last_of_all_lives(self) -> list[Word]:
        """The last that each of its lives has said, as far as any has."""
        return [*self.last_words, *([self.word] if self.word else [])]

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.returncode is None and not self.paused

    @property
    def done(self) -> bool:
        """Whether it has sent all it had to, and knows what became of it."""
        word = self.word
        return word is not None and word.sent >= self.orders.messages and not word.waiting


class Chaos:
    """One run, in `folder`."""

    def __init__(
        self,
        params: ChaosParams,
        folder: Path,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        params.check()
        self.params = params
        self.folder = folder
        self.tell = tell
        self.rng = Random(f"chaos/{params.seed}")
        self.plan = troubles(params, self.rng)
        self.weather = weather(params, self.rng)
        self.traces = folder / "live"
        self.net = network(params.network, params.seed)
        self.sites: list[Site] = []
        self.nemeses = Nemeses(self)
        self.story: list[str] = []
        self.struck: Counter[str] = Counter()
        self.started = time.monotonic()
        self.with_token = False
        """Whether a site was killed while it held the token."""

    async def run(self) -> dict[str, Any]:
        """The run and its verdict."""
        self._tidy()
        shutil.rmtree(self.folder / "journals", ignore_errors=True)
        await self.net.start(NAMES[: self.params.sites])
        looker = LiveTrace(self.traces, group=GROUP, name="harness", site=NOBODY)
        self.looker = looker
        failure = ""
        try:
            await self._play()
        except RunFailed as error:
            failure = str(error)
        except (
            Exception
        ) as error:  # the harness's own fault: what it has seen is judged all the same
            failure = f"the harness failed, see {HARNESS_LOG}: {type(error).__name__}: {error}"
            (self.folder / HARNESS_LOG).write_text(traceback.format_exc())
        finally:
            if failure:
                self.say(f"failed: {failure}")
                self.row(NOBODY, MARK, STOP)
            for site in self.sites:
                await site.end()
            await self.net.close()
            looker.close()
        return self._verdict(failure)

    # -- the play --------------------------------------------------------------------------

    async def _play(self) -> None:
        params = self.params
        self.net.set_weather(self.weather)
        names = tuple(NAMES[: params.sites])
        secret = hashlib.sha256(f"chaos {params.seed}".encode()).digest()
        shares = self._shares()
        for number, name in enumerate(names):
            orders = Orders(
                name=name, members=names, resilience=params.resilience, via=self.net.via,
                interface=self.net.interface,
                secret=secret if params.sealed else None, folder=str(self.folder / "sites" / name),
                traces=str(self.traces), level=params.level, life=0, messages=shares[number],
                rate=shares[number] / params.seconds, size=params.bytes, mutant=params.mutant,
                record=number < params.recorders,
            )  # fmt: skip
            self.sites.append(Site(number, orders))
        self.nemeses.prepare()
        for site in self.sites:
            await site.start(self._log(site), self.net.prefix(site.name))
        await self.until("the group to form", self._all_open)
        self.say(f"{params.sites} sites, loss {params.loss:.0%}, {params.messages} messages")
        for site in self.sites:
            site.tell(b"go")
        for trouble in self.plan:
            await self.until("the load to go on", partial(self._come_to, trouble.at))
            await self._strike(trouble)
            heard = [site.words + 1 for site in self.sites]  # the next word may be an old one
            back = partial(self._back, heard, self._top())
            await self.until("everybody to be back", back)
        await self.until("the load to go on", partial(self._come_to, HEALED))
        self.net.clear()
        self.row(NOBODY, MARK, HEAL)
        self.say("no more faults")
        await self.until("everybody to have everything", self._settled)
        self.row(NOBODY, MARK, END)
        ends = await asyncio.gather(*[site.stopped(PATIENT_STOP_S) for site in self.sites])
        for site, status in zip(self.sites, ends, strict=True):
            if status:
                raise RunFailed(f"site {site.name} ended with a failure; see {self._log(site)}")

    def _shares(self) -> list[int]:
        """Messages for each site; who sends is the seed's choice."""
        senders = self.rng.sample(range(self.params.sites), self.params.senders)
        shares = [0] * self.params.sites
        for i, sender in enumerate(senders):
            share, more = divmod(self.params.messages, len(senders))
            shares[sender] = share + (i < more)
        return shares

    async def _strike(self, trouble: Trouble) -> None:
        """Do it, and undo it after its time."""
        sites = [self.sites[number] for number in trouble.who]
        with_token = ""
        if trouble.holder and trouble.kind == kinds.KILL:
            self.with_token = await sites[0].die_with_the_token(HOLDS_S)
            with_token = " and the token with it," if self.with_token else ""
        names = ", ".join(site.name for site in sites)
        what = f"{trouble.kind} {trouble.target}".strip()
        self.say(f"{what} {names}{with_token} for {trouble.lasts_s:.1f} s")
        self.struck[trouble.kind] += 1
        if trouble.kind in NEMESES + NEMESES_BY_SWITCH:
            await self.nemeses.strike(trouble, sites)
        elif trouble.kind == kinds.PAUSE:
            await self._pause(sites[0], trouble.lasts_s)
        elif trouble.kind in (kinds.KILL, kinds.WIPE, POWER, DROP):
            if trouble.kind == DROP:
                lost = {"kind": trouble.target, "nth": 1, "many": self.params.sites}
                self.net.trouble({"drop": lost})
                self.row(NOBODY, FAULT, f"target:{trouble.target.lower()}")
            await self.kill(sites, trouble)
        else:
            self.separate(trouble.kind, [site.name for site in sites], trouble.lasts_s)
            await asyncio.sleep(trouble.lasts_s)
            self.net.heal()

    def separate(self, kind: str, names: list[str], lasts_s: float) -> None:
        """Let the network keep these sites apart, from each other or from the rest."""
        rest = [site.name for site in self.sites if site.name not in names]
        for rule in kinds.rules(kind, names, rest, lasts_s):
            self.net.trouble(rule)
        self.row(NOBODY, FAULT, f"partition:{kind}")

    async def _pause(self, site: Site, lasts_s: float) -> None:
        site.signal(SIGSTOP)
        site.paused = True
        self.row(site.number, PAUSE, None)
        await asyncio.sleep(lasts_s)
        self.row(site.number, RESUME, None)
        site.signal(SIGCONT)
        site.paused = False

    async def kill(self, sites: list[Site], trouble: Trouble) -> None:
        await self.end_lives(sites, wiped=trouble.kind == kinds.WIPE)
        await asyncio.sleep(trouble.lasts_s)
        await self.begin_lives(sites)

    async def end_lives(self, sites: list[Site], wiped: bool = False) -> None:
        for site in sites:  # as much at once as can be
            site.signal(SIGKILL)
        for site in sites:
            await site.killed(wiped=wiped)
            self.row(site.number, FAULT, "crash:nothing" if site.orders.wiped else "crash:disk")

    async def begin_lives(self, sites: list[Site]) -> None:
        for site in sites:
            await site.start(self._log(site), self.net.prefix(site.name))
        await self.until("those killed to start", lambda: all(site.word for site in sites))
        for site in sites:
            site.tell(b"go")

    # -- what is waited for ----------------------------------------------------------------

    async def until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.params.patience_s
        best = self._top()
        while not condition():
            for site in self.sites:
                if site.word is not None and site.word.error:
                    raise RunFailed(f"site {site.name}: {site.word.error}")
                if site.process and site.process.returncode is not None and not site.down:
                    raise RunFailed(f"site {site.name} has ended; see {self._log(site)}")
            if self._top() > best:  # it moves: patience begins anew
                best = self._top()
                deadline = time.monotonic() + self.params.patience_s
            if time.monotonic() > deadline:
                raise RunFailed(f"waited {self.params.patience_s:g} s for {what}: {self._where()}")
            await asyncio.sleep(LOOK_S)

    def _top(self) -> int:
        return max((site.word.position for site in self.sites if site.word), default=0)

    def _come_to(self, fraction: float) -> bool:
        return self._top() >= fraction * self.params.messages

    def _all_open(self) -> bool:
        return all(site.word is not None and site.word.state == "open" for site in self.sites)

    def _back(self, heard: list[int], top: int) -> bool:
        """Whether all take part again, and have what others had when the trouble was over."""
        return self._all_open() and all(
            site.words > least and site.word is not None and site.word.position >= top
            for site, least in zip(self.sites, heard, strict=True)
        )

    def _settled(self) -> bool:
        top = self._top()
        return all(
            site.word is not None and site.word.position == top and site.done for site in self.sites
        )

    def _where(self) -> str:
        return "; ".join(
            f"{site.name}: "
            + ("silent" if site.word is None else f"{site.word.state} at {site.word.position}")
            for site in self.sites
        )

    # -- what is left behind ---------------------------------------------------------------

    def journals(self) -> list[Path]:
        """Of the recorders, when the run is over."""
        return [self.folder / "journals" / s.name for s in self.sites if s.orders.record]

    def _unrecorded(self, committed: int) -> list[str]:
        """What the recorders do not have, though all had time to write and to fetch it."""
        gaps = []
        for site in self.sites:
            if site.orders.record:
                reader = Reader(journal_folder(Path(site.orders.folder), GROUP))
                holes = union([*reader.missing, (reader.end, committed)])
                gaps += [f"recorder {site.name} lacks {lo} to {hi - 1}" for lo, hi in holes]
                reader.close()
        return gaps

    def _keep_journals(self) -> None:
        """Put them where they stay when what else the sites kept is taken away."""
        recorders = [site for site in self.sites if site.orders.record]
        for site, to in zip(recorders, self.journals(), strict=True):
            journal = journal_folder(Path(site.orders.folder), GROUP)
            if journal.exists():
                to.parent.mkdir(exist_ok=True)
                shutil.move(journal, to)

    def _tidy(self) -> None:
        """Take away what an earlier run in this folder has left of its processes."""
        for folder in (self.traces, self.folder / "sites", self.folder / "twin"):
            shutil.rmtree(folder, ignore_errors=True)
        logs = (*self.folder.glob("?.log"), *self.folder.glob("?.twin.log"))
        for log in (*logs, self.folder / HARNESS_LOG):
            log.unlink(missing_ok=True)

    def row(self, site: int, event: int, obj: object) -> None:
        self.looker.append((0, site, event, NO_REF, NOBODY, obj))
        self.looker.flush()

    def _log(self, site: Site) -> Path:
        return self.folder / f"{site.name}.log"

    def say(self, text: str) -> None:
        line = f"{time.monotonic() - self.started:6.1f} s  {text}"
        self.story.append(line)
        self.tell(line)

    def _verdict(self, failure: str) -> dict[str, Any]:
        params = self.params
        known = {
            "protocol": TOKEN,
            "sites": params.sites,
            "order": TOTAL,
            "names": [site.name for site in self.sites],
            "resilience": params.resilience,
            "seed": params.seed,
            "liveness_ns": int(LIVENESS_S * 1e9),
        }
        merged = merge(self.traces, self.folder / "trace.parquet", group=GROUP, params=known)
        checker = check_trace(merged.path)
        words = [(site, word) for site in self.sites for word in site.last_of_all_lives]

        def total(field: str) -> int:
            return sum(getattr(word, field) for _, word in words)

        violations = [str(violation) for violation in checker.violations]
        violations += self.nemeses.violations
        if total("false"):
            violations.append(f"I5: {total('false')} receipts name a position that is not theirs")
        over = {site.name: word.over for site, word in reversed(words) if word.over}
        violations += [f"I6: site {name}: {over[name]}" for name in sorted(over)]
        if not failure and checker.everywhere < params.messages:
            failure = f"only {checker.everywhere} of {params.messages} messages are everywhere"
        if not failure:
            violations += self._unrecorded(checker.committed)
        verdict = "broken" if violations else "failed" if failure else "kept"
        self._keep_journals()
        if verdict == "kept":
            self._tidy()
        return {
            "verdict": verdict,
            "seed": params.seed,
            "violations": violations,
            "failure": failure,
            "sent": total("sent"),
            "killed_with_token": self.with_token,
            "committed": checker.committed,
            "everywhere": checker.everywhere,
            "settled": total("settled"),
            "doubtful": total("doubtful"),
            "false_receipts": total("false"),
            "lives": sum(site.orders.life + 1 for site in self.sites),
            "seconds": round(time.monotonic() - self.started, 1),
            "trace_rows": merged.rows,
            "datagrams": self.net.stats(),
            "troubles": dict(self.struck),
            "weather": self.weather,
            "story": self.story,
            "rerun": params.rerun(),
        }


def chaos(
    params: ChaosParams, folder: RunFolder, tell: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """One run in `folder`: its results, which are written there too."""
    folder.write_params("chaos", msgspec.to_builtins(params))
    results = asyncio.run(Chaos(params, folder.path, tell).run())
    folder.write_results(results)
    return results
