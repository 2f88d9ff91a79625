"""Scenario scripts: a corner case as a text that runs, with its output below it.

A script is a list of commands, one per line, `#` starts a comment.  The output of a run (each
command, and what happened because of it) stands in the same file below a line `---`, so the file
reads as documentation and works as a test.  Times are written like `50ms`, sites like `0,2` or
`all`.

Before anything else::

    sites 3 resilience 1 hold 10ms     number of sites, then fields of the configuration; a field
                                       `hold_ns` is written `hold` and takes a time
    protocol positive-ack              instead of token; also to, to-channel, po, spo
    medium mesh 1ms 5ms                bus (the default) with a delay and the time a PDU takes, or
                                       mesh or datagram with the least and the most delay
    seed 7
    show deliveries notices            what is printed: sends, receives, losses, roles, deliveries,
                                       notices, or names of PDUs (ACK, NEW_TL, …) among the sends

What happens::

    submit 0 hello                     site 0 broadcasts a message
    submit 0 hello to 1,2              … to these members only (spo)
    run 100ms                          let time pass
    run until all deliver 3            … until they have, 60s at most
    lose next 2 ACK to 1,2 from 0      `2`, `to` and `from` may be left out; TRANSFER is an ACK that
                                       passes the token
    lose 10%                           every copy, with that chance, from now on
    duplicate 10% / delay 20ms         the same for duplicates; a delay for every copy
    partition 0,1 | 2                  also: deaf 0 to 1,2 / cut 0 2 / clog 0 2 for 50ms
    heal                               no faults between sites any more
    crash 1 keeps disk                 or memory or nothing; `crash 1 keeps disk mid-batch 1`: after
                                       the first persist or send of what it does next
    restart 1 / pause 1 / resume 1 / power-cut
    clock 1 rate 1.1 / clock 1 jump 1d
    reform 1 / storm                   start a reformation at one site, or at all at once
    reopen 0,1 epoch 5                 clusters: these members go on without the others

What should be true (printed with `yes` or `NO`; a NO is a failure)::

    expect 1,2 delivered a b c         exactly these, in this order; `nothing` for none
    expect agreement                   delivered logs are prefixes of one sequence
    expect no RETX_REQ                 sent so far; also: expect 2 ACK, expect 1 RETX from 2 (RETX
                                       and the like: of whichever cluster protocol)
    expect silence                     nothing is sent, and no timer runs, from here on
    state                              prints what each site thinks
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.engine import EVERYONE, MS, NEVER, SECOND, STAMPED, Delivery, Notice, Pdu
from roundelay.core.errors import UsageError
from roundelay.core.events import (
    CRASH,
    DELIVER,
    DISK,
    EVENT_NAMES,
    LOSE,
    NOTICE,
    RECEIVE,
    ROLE,
    SEND,
    SUBMIT,
    Row,
)  # fmt: skip
from roundelay.core.families import TOKEN
from roundelay.sim.families.registry import PROTOCOLS, SIMULATED_FAMILIES, SimFamily
from roundelay.sim.kernel.world import World
from roundelay.sim.network.links import (
    PLAIN,
    Clogged,
    Delayed,
    Duplicated,
    Link,
    Lossy,
    Partition,
    Targeted,
    names_of,
    plain_name,
)  # fmt: skip
from roundelay.sim.network.media import MEDIA, Bus, SimulatedMedium

SEPARATOR: Final = "---"
PATIENCE_NS: Final = 60 * SECOND
SILENCE_NS: Final = 60 * SECOND
UNITS: Final = {"ns": 1, "us": 1000, "ms": MS, "s": SECOND, "d": 86_400 * SECOND}
GROUPS: Final = {
    "sends": SEND, "receives": RECEIVE, "losses": LOSE, "roles": ROLE, "deliveries": DELIVER,
    "notices": NOTICE,
}  # fmt: skip
VERSIONS: Final = ("tl", "v", "old", "max_joined")
"""Fields that hold the version of a list."""
SHOWN: Final = (SEND, LOSE, DELIVER, NOTICE)


class Scenario:
    """Runs one script; `output` is what it printed, `failures` the expectations not met."""

    def __init__(self, script: str) -> None:
        self.output: list[str] = []
        self.failures: list[str] = []
        self.rows: list[Row] = []  # what happened and is not printed yet
        self.links: list[Link] = []
        self.sites = 3
        self.protocol = TOKEN
        self.fields: dict[str, str] = {}
        self.medium: SimulatedMedium = Bus(MS)
        self.seed = 0
        self.events = set(SHOWN)
        self.pdus: set[str] = set()  # if not empty: the only kinds of PDUs printed
        self._world: World | None = None
        self.logs: dict[int, list[str]] = {}
        self.counts: Counter[tuple[int, str]] = Counter()  # transmissions by site and name
        for number, line in enumerate(script.splitlines(), 1):
            command = line.split("#", 1)[0].strip()
            if command:
                self.execute(command, number)

    # -- running ---------------------------------------------------------------------------

    @property
    def family(self) -> SimFamily:
        return SIMULATED_FAMILIES[self.protocol]

    def execute(self, command: str, number: int) -> None:
        self.output.append(f"> {command}")
        verb, *words = command.split()
        method: Callable[[list[str]], None] | None
        method = getattr(self, f"do_{verb.replace('-', '_')}", None)
        try:
            if method is None:
                raise UsageError(f"there is no command {verb}")
            method(words)
        except (UsageError, ValueError, IndexError) as error:
            raise UsageError(f"line {number}, {command!r}: {error}") from error
        self.print_rows()

    @property
    def world(self) -> World:
        """The world; it begins with the first command that needs it."""
        if self._world is None:
            config = self.configuration()
            if self.family.core.one_channel:
                if not isinstance(self.medium, Bus):
                    raise UsageError(f"{self.protocol} needs the medium bus")
                self.medium.own_copy = True
            self.logs = {site: [] for site in range(self.sites)}
            self._world = World(
                self.sites, self.family.factory(self.sites, config), seed=self.seed,
                medium=self.medium, recorder=self, make_stable=self.family.core.stable,
                observers=[self], boot=getattr(config, "boot", "preformed"),
            )  # fmt: skip
        return self._world

    def configuration(self) -> Any:
        kind = self.family.config
        values: dict[str, Any] = {}
        for name, word in self.fields.items():
            if f"{name}_ns" in kind.__struct_fields__:
                values[f"{name}_ns"] = duration(word)
            elif name not in kind.__struct_fields__:
                raise UsageError(f"there is no field {name}")
            elif word in ("yes", "no"):
                values[name] = word == "yes"
            else:
                values[name] = int(word) if word.isdigit() else word
        return kind(**values).check(self.sites)

    def flush(self) -> None:
        """The scenario is its own recorder; rows are printed after each command."""

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        if delivery.stage != STAMPED:
            self.logs[site] += [text(data) for data in delivery.bundle]

    def sent(self, time: int, site: int, destination: int, pdu: Pdu) -> None:
        for name in names_of(type(pdu)):
            self.counts[site, name] += 1

    def restarted(self, time: int, site: int, keeps: str) -> None:
        if keeps not in (DISK, "memory"):
            self.logs[site] = []

    # -- before ----------------------------------------------------------------------------

    def do_sites(self, words: list[str]) -> None:
        if self._world is not None:
            raise UsageError("sites comes before anything happens")
        self.sites = int(words[0])
        self.fields |= dict(zip(words[1::2], words[2::2], strict=True))

    def do_protocol(self, words: list[str]) -> None:
        if words[0] not in PROTOCOLS:
            raise UsageError(" or ".join(PROTOCOLS))
        self.protocol = words[0]

    def do_medium(self, words: list[str]) -> None:
        if words[0] not in MEDIA:
            raise UsageError(f"one of {', '.join(MEDIA)}")
        self.medium = MEDIA[words[0]](*map(duration, words[1:]))

    def do_seed(self, words: list[str]) -> None:
        self.seed = int(words[0])

    def do_show(self, words: list[str]) -> None:
        self.events = {GROUPS[word] for word in words if word in GROUPS}
        self.pdus = {plain_name(word) for word in words if word not in GROUPS}
        if self.pdus:
            self.events.add(SEND)

    # -- events ----------------------------------------------------------------------------

    def do_submit(self, words: list[str]) -> None:
        to = None
        if self.family.core.selective and words[-2] == "to":
            to = self.which(words.pop())
            words.pop()
        for site in self.which(words[0]):
            if not self.world.submit(site, Bundle.of(" ".join(words[1:]).encode()), to):
                self.output.append(f"  refused by site {site}")

    def do_run(self, words: list[str]) -> None:
        world = self.world
        if words[0] != "until":
            world.run(world.now + duration(words[0]))
            return
        sites = self.which(words[1])
        count = int(words[3])
        done = world.run_until(
            lambda: all(len(self.logs[site]) >= count for site in sites),
            world.now + PATIENCE_NS,
            MS,
        )
        if not done:
            self.fail(f"{words[1]} did not deliver {count}")

    def do_lose(self, words: list[str]) -> None:
        if words[0] != "next":
            self.add(Lossy(percent(words[0])))
            return
        words = words[1:]
        many = int(words.pop(0)) if words[0].isdigit() else 1
        kind = words.pop(0)
        ends = dict(zip(words[::2], words[1::2], strict=True))
        for dst in self.which(ends["to"]) if "to" in ends else [None]:
            for src in self.which(ends["from"]) if "from" in ends else [None]:
                self.add(Targeted(kind, many=many, dst=dst, src=src))

    def do_duplicate(self, words: list[str]) -> None:
        self.add(Duplicated(percent(words[0])))

    def do_delay(self, words: list[str]) -> None:
        time = duration(words[0])
        self.add(Delayed(time, time))

    def do_partition(self, words: list[str]) -> None:
        sides = [self.which(side.strip()) for side in " ".join(words).split("|")]
        self.add(Partition.symmetric(*sides))

    def do_deaf(self, words: list[str]) -> None:
        self.add(Partition.one_way(self.which(words[0]), self.which(words[2])))

    def do_cut(self, words: list[str]) -> None:
        self.add(Partition.non_transitive(int(words[0]), int(words[1])))

    def do_clog(self, words: list[str]) -> None:
        now = self.world.now
        self.add(Clogged(int(words[0]), int(words[1]), now, now + duration(words[3])))

    def add(self, link: Link) -> None:
        self.links.append(link)
        chain: Link = PLAIN
        for part in self.links:
            chain = chain | part
        self.world.set_links(chain)

    def do_heal(self, words: list[str]) -> None:
        self.links = []
        self.world.set_links(PLAIN)

    def do_crash(self, words: list[str]) -> None:
        keeps = words[2] if len(words) > 2 else DISK
        steps = int(words[4]) if len(words) > 4 else None
        for site in self.which(words[0]):
            self.world.crash(site, keeps, mid_batch=words[3:4] == ["mid-batch"], steps=steps)

    def do_restart(self, words: list[str]) -> None:
        for site in self.which(words[0]):
            self.world.restart(site)

    def do_pause(self, words: list[str]) -> None:
        for site in self.which(words[0]):
            self.world.pause(site)

    def do_resume(self, words: list[str]) -> None:
        for site in self.which(words[0]):
            self.world.resume(site)

    def do_power_cut(self, words: list[str]) -> None:
        self.world.power_cut()

    def do_clock(self, words: list[str]) -> None:
        for site in self.which(words[0]):
            if words[1] == "rate":
                self.world.set_clock_rate(site, round(float(words[2]) * 1000))
            else:
                self.world.jump_clock(site, duration(words[2]))

    def do_reform(self, words: list[str]) -> None:
        self.world.storm(self.which(words[0]))

    def do_storm(self, words: list[str]) -> None:
        self.world.storm()

    def do_reopen(self, words: list[str]) -> None:
        members = self.which(words[0])
        if not self.family.core.is_cluster:
            raise UsageError("only clusters are reopened")
        for site in members:
            member = self.world.sites[site]
            engine: Any = member.engine
            if engine is not None:
                engine.reopen(tuple(members), int(words[2]), member.local(self.world.now))
                self.world.settle(member, engine)

    # -- expectations ----------------------------------------------------------------------

    def do_expect(self, words: list[str]) -> None:
        if words == ["agreement"]:
            logs = sorted(self.logs.values(), key=len)
            good = all(long[: len(short)] == short for short, long in pairwise(logs))
        elif len(words) > 1 and words[1] == "delivered":
            wanted = [] if words[2:] == ["nothing"] else words[2:]
            good = all(self.logs[site] == wanted for site in self.which(words[0]))
        elif words == ["silence"]:
            good = self.silent()
        else:
            wanted_count = 0 if words[0] == "no" else int(words[0])
            name = plain_name(words[1])
            sites = self.which(words[3] if words[2:3] == ["from"] else "all")
            good = wanted_count == sum(self.counts[site, name] for site in sites)
        if good:
            self.output.append("  yes")
        else:
            self.fail("expect " + " ".join(words))

    def silent(self) -> bool:
        """Let a long time pass; nothing may happen in it."""
        sent = self.world.sent
        self.world.run(self.world.now + SILENCE_NS)
        engines = [member.engine for member in self.world.sites if member.engine is not None]
        return self.world.sent == sent and all(engine.deadline >= NEVER for engine in engines)

    def fail(self, what: str) -> None:
        logs = "; ".join(f"{site}: {' '.join(log) or 'nothing'}" for site, log in self.logs.items())
        self.output.append(f"  NO (delivered: {logs})")
        self.failures.append(what)

    def do_state(self, words: list[str]) -> None:
        for member in self.world.sites:
            engine: Any = member.engine
            line = f"  {member.id}  {member.state}"
            if engine is not None and self.family.core.is_cluster:
                members = ",".join(map(str, engine.group))
                line += f"  epoch {engine.epoch} of {members}  next {engine.seq}"
                line += f"  expects {value(tuple(engine.treq))}"
            elif engine is not None and self.family.core.resilient:
                members = ",".join(map(str, engine.token_list.members))
                line += f"  {engine.role}  list {version(engine.tl)} of {members}"
                line += f"  nts {engine.nts}  committed {engine.cnts}"
            self.output.append(line)

    # -- printing --------------------------------------------------------------------------

    def which(self, word: str) -> list[int]:
        """`all`, or numbers with commas."""
        sites = list(range(self.sites)) if word == "all" else [int(s) for s in word.split(",")]
        if any(not 0 <= site < self.sites for site in sites):
            raise UsageError(f"sites are 0 to {self.sites - 1}")
        return sites

    def print_rows(self) -> None:
        for row in self.rows:
            for line in self.lines(row):
                self.output.append(f"  {row[0] / MS:10.3f}  {line}")
        self.rows.clear()

    def lines(self, row: Row) -> Iterator[str]:
        """How a row is printed, if it is."""
        _, site, event, _, peer, obj = row
        if event == SUBMIT or (event in GROUPS.values() and event not in self.events):
            return
        if isinstance(obj, Pdu):
            if not self.pdus or not self.pdus.isdisjoint(names_of(type(obj))):
                whom = "all" if peer == EVERYONE else str(peer)
                yield f"{site} → {whom:3}  {wire_name(obj)}{described(obj)}"
        elif event == RECEIVE:
            yield f"{site} ← {peer}"
        elif event == LOSE:
            yield f"{site} ✗ {peer:<3}  {obj}"
        elif isinstance(obj, Delivery):
            place = f" at {obj.seq}" if obj.seq >= 0 else ""
            early = " (stamped)" if obj.stage == STAMPED else ""
            yield f"{site}        delivers{place}: {value(obj.bundle)}{early}"
        elif isinstance(obj, Notice):
            info = list(map(value, obj.info))
            if obj.kind == "view":
                info[0] = version(obj.info[0])
            yield f"{site}        {obj.kind} {' '.join(info)}".rstrip()
        elif event == CRASH:
            yield f"{site}        crashes, keeps {obj}"
        else:
            who = f"{site}        " if site >= 0 else "         "
            yield f"{who}{EVENT_NAMES[event].lower()} {obj or ''}".rstrip()


def wire_name(pdu: object) -> str:
    """The paper's spelling: NewTl is NEW_TL."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(pdu).__name__).upper()


