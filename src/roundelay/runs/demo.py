"""The demo: five sites, three senders, loss, and a token site that crashes and comes back.

A run like any other, but one that can be watched: `Demo.advance` lets a little virtual time pass,
and a view shows its `headline`, `events`, `order` and `views`.  The crash hits whoever holds the
token at that time and is no sender, so in the end all that was submitted must have been delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.engine import MS, SECOND, Delivery, Notice
from roundelay.core.events import DISK
from roundelay.core.families import TOKEN
from roundelay.core.token.config import TokenConfig
from roundelay.runs.folder import RunFolder, as_row
from roundelay.runs.measured import LogDigests, Meter
from roundelay.runs.report import JUDGED, agreement, beside, grid, page, picture, promises, verdict
from roundelay.sim.families.registry import SIMULATED_FAMILIES
from roundelay.sim.kernel.member import UP
from roundelay.sim.kernel.world import World
from roundelay.sim.network.links import Lossy
from roundelay.sim.network.media import Bus
from roundelay.trace.checkers.checkers import TOTAL, Checker, check_trace
from roundelay.trace.diagram.drawing import render
from roundelay.trace.reader import TraceFile
from roundelay.trace.recorder import Recorder
from roundelay.trace.schema import kind_of

REFORMING: Final = "reforming"
ROLES: Final = {"token": "token", "passing": "passing on", "idle": ""}
"""How the roles of a site are called; any other is part of a reformation."""

LOOK_NS: Final = 5 * MS
REPORTED: Final = ("protocol", "sites", "resilience", "loss", "seed")
"""Parameters that trace and results begin with."""
STILL_NS: Final = 20 * SECOND
"""Virtual time after the end of the faults within which everything has to be settled."""


class DemoParams(Struct, frozen=True, kw_only=True):
    """What decides the demo."""

    protocol: str = TOKEN
    sites: int = 5
    senders: tuple[int, ...] = (0, 2, 3)
    resilience: int = 1
    loss: float = 0.05
    rate: float = 10.0
    """Messages per second, of all senders together."""
    seed: int = 1
    crash_ns: int = 3 * SECOND
    """Not before this; when a site holds the token that is no sender."""
    away_ns: int = 3 * SECOND
    load_ns: int = 9 * SECOND
    """How long the senders go on."""


class SiteView(Struct):
    """What is to be seen of one site."""

    site: int
    delivered: int
    recent: list[str]
    up: bool = False
    role: str = "down"
    list_name: str = ""
    members: tuple[int, ...] = ()


class Demo:
    """The run; also one of its observers."""

    def __init__(self, params: DemoParams, trace: Path | None = None) -> None:
        self.params = params
        group = tuple(range(params.sites))
        config = TokenConfig(resilience=params.resilience).check(params.sites)
        self.config = config
        self.liveness_ns = 10 * (
            config.silence_ns + config.token_timeout_ns + config.auth_timeout_ns
        )
        self.trace = trace
        self.recorder = Recorder(trace, params=self.trace_params())
        self.meter = Meter(params.sites, 1 << 60)
        self.digests = LogDigests(params.sites)
        self.checker = Checker(group, order=TOTAL, liveness_ns=self.liveness_ns)
        self.headline = "Three sites send, everybody listens."
        self.events: deque[tuple[int, str]] = deque(maxlen=200)
        """(time, what happened), the newest last."""
        self.order: list[str] = []
        """The agreed order, by the names of its messages."""
        self.recent: list[deque[str]] = [deque(maxlen=12) for _ in group]
        self.victim = -1
        self.crashed_ns = self.relisted_ns = self.returned_ns = 0
        self.ending = self.settled = False
        self.counted = [0] * params.sites  # messages per sender
        family = SIMULATED_FAMILIES[params.protocol]
        self.world = World(
            params.sites,
            family.factory(params.sites, config),
            seed=params.seed,
            medium=Bus(MS),
            links=Lossy(params.loss),
            make_stable=family.core.stable,
            recorder=self.recorder,
            observers=[self.meter, self.digests, self.checker, self],
            sample_ns=200 * MS,
        )
        self.rng = self.world.stream("demo")
        self.world.after(self._gap_ns(), self._send)
        self.world.at(params.crash_ns, self._crash_the_token_site)
        self.world.at(params.load_ns, self._end_faults)

    # -- what happens ----------------------------------------------------------------------

    def _gap_ns(self) -> int:
        return int(self.rng.expovariate(self.params.rate) * SECOND)

    def _send(self) -> None:
        if self.ending:
            return
        sender = self.rng.choice(self.params.senders)
        self.counted[sender] += 1
        name = f"{letter(sender)}{self.counted[sender]}"
        if not self.world.submit(sender, Bundle.of(name.encode())):
            self.counted[sender] -= 1
        self.world.after(self._gap_ns(), self._send)

    def _crash_the_token_site(self) -> None:
        for member in self.world.sites:
            if member.holds_token and member.id not in self.params.senders:
                self.victim = member.id
                self.crashed_ns = self.world.now
                self._tell(f"site {member.id} crashes, and the token with it")
                self.headline = f"Site {member.id} had the token, and is gone."
                self.world.fault("crash:disk")
                self.world.crash(member.id, DISK)
                self.world.after(self.params.away_ns, self._return)
                return
        self.world.after(LOOK_NS, self._crash_the_token_site)

    def _return(self) -> None:
        self.returned_ns = self.world.now
        self._tell(f"site {self.victim} is back, with what its disk has")
        self.headline = f"Site {self.victim} is back and has to catch up."
        self.world.restart(self.victim)

    def _end_faults(self) -> None:
        self.ending = True
        self._tell("the senders stop, the network heals")
        self.headline = "What is pending has to commit now."
        self.world.heal()

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        order = self.order
        for i, data in enumerate(delivery.bundle):
            name = data.decode()
            self.recent[site].append(name)
            if delivery.seq + i == len(order):
                order.append(name)

    def noticed(self, time: int, site: int, notice: Notice) -> None:
        info: tuple[Any, ...] = notice.info
        if notice.kind == "suspect":
            self._tell(f"site {site} believes that site {info[0]} has failed")
            self.headline = "The others have noticed: they form a new list without it."
        elif notice.kind == "view" and site == info[2] and time:
            members = ", ".join(map(str, info[1]))
            self._tell(f"new list {_version(info[0])}: sites {members}; site {site} has the token")
            if self.victim >= 0 and not self.relisted_ns:
                self.relisted_ns = time
                self.headline = "A new list is in force: the group goes on."
            elif self.returned_ns and self.victim in info[1] and not self.ending:
                self.headline = f"Site {self.victim} is a member again."
        elif notice.kind == "gap_unavailable":
            self._tell(f"site {site} cannot have positions {info[0]} to {info[1] - 1} any more")

    def _tell(self, text: str) -> None:
        self.events.append((self.world.now, text))

    # -- running ---------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return self.settled or (self.ending and self.world.now > self.params.load_ns + STILL_NS)

    def advance(self, by_ns: int) -> None:
        """Let virtual time pass."""
        self.world.run(self.world.now + by_ns)
        if self.ending and not self.settled and self._all_is_there():
            self.settled = True
            self._tell("everything is delivered everywhere")
            self.headline = "Done."

    def _all_is_there(self) -> bool:
        total = sum(self.counted)
        return all(member.state == UP and member.position == total for member in self.world.sites)

    def finish(self) -> dict[str, Any]:
        """Close the books; the results."""
        self.world.finish()
        self.recorder.close()
        return self.results()

    # -- what can be seen ------------------------------------------------------------------

    def views(self) -> Iterator[SiteView]:
        for member, recent in zip(self.world.sites, self.recent, strict=True):
            view = SiteView(member.id, member.position, list(recent))
            engine: Any = member.engine
            if engine is not None:
                view.up, view.role = True, ROLES.get(engine.role, REFORMING)
                if view.role != REFORMING:
                    view.list_name = _version(engine.tl)
                    view.members = engine.token_list.members
            yield view

    @property
    def pdus_by_kind(self) -> dict[str, int]:
        return {kind_of(kind): count for kind, count in self.world.sent_by_kind.items()}

    def trace_params(self) -> dict[str, Any]:
        params = self.params
        known = {name: getattr(params, name) for name in REPORTED}
        return {"command": "demo", **known, "order": TOTAL, "liveness_ns": self.liveness_ns}

    # -- the verdict -----------------------------------------------------------------------

    def results(self) -> dict[str, Any]:
        params, meter, world = self.params, self.meter, self.world
        total = sum(self.counted)
        digests = self.digests.digests()
        sites = [
            {
                "site": site,
                "sender": site in params.senders,
                "delivered": meter.delivered_at[site],
                "log_digest": digests[site],
                "up": world.sites[site].state == UP,
            }
            for site in range(params.sites)
        ]
        violations = [as_row(violation) for violation in self.checker.violations]
        everywhere = all(count == total for count in meter.delivered_at)
        agree = len(set(digests)) == 1 and everywhere
        again = None if self.trace is None else len(check_trace(self.trace).violations)
        return {
            **{name: getattr(params, name) for name in REPORTED},
            "messages": total,
            "agree": agree,
            "verdict": agree and self.settled and not violations and not again,
            "delivered_everywhere": everywhere,
            "same_order": meter.same_order,
            "crashed_site": self.victim,
            "crashed_ms": self.crashed_ns / MS,
            "new_list_ms": self.relisted_ns / MS,
            "returned_ms": self.returned_ns / MS,
            "virtual_s": world.now / SECOND,
            "pdus": world.sent,
            "pdus_by_kind": dict(sorted(self.pdus_by_kind.items())),
            "lost_copies": world.faults.get("loss", 0),
            "delay_ms_mean": meter.delays.mean_ms,
            "delay_ms_p99": meter.delays.quantile_ms(0.99),
            "trace_sha256": self.recorder.sha256(),
            "by_site": sites,
            "invariants": {name: self.checker.counts[name] == 0 for name in JUDGED},
            "trace_violations": again,
            "violations": violations,
        }

    def sentence(self, results: dict[str, Any]) -> str:
        """The verdict in words."""
        if results["verdict"]:
            return agreement(self.params.sites, results["messages"])
        return "The sites do NOT agree, or a promise was broken."

    def write(self, folder: RunFolder, results: dict[str, Any]) -> None:
        """Diagram, results and report."""
        folder.write_results(results)
        trace = TraceFile(folder.trace)
        # From a little before the crash until the new list has stamped something.
        start, end = self.crashed_ns - 60 * MS, self.relisted_ns or self.crashed_ns + SECOND
        crash = render(trace, max(0, start), end + 60 * MS, "The token site crashes")
        back = render(trace, self.returned_ns, self.returned_ns + 200 * MS, "It comes back")
        folder.write_report(crash, self._report(results, crash, back))

    def _report(self, results: dict[str, Any], crash: str, back: str) -> str:
        by_site = [
            (
                f"site {row['site']}" + (" (sender)" if row["sender"] else ""),
                row["delivered"],
                row["log_digest"][:16],
                "crashed and returned" if row["site"] == self.victim else "",
            )
            for row in results["by_site"]
        ]
        broken = {name for name, kept in results["invariants"].items() if not kept}
        numbers = [
            ("messages", results["messages"]),
            ("PDUs sent", results["pdus"]),
            ("copies lost", results["lost_copies"]),
            ("delay, mean (ms)", results["delay_ms_mean"]),
            ("delay, 99 % below (ms)", results["delay_ms_p99"]),
            ("token site crashed at (ms)", results["crashed_ms"]),
            ("new list in force at (ms)", results["new_list_ms"]),
            ("crashed site back at (ms)", results["returned_ms"]),
        ]
        events = [(time / MS, text) for time, text in self.events]
        sections = [
            verdict(results["verdict"], self.sentence(results)),
            beside(
                grid("Sites", ("", "delivered", "digest of its log", ""), by_site), promises(broken)
            ),
            beside(grid("What happened", ("ms", ""), events), grid("Numbers", ("", ""), numbers)),
            picture("The crash", crash),
            picture("The return", back, 1),
        ]
        params = self.params
        subtitle = (
            f"{params.sites} simulated sites, {len(params.senders)} of them sending, "
            f"{params.loss:.0%} of all copies lost, L = {params.resilience}, seed {params.seed}"
        )
        return page("Roundelay demo", subtitle, sections)


def letter(site: int) -> str:
    """How the messages of a site are named: a1, a2, … are site 0's."""
    return chr(ord("a") + site)


def _version(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
