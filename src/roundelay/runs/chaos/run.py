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
import shutil
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from signal import SIGTERM
from typing import Any, Final

import msgspec

from roundelay.core.events import END, FAULT, HEAL, MARK, NO_REF, NOBODY, STOP
from roundelay.core.families import TOKEN, TOTAL
from roundelay.core.positions import union
from roundelay.journal.reader import Reader
from roundelay.node.storage.folders import journal_folder
from roundelay.runs.chaos import kinds
from roundelay.runs.chaos import site as site_process
from roundelay.runs.chaos.clock import WallClock, build
from roundelay.runs.chaos.harness import HARNESS_LOG, Harness, RunFailed
from roundelay.runs.chaos.kinds import APPLICATION, MACHINE, Trouble
from roundelay.runs.chaos.machine import Machine
from roundelay.runs.chaos.network import SwitchNet, network
from roundelay.runs.chaos.plan import HEALED, NAMES, ChaosParams, TimedTrouble, troubles, weather
from roundelay.runs.chaos.site import GROUP, Orders, Word
from roundelay.runs.folder import RunFolder
from roundelay.trace.checkers.checkers import check_trace
from roundelay.trace.live import LiveTrace
from roundelay.trace.merge import merge

LIVENESS_S: Final = 60.0
"""In that time.  A fraction of what the protocol's own time-outs allow."""

HOLDS_S: Final = 5.0
"""In that time the token comes to everybody."""
TWIN_S: Final = 20.0
"""In that time the second of a name has ended with an error."""
TWIN_MESSAGES: Final = 100
PATIENT_STOP_S: Final = 30.0
LINE_MAX: Final = 1 << 16


class Site(Machine):
    """A process, as the one who started it sees it."""

    def __init__(self, number: int, orders: Orders, log: Path) -> None:
        super().__init__(orders.name, Path(orders.folder), None)
        self.number = number
        self.orders = orders
        self.log = log
        self.word: Word | None = None
        self.words = 0
        self.lives = 0
        self.down = False  # on purpose
        self.last_words: list[Word] = []  # of earlier lives
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.word = None
        self.down = False
        self.lives += 1
        command = [sys.executable, "-m", site_process.__name__]
        command.append(msgspec.json.encode(self.orders).decode())
        pipe = asyncio.subprocess.PIPE
        process = await self.spawn(
            APPLICATION, command, self.log, stdin=pipe, stdout=pipe, limit=LINE_MAX
        )
        self._reader = asyncio.create_task(self._listen(process))

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            with suppress(msgspec.MsgspecError):  # half a line of one that was killed
                self.word = msgspec.json.decode(line, type=Word)
                self.words += 1

    @property
    def process(self) -> asyncio.subprocess.Process | None:
        return self.processes.get(APPLICATION)

    async def ends(self, patience_s: float) -> int | None:
        """The exit status, if it ends in that time."""
        assert self.process is not None
        assert self._reader is not None
        with suppress(TimeoutError):
            status = await asyncio.wait_for(self.process.wait(), patience_s)
            await self._reader
            return status
        return None

    async def kill(self, scope: str = MACHINE) -> None:
        """SIGKILL; what it had said last is what is known of this life."""
        self.down = True
        await super().kill(scope)
        if self._reader is not None:
            await self._reader
        word, self.word = self.word, None
        messages = self.orders.messages
        if word is not None:
            self.last_words.append(word)
            messages -= word.settled
        self.orders = msgspec.structs.replace(
            self.orders, life=self.orders.life + 1, messages=max(0, messages), wiped=False
        )

    def wipe(self) -> None:
        super().wipe()
        self.orders = msgspec.structs.replace(self.orders, wiped=True)

    @property
    def state(self) -> str:
        word = self.word
        return "silent" if word is None else f"{word.state} at {word.position}"

    @property
    def up(self) -> bool:
        return self.runs(APPLICATION)

    @property
    def done(self) -> bool:
        """Whether it has sent all it had to, and knows what became of it."""
        word = self.word
        return word is not None and word.sent >= self.orders.messages and not word.waiting


