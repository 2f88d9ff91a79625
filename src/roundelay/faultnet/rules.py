"""What the switch does to datagrams: rules, and the lanes they make.

A rule is a JSON object.  What it may say:

====================  ============================================================================
`loss`                chance that a copy is lost
`burst`               chance that a burst of losses begins, or {"start", "most"}
`duplicate`           chance of a second copy, or {"rate", "within_ms"}
`replay`              {"rate", "least_ms", "most_ms"}: a copy comes again, long after
`delay_ms`            [least, most] or one number; later copies of the pair wait behind it
`reorder`             chance that a copy is overtaken, or {"rate", "within_ms"}
`corrupt`             chance that one to three bits are flipped
`truncate`            chance that the tail is cut off
`from` `to` `kind`    only for copies of these senders, to these receivers, of these PDU kinds:
                      a name or a list of names
`line`                only for what is sent on line a, or b (the second channel of GRSB groups)
====================  ============================================================================

Such *settings* stay: a later one for the same senders, receivers, kinds and line replaces the
earlier, and 0 takes it away.  The others are *episodes*, which end by `heal`, or by themselves:

====================  ============================================================================
`partition`           [["a", "b"], ["c"]]: the sides do not hear each other; who is on no side
                      hears everybody
`cut`                 ["a", "b"]: b does not hear a
`split`               ["a", "b"]: neither hears the other, everybody else hears both
`cut_line`            "b": nobody hears anything that is sent on line b; or "a"
`clog`                {"from", "to", "ms"}: copies of that pair wait until the time is over
`drop`                {"kind", "nth", "many", "from", "to"}: the nth PDU of a kind is lost, and the
                      many - 1 that follow it
`on_ms` `off_ms`      with partition, cut and split: flapping
`heal`                true: all episodes are over
`clear`               true: settings too
====================  ============================================================================

The faults themselves are the simulator's links (`roundelay.sim.network.links`).  Every ordered pair
of names is a *lane* with links of its own, and each link draws from a stream made of the seed, the
two names and the fault: what happens on a lane does not depend on what other lanes carry.  The one
exception is `drop`, which counts transmissions and not copies, as `links.Targeted` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, Final

from msgspec import Struct

from roundelay.core.engine import MS, Pdu
from roundelay.core.errors import ConfigError
from roundelay.core.limits import one_of
from roundelay.sim.network.links import (
    PLAIN,
    Bursts,
    Clogged,
    Corrupted,
    Delayed,
    Duplicated,
    Fate,
    Link,
    Lossy,
    Partition,
    Reordered,
    Replayed,
    Targeted,
    Truncated,
    plain_name,
)
from roundelay.wire.switch_header import KIND_NAMES, NAME_BYTES_MAX, UNKNOWN

RULES_MAX: Final = 256
"""Settings, and episodes, in force at a time."""

MS_MAX: Final = 3_600_000
"""An hour: no fault is timed longer."""

NAMES_MAX: Final = 4096
"""Names that rules and nodes have ever used."""

EPISODES: Final = ("partition", "cut", "split", "cut_line", "clog", "drop")
SCOPE: Final = ("from", "to", "kind", "line")
LINES: Final = ("a", "b")
FLAPPING: Final = ("on_ms", "off_ms")
ENDS: Final = ("heal", "clear")

Names = tuple[str, ...]
"""Names of nodes or kinds, sorted; empty: all."""


class SeenDatagram(Pdu, frozen=True, gc=False):
    """What a link is shown of a datagram, in place of the PDU inside."""

    names: tuple[str, ...]
    """Its kind, as `plain_name`s."""
    line: str = "a"


def _seen(line: str) -> dict[int, SeenDatagram]:
    kinds = {hint: tuple(map(plain_name, names)) for hint, names in KIND_NAMES.items()}
    return {hint: SeenDatagram(names, line) for hint, names in (kinds | {UNKNOWN: ()}).items()}


SEEN: Final = _seen("a")
"""By hint."""
SEEN_B: Final = _seen("b")
"""The same on line B."""

KINDS: Final = frozenset(name for seen in SEEN.values() for name in seen.names)


class FaultSetting(Struct, frozen=True):
    """A fault and where it strikes; two with the same key are the same setting."""

    fault: str
    senders: Names
    receivers: Names
    kinds: Names
    value: tuple[float, ...]
    line: str = ""

    @property
    def key(self) -> tuple[int, Names, Names, Names, str]:
        """In the order in which a copy meets them."""
        return SETTINGS.index(self.fault), self.senders, self.receivers, self.kinds, self.line

    @property
    def idle(self) -> bool:
        return not (any(self.value) if self.fault == "delay_ms" else self.value[0])

    def touches(self, sender: str, receiver: str) -> bool:
        return (not self.senders or sender in self.senders) and (
            not self.receivers or receiver in self.receivers
        )

    def link(self) -> Link:
        """A link for one lane; ConfigError where the value is out of range."""
        link = PLAIN if self.idle else _FAULTS[self.fault][1](*self.value)
        return OfKind(link, self.kinds, self.line) if self.kinds or self.line else link

    def __str__(self) -> str:
        """As the rule that makes it, more or less: `loss from a to b, c of kind confirm`."""
        words = ("from", "to", "of kind", "on line")
        line = (self.line,) if self.line else ()
        scope = zip(words, (self.senders, self.receivers, self.kinds, line), strict=True)
        return self.fault + "".join(f" {word} {', '.join(names)}" for word, names in scope if names)


class OfKind(Link):
    """A link that sees datagrams of some kinds, or of one line, only."""

    def __init__(self, link: Link, kinds: Names, line: str = "") -> None:
        self.link = link
        self.kinds = frozenset(kinds)
        self.line = line

    def bind(self, stream: Callable[[str], Random], count: Callable[[str], None]) -> None:
        self.link.bind(stream, count)

    def carry(self, time: int, src: int, dst: int, pdu: Pdu, ref: int) -> Fate:
        if (
            isinstance(pdu, SeenDatagram)
            and (not self.line or pdu.line == self.line)
            and not (self.kinds and self.kinds.isdisjoint(pdu.names))
        ):
            return self.link.carry(time, src, dst, pdu, ref)
        return None


class Dropped(Targeted):
    """The same as in the simulator, for what the switch sees of a datagram."""

    @property
    def spent(self) -> bool:
        """One later: copies of the last transmission may still be on their way."""
        return self.seen >= self.kth + self.many

    def strikes(self, pdu: Pdu) -> bool:
        return isinstance(pdu, SeenDatagram) and self.name in pdu.names


class LineCut(Link):
    """Nothing gets through on one line."""

    kind = "line:cut"
    episode = True

    def __init__(self, line: str) -> None:
        self.line = line

    def carry(self, time: int, src: int, dst: int, pdu: Pdu, ref: int) -> Fate:
        return "line cut" if isinstance(pdu, SeenDatagram) and pdu.line == self.line else None


class Lane(Struct):
    """The way from one node to another."""

    sender: str
    receiver: str
    src: int
    dst: int
    carry: Callable[[int, int, int, Pdu, int], Fate] | None = None
    """What the settings make of a copy; None: nothing."""
    last_due: int = 0  # when the last copy that keeps its place arrives (ns)


class Rules:
    """All rules in force, and the lanes they apply to.

    `apply` takes a rule, or raises ConfigError and changes nothing.  `faults` counts what was done,
    by kind.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.faults: dict[str, int] = {}
        self.settings: list[FaultSetting] = []  # in the order of their keys
        self.episodes: list[Link] = []
        """Asked about every copy, before the lane's own links."""
        self.lanes: dict[tuple[str, str], Lane] = {}
        self._ids: dict[str, int] = {}  # of names, as the links know them
        self._next_id = 0
        self._streams: dict[tuple[str, str], dict[object, Random]] = {}

    # -- lanes -----------------------------------------------------------------------------

    def lane(self, sender: str, receiver: str) -> Lane:
        """The lane from `sender` to `receiver`, made at first use."""
        lane = self.lanes.get((sender, receiver))
        if lane is None:
            lane = Lane(sender, receiver, self.id_of(sender), self.id_of(receiver))
            self.lanes[sender, receiver] = lane
            self._pave(lane)
        return lane

    def forget(self, name: str) -> None:
        """A node has gone.  Its lanes are kept for its return, unless there have been many."""
        if len(self._ids) > NAMES_MAX // 2:
            for pair in [pair for pair in self.lanes if name in pair]:
                del self.lanes[pair]
                self._streams.pop(pair, None)
            del self._ids[name]

    def id_of(self, name: str) -> int:
        number = self._ids.get(name)
        if number is None:
            if len(self._ids) >= NAMES_MAX:
                raise ConfigError("name", name, f"one of the first {NAMES_MAX}; start anew")
            number = self._ids[name] = self._next_id
            self._next_id += 1
        return number

    def _pave(self, lane: Lane) -> None:
        """Give a lane the links that the settings ask for; a link's stream goes on where it was."""
        chain: Link = PLAIN
        pair = (lane.sender, lane.receiver)
        streams = self._streams.setdefault(pair, {})
        for setting in self.settings:
            if setting.touches(*pair):
                key = setting.key
                if key not in streams:
                    if len(streams) >= RULES_MAX:
                        streams.clear()
                    streams[key] = Random("\0".join([str(self.seed), *pair, str(setting)]))
                link = setting.link()
                link.bind(_always(streams[key]), self.count)
                chain = chain | link
        lane.carry = chain.carry if chain.parts() else None

    def count(self, kind: str) -> None:
        self.faults[kind] = self.faults.get(kind, 0) + 1

    # -- rules -----------------------------------------------------------------------------

    def check(self, rule: Mapping[str, Any]) -> None:
        """ConfigError if `apply` would refuse the rule for what it says."""
        self._parsed(rule, 0)

    def apply(self, rule: Mapping[str, Any], now: int) -> None:
        """Put `rule` in force at `now`, or raise ConfigError and change nothing."""
        ends, settings, episodes = self._parsed(rule, now)
        kept = {} if "clear" in ends else {setting.key: setting for setting in self.settings}
        for setting in settings:
            kept.pop(setting.key, None)
            if not setting.idle:
                kept[setting.key] = setting
        running = [] if ends else [ep for ep in self.episodes if not _over(ep, now)]
        if len(kept) > RULES_MAX or len(running) + len(episodes) > RULES_MAX:
            raise ConfigError("rule", dict(rule), f"at most {RULES_MAX} at a time; heal or clear")
        self.episodes[:] = running + episodes
        for episode in episodes:
            episode.bind(Random, self.count)
            if episode.episode:
                self.count(episode.kind)
        self.settings = [kept[key] for key in sorted(kept)]
        for lane in self.lanes.values():
            self._pave(lane)

    def _parsed(self, rule: Any, now: int) -> tuple[list[str], list[FaultSetting], list[Link]]:
        if not isinstance(rule, Mapping) or not rule:
            raise ConfigError("rule", rule, 'a JSON object such as {"loss": 0.2}')
        known = (*SETTINGS, *EPISODES, *ENDS, *SCOPE, *FLAPPING)
        for key in rule:
            if key not in known:
                raise ConfigError("rule", key, "one of " + ", ".join(known))
        if not any(key in rule for key in (*SETTINGS, *EPISODES, *ENDS)):
            raise ConfigError("rule", dict(rule), "a fault as well, and not only where it strikes")
        ends = [key for key in ENDS if _flag(key, rule.get(key, False))]
        return ends, self._settings_in(rule), self._episodes_in(rule, now)

    def _settings_in(self, rule: Mapping[str, Any]) -> list[FaultSetting]:
        faults = [fault for fault in SETTINGS if fault in rule]
        if not faults:
            return []
        senders = _names("from", rule.get("from"))
        receivers = _names("to", rule.get("to"))
        kinds = _kinds(rule.get("kind"))
        line = _line("line", rule["line"]) if "line" in rule else ""
        settings = []
        for fault in faults:
            value = _FAULTS[fault][0](fault, rule[fault])
            setting = FaultSetting(fault, senders, receivers, kinds, value, line)
            setting.link()  # refuses what is out of range
            settings.append(setting)
        return settings

    def _episodes_in(self, rule: Mapping[str, Any], now: int) -> list[Link]:
        on_ns, off_ns = (_ns(field, rule.get(field, 0)) for field in FLAPPING)
        if bool(on_ns) != bool(off_ns):
            raise ConfigError("on_ms", rule.get("on_ms", 0), "given together with off_ms, both > 0")
        episodes: list[Link] = [
            getattr(self, f"_{name}")(rule[name], now, on_ns, off_ns)
            for name in EPISODES
            if name in rule
        ]
        for field in SCOPE:
            if episodes and field in rule and not any(fault in rule for fault in SETTINGS):
                raise ConfigError(field, rule[field], "only with " + ", ".join(SETTINGS))
        return episodes

    def _partition(self, value: Any, now: int, on_ns: int, off_ns: int) -> Link:
        allowed = 'two or more lists of names, such as [["a", "b"], ["c"]], no name twice'
        if not isinstance(value, list) or len(value) < 2:
            raise ConfigError("partition", value, allowed)
        sides = [_names("partition", side, allowed) for side in value]
        flat = [name for side in sides for name in side]
        if not all(sides) or len(set(flat)) != len(flat):
            raise ConfigError("partition", value, allowed)
        return Partition.symmetric(
            *[[self.id_of(name) for name in side] for side in sides], on_ns=on_ns, off_ns=off_ns
        )

    def _cut(self, value: Any, now: int, on_ns: int, off_ns: int) -> Link:
        sender, receiver = self._pair("cut", value)
        return Partition([(sender, receiver)], "partition:one-way", on_ns, off_ns)

    def _split(self, value: Any, now: int, on_ns: int, off_ns: int) -> Link:
        a, b = self._pair("split", value)
        return Partition([(a, b), (b, a)], "partition:non-transitive", on_ns, off_ns)

    def _cut_line(self, value: Any, now: int, on_ns: int, off_ns: int) -> Link:
        return LineCut(_line("cut_line", value))

    def _clog(self, value: Any, now: int, on_ns: int, off_ns: int) -> Link:
        if not isinstance(value, dict) or set(value) != {"from", "to", "ms"}:
            raise ConfigError("clog", value, '{"from": name, "to": name, "ms": number}')
        src, dst = self._pair("clog", [value["from"], value["to"]])
        return Clogged(src, dst, now, now + _ns("clog.ms", value["ms"]))

    def _drop(self, value: Any, now: int, on_ns: int, off_ns: int) -> Link:
        allowed = '{"kind": name, "nth": 1, "many": 1, "from": name, "to": name}, kind at least'
        fields = {"kind", "nth", "many", "from", "to"}
        if not isinstance(value, dict) or "kind" not in value or not set(value) <= fields:
            raise ConfigError("drop", value, allowed)
        kinds = _kinds(value["kind"])
        if len(kinds) != 1:
            raise ConfigError("drop.kind", value["kind"], "one kind of PDU")
        nth, many = value.get("nth", 1), value.get("many", 1)
        for field, number in (("nth", nth), ("many", many)):
            if type(number) is not int or number < 1:
                raise ConfigError(f"drop.{field}", number, "a whole number from 1 up")
        src, dst = (
            None if value.get(field) is None else self.id_of(_name(f"drop.{field}", value[field]))
            for field in ("from", "to")
        )
        return Dropped(kinds[0], nth, many, dst=dst, src=src)

    def _pair(self, field: str, value: Any) -> tuple[int, int]:
        if not isinstance(value, list) or len(value) != 2 or value[0] == value[1]:
            raise ConfigError(field, value, 'two names, such as ["a", "b"]')
        first, second = _name(field, value[0]), _name(field, value[1])
        return self.id_of(first), self.id_of(second)

    def in_force(self) -> dict[str, object]:
        """What rules there are, for people and as JSON."""
        return {
            "settings": {str(setting): list(setting.value) for setting in self.settings},
            "episodes": [episode.kind for episode in self.episodes],
        }