def described(pdu: object) -> str:
    """The fields of a PDU."""
    if not isinstance(pdu, Struct):
        return f" {pdu}"
    return "".join(
        f" {name}={version(item) if name in VERSIONS else value(item)}"
        for name in pdu.__struct_fields__
        for item in (getattr(pdu, name),)
    )


def value(item: object) -> str:
    """A field as text: a bundle by its messages."""
    if isinstance(item, Bundle):
        return "+".join(text(data) for data in item) or "nothing"
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, tuple):
        return "[" + " ".join(map(value, item)) + "]"
    if isinstance(item, Struct):
        return f"({wire_name(item)}{described(item)})"
    return str(item)


def version(item: Any) -> str:
    """A list's version, like 3.1."""
    return f"{item[0]}.{item[1]}" if item[0] >= 0 else "none"


def text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def duration(word: str) -> int:
    """`50ms` in nanoseconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ns|us|ms|s|d)", word)
    if match is None:
        raise UsageError(f"{word} is not a time like 50ms")
    return round(float(match[1]) * UNITS[match[2]])


def percent(word: str) -> float:
    if not word.endswith("%"):
        raise UsageError(f"{word} is not a chance like 10%")
    return float(word[:-1]) / 100


def run_script(script: str) -> tuple[str, list[str]]:
    """The output of a script, and the expectations that were not met."""
    scenario = Scenario(script)
    return "\n".join(line.rstrip() for line in scenario.output) + "\n", scenario.failures


def split(source: str) -> tuple[str, str]:
    """A scenario file: script and expected output."""
    script, _, expected = source.partition(f"\n{SEPARATOR}\n")
    return script.rstrip("\n") + "\n", expected


def check_file(path: Path, rewrite: bool = False) -> tuple[str, str, list[str]]:
    """(expected output, actual output, failures) of a scenario file; `rewrite` stores the actual
    one in the file."""
    script, expected = split(path.read_text("utf-8"))
    actual, failures = run_script(script)
    if rewrite:
        path.write_text(f"{script}{SEPARATOR}\n{actual}", "utf-8")
        expected = actual
    return expected, actual, failures