class Chaos(Harness):
    """A run of a token group whose traces are judged."""

    look_s = 0.05

    def __init__(
        self, params: ChaosParams, folder: Path, tell: Callable[[str], None] = lambda text: None
    ) -> None:
        params.check()
        super().__init__(folder, network(params.network, params.seed), tell)
        self.params = params
        self.rng = Random(f"chaos/{params.seed}")
        self.plan = troubles(params, self.rng)
        self.weather = weather(params, self.rng)
        self.traces = folder / "live"
        self.violations: list[str] = []
        """What troubles have found, besides what the trace says."""
        self.killed_with_token = False
        """Whether a site was killed while it held the token."""

    @property
    def sites(self) -> list[Site]:
        return list(self.machines.values())

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
        except Exception as error:
            # The harness's own fault: what it has seen is judged all the same.
            failure = f"the harness failed, see {HARNESS_LOG}: {type(error).__name__}: {error}"
            (self.folder / HARNESS_LOG).write_text(traceback.format_exc())
        finally:
            if failure:
                self.say(f"failed: {failure}")
                self.row(NOBODY, MARK, STOP)
            for site in self.sites:
                if site.running():
                    await site.kill()
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
            site = Site(number, orders, self.folder / f"{name}.log")
            site.command_prefix = self.net.prefix(name)
            self.machines[name] = site
        self._give_clocks()
        for site in self.sites:
            await site.start()
        await self.wait("the group to form", self._all_open)
        self.say(f"{params.sites} sites, loss {params.loss:.0%}, {params.messages} messages")
        for site in self.sites:
            site.tell(APPLICATION, "go")
        for trouble in self.plan:
            await self.wait("the load to go on", partial(self._come_to, trouble.at))
            await self.strike(trouble)
            heard = [site.words + 1 for site in self.sites]  # the next word may be an old one
            back = partial(self._back, heard, self._top())
            await self.wait("everybody to be back", back)
        await self.wait("the load to go on", partial(self._come_to, HEALED))
        self.net.clear()
        self.row(NOBODY, MARK, HEAL)
        self.say("no more faults")
        await self.wait("everybody to have everything", self._settled)
        self.row(NOBODY, MARK, END)
        for site in self.sites:
            site.signal(SIGTERM)
        ends = await asyncio.gather(*[site.ends(PATIENT_STOP_S) for site in self.sites])
        for site, status in zip(self.sites, ends, strict=True):
            if status is None:
                raise RunFailed(f"site {site.name} does not stop")
            if status:
                raise RunFailed(f"site {site.name} ended with a failure; see {site.log}")

    def _give_clocks(self) -> None:
        """Give every site a wall clock of its own, before it is started."""
        if any(trouble.kind == kinds.CLOCK for trouble in self.plan):
            folder = self.folder / "sites"
            folder.mkdir(parents=True, exist_ok=True)
            library = build(folder)
            for site in self.sites:
                site.clock = WallClock(library, folder / f"{site.name}.clock")
            if library is None:
                self.say("no C compiler here: clocks are not stepped")

    def _shares(self) -> list[int]:
        """Messages for each site; who sends is the seed's choice."""
        senders = self.rng.sample(range(self.params.sites), self.params.senders)
        shares = [0] * self.params.sites
        for i, sender in enumerate(senders):
            share, more = divmod(self.params.messages, len(senders))
            shares[sender] = share + (i < more)
        return shares

    # -- troubles --------------------------------------------------------------------------
    #
    # What `chaos --api` does besides (a site that is replaced while it is stopped, an old copy of a
    # folder) cannot be judged by traces: they take a name for one site that never forgets what it
    # has delivered.

    async def strike(self, trouble: Trouble) -> None:
        assert isinstance(trouble, TimedTrouble)
        with_token = ""
        if trouble.holder and trouble.kind == kinds.KILL:
            site = self.machines[trouble.who[0]]
            site.tell(APPLICATION, "die")
            self.killed_with_token = await site.ends(HOLDS_S) is not None
            with_token = " and the token with it," if self.killed_with_token else ""
        what = f"{trouble.kind} {trouble.target}".strip()
        names = ", ".join(trouble.who)
        self.say(f"{what} {names}{with_token} for {trouble.lasts_s:.1f} s")
        await super().strike(trouble)

    async def restart(self, machines: list[Site]) -> None:
        for site in machines:
            await site.start()
        await self.wait("those killed to start", lambda: all(site.word for site in machines))
        for site in machines:
            site.tell(APPLICATION, "go")

    async def majority_returned(self, machines: list[Site], trouble: Trouble) -> None:
        await asyncio.sleep(trouble.lasts_s)

    def record(self, event: int, detail: object, machine: Any = None) -> None:
        self.row(NOBODY if machine is None else machine.number, event, detail)

    async def _drop(self, trouble: TimedTrouble, sites: list[Site]) -> None:
        lost = {"kind": trouble.target, "nth": 1, "many": self.params.sites}
        assert isinstance(self.net, SwitchNet)
        self.net.apply({"drop": lost})
        self.record(FAULT, f"target:{trouble.target.lower()}")
        await self._kill(trouble, sites)

    async def _two(self, trouble: Trouble, sites: list[Site]) -> None:
        """One is killed while all that another sends is late."""
        killed, clogged = sites
        self.separate(kinds.CLOG, trouble, [clogged])
        await self._kill(trouble, [killed])
        self.net.heal()

    async def _twin(self, trouble: Trouble, sites: list[Site]) -> None:
        """Another process of that name: it has to end with an error, and to commit nothing."""
        [site] = sites
        folder = self.folder
        orders = msgspec.structs.replace(
            site.orders, folder=f"{site.orders.folder}-twin", life=site.orders.life + 1000,
            traces=str(folder / "twin"), messages=TWIN_MESSAGES, rate=TWIN_MESSAGES,
            record=False,
        )  # fmt: skip
        twin = Site(site.number, orders, folder / f"{site.name}.twin.log")
        twin.command_prefix = site.command_prefix
        await twin.start()
        twin.tell(APPLICATION, "go")
        status = await twin.ends(TWIN_S)
        if status is None:
            self.violations.append(f"twin: the second {site.name} was not told so in {TWIN_S:g} s")
        elif status == 0:
            self.violations.append(f"twin: the second {site.name} ended without an error")
        await twin.kill()

    # -- what is waited for ----------------------------------------------------------------

    async def wait(self, what: str, condition: Callable[[], bool]) -> None:
        await self.until(what, condition, self.params.patience_s)

    def progress(self) -> int:
        for site in self.sites:
            if site.word is not None and site.word.error:
                raise RunFailed(f"site {site.name}: {site.word.error}")
            if site.process and not site.runs(APPLICATION) and not site.down:
                raise RunFailed(f"site {site.name} has ended; see {site.log}")
        return self._top()

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

    # -- what is left behind ---------------------------------------------------------------

    def _recorders(self) -> dict[str, Path]:
        """Where each of them has its journal while the run goes on."""
        recorders = [site for site in self.sites if site.orders.record]
        return {site.name: journal_folder(site.disk, GROUP) for site in recorders}

    def journals(self) -> list[Path]:
        """Of the recorders, when the run is over."""
        return [self.folder / "journals" / name for name in self._recorders()]

    def _unrecorded(self, committed: int) -> list[str]:
        """What the recorders do not have, though all had time to write and to fetch it."""
        gaps = []
        for name, journal in self._recorders().items():
            reader = Reader(journal)
            holes = union([*reader.missing, (reader.end, committed)])
            gaps += [f"recorder {name} lacks {lo} to {hi - 1}" for lo, hi in holes]
            reader.close()
        return gaps

    def _keep_journals(self) -> None:
        """Put them where they stay when what else the sites kept is taken away."""
        for journal, to in zip(self._recorders().values(), self.journals(), strict=True):
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
        # The last that each life of each site has said, as far as it has.
        words = [
            (site, word) for site in self.sites for word in (*site.last_words, site.word) if word
        ]

        def total(field: str) -> int:
            return sum(getattr(word, field) for _, word in words)

        violations = [str(violation) for violation in checker.violations]
        violations += self.violations
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
            "killed_with_token": self.killed_with_token,
            "committed": checker.committed,
            "everywhere": checker.everywhere,
            "settled": total("settled"),
            "doubtful": total("doubtful"),
            "false_receipts": total("false"),
            "lives": sum(site.lives for site in self.sites),
            "seconds": round(self.seconds(), 1),
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