def _always(rng: Random) -> Callable[[str], Random]:
    return lambda _: rng


def _over(episode: Link, now: int) -> bool:
    if isinstance(episode, Clogged):
        return episode.stop <= now
    return isinstance(episode, Dropped) and episode.spent


# -- values ------------------------------------------------------------------------------------


def _flag(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(field, value, "true or false")
    return value


def _number(field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MS_MAX:
        raise ConfigError(field, value, f"a number from 0 to {MS_MAX}")
    return value


def _ns(field: str, value: Any) -> int:
    return int(_number(field, value) * MS)


def _chance(fault: str, value: Any) -> tuple[float, ...]:
    return (_number(fault, value),)


def _fields(first: str, **others: float) -> Callable[[str, Any], tuple[float, ...]]:
    """Reads an object of numbers, of which all but the first may be missing; or the first alone."""

    def read(fault: str, value: Any) -> tuple[float, ...]:
        if not isinstance(value, dict):
            return (_number(fault, value), *others.values())
        names = (first, *others)
        if not set(value) <= set(names) or first not in value:
            raise ConfigError(fault, value, "an object of " + ", ".join(names))
        given = others | value
        return tuple(_number(f"{fault}.{name}", given[name]) for name in names)

    return read


def _span(fault: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, list):
        return (_number(fault, value),) * 2
    if len(value) != 2:
        raise ConfigError(fault, value, "a number of ms, or [least, most]")
    least, most = _number(fault, value[0]), _number(fault, value[1])
    if least > most:
        raise ConfigError(fault, value, "the least first, then the most")
    return least, most


_FAULTS: Final[dict[str, tuple[Callable[[str, Any], tuple[float, ...]], Callable[..., Link]]]] = {
    "loss": (_chance, Lossy),
    "burst": (_fields("start", most=20), lambda start, most: Bursts(start, int(most))),
    "duplicate": (_fields("rate", within_ms=5), lambda rate, ms: Duplicated(rate, int(ms * MS))),
    "replay": (
        _fields("rate", least_ms=1_000, most_ms=5_000),
        lambda rate, lo, hi: Replayed(rate, int(lo * MS), int(hi * MS)),
    ),
    "delay_ms": (_span, lambda lo, hi: Delayed(int(lo * MS), int(hi * MS))),
    "reorder": (_fields("rate", within_ms=5), lambda rate, ms: Reordered(rate, int(ms * MS))),
    "corrupt": (_chance, Corrupted),
    "truncate": (_chance, Truncated),
}
"""The settings, in the order in which a copy meets them: how each is read, and its link."""
SETTINGS: Final = tuple(_FAULTS)


def _name(field: str, value: Any, allowed: str = "") -> str:
    if not isinstance(value, str) or not good_name(value):
        raise ConfigError(field, value, allowed or f"a node's name, 1 to {NAME_BYTES_MAX} bytes")
    return value


def good_name(name: str) -> bool:
    return 0 < len(name.encode(errors="replace")) <= NAME_BYTES_MAX and name.isprintable()


def _names(field: str, value: Any, allowed: str = "") -> Names:
    """One name or several; None: all."""
    if value is None:
        return ()
    values: Iterable[Any] = value if isinstance(value, list) else [value]
    return tuple(sorted({_name(field, name, allowed) for name in values}))


def _line(field: str, value: Any) -> str:
    one_of(field, value, LINES)
    return str(value)


def _kinds(value: Any) -> Names:
    kinds = tuple(sorted({plain_name(kind) for kind in _names("kind", value)}))
    for kind in kinds:
        if kind not in KINDS:
            spelled = sorted({name for names in KIND_NAMES.values() for name in names})
            raise ConfigError("kind", value, "one of " + ", ".join(spelled))
    return kinds
