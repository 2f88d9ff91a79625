"""Faults as links: each says what happens to the copy of a PDU on its way to one receiver.

Links are put one behind the other with `|`::

    Lossy(0.05) | Bursts(0.001, 200) | Duplicated(0.1, 20 * MS)

A link answers for one copy: untouched (None), lost (the reason, a string), or replaced by copies
with an extra delay or damage.  Each draws from its own random stream, which the world gives it when
it is installed, and counts what it does by kind in `World.faults`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from random import Random
from typing import Final, NamedTuple
from zlib import crc32

from roundelay.core.cluster.pdu import PO_KINDS, SPO_KINDS, TO_KINDS
from roundelay.core.engine import Pdu
from roundelay.core.errors import ConfigError
from roundelay.core.limits import chance, whole

Damage = tuple[str, float]
"""What happens to the bytes of a copy: the kind, and where (as a fraction) or which version."""


class Copy(NamedTuple):
    """One copy of a PDU on its way to one receiver."""

    delay: int = 0  # ns on top of the medium's own
    damage: tuple[Damage, ...] = ()
    again: bool = False  # outside the medium's order: a duplicate, or let others overtake it


Fate = list[Copy] | str | None
"""Copies, the reason of a loss, or None: untouched."""


class Link(ABC):
    """Base of all links."""

    kind = ""
    """The name under which its faults are counted."""

    episode = False
    """True: counted once when it is put in place, not once per copy it touches."""

    loss: float | None = None
    """The chance of loss, where a link does nothing but lose copies independently."""

    rng: Random
    count: Callable[[str], None]

    def bind(self, stream: Callable[[str], Random], count: Callable[[str], None]) -> None:
        """Give the link its randomness; a link that has some keeps it when put in place again."""
        if not hasattr(self, "rng"):
            self.rng = stream(type(self).__name__)
        self.count = count

    def parts(self) -> tuple[Link, ...]:
        """What it consists of: these are bound."""
        return (self,)

    @abstractmethod
    def carry(self, time: int, src: int, dst: int, pdu: Pdu, ref: int) -> Fate:
        """What happens to the copy for `dst` of transmission `ref`, at `time`."""

    def __or__(self, other: Link) -> Link:
        parts = self.parts() + other.parts()
        return parts[0] if len(parts) == 1 else Chain(parts)


class Chain(Link):
    """Links one behind the other: each treats every copy the one before let through."""

    def __init__(self, links: tuple[Link, ...]) -> None:
        self.links = links
        self.loss = None if links else 0.0

    def parts(self) -> tuple[Link, ...]:
        return self.links

    def carry(self, time: int, src: int, dst: int, pdu: Pdu, ref: int) -> Fate:
        copies: list[Copy] | None = None  # None: the one copy, untouched so far
        for link in self.links:
            if copies is None:
                fate = link.carry(time, src, dst, pdu, ref)
                if fate is not None:
                    if isinstance(fate, str):
                        return fate
                    copies = fate
                continue
            through: list[Copy] = []
            reason = ""
            for copy in copies:
                fate = link.carry(time + copy.delay, src, dst, pdu, ref)
                if fate is None:
                    through.append(copy)
                elif isinstance(fate, str):
                    reason = fate
                else:
                    through += [
                        Copy(
                            copy.delay + more.delay,
                            copy.damage + more.damage,
                            copy.again or more.again,
                        )
                        for more in fate
                    ]
            if not through:
                return reason
            copies = through
        return copies


PLAIN: Final = Chain(())
"""Does nothing."""


class Bursts(Link):
    """Now and then (probability `start` per copy) a receiver goes deaf for 1…`most` copies."""

    kind = "burst"

    def __init__(self, start: float, most: int = 200) -> None:
        self.start = chance("start", start)
        self.most = whole("most", most, 1)
        self.to_lose: dict[int, int] = {}  # receiver → copies still to lose

    def carry(self, time: int, src: int, dst: int, pdu: Pdu, ref: int) -> Fate:
        to_lose = self.to_lose.get(dst, 0)
        if not to_lose:
            if self.rng.random() >= self.start:
                return None
            to_lose = self.rng.randint(1, self.most)
            self.count(self.kind)
        self.to_lose[dst] = to_lose - 1
        return self.kind


class Occasional(Link):
    """Base of links that do something to a copy with probability `rate`."""

    def __init__(self, rate: float) -> None:
        self.rate = chance("rate", rate)

    def carry(self, time: int, src: int, dst: int, pdu: Pdu, ref: int) -> Fate:
        if self.rng.random() >= self.rate:
            return None
        self.count(self.kind)
        return self.fate()

    @abstractmethod
    def fate(self) -> Fate:
        """What becomes of the copy."""


class Lossy(Occasional):
    """Each copy is lost with probability `loss`, independently."""

    kind = "loss"

    def __init__(self, loss: float) -> None:
        self.loss = self.rate = chance("loss", loss)

    def fate(self) -> Fate:
        return self.kind


class Replayed(Occasional):
    """A copy comes back long after, between `least_ns` and `most_ns`: past reformations."""

    kind = "replay"

    def __init__(self, rate: float, least_ns: int, most_ns: int) -> None:
        super().__init__(rate)
        self.least_ns = whole("least_ns", least_ns, 0)
        self.most_ns = whole("most_ns", most_ns, least_ns)

    def fate(self) -> Fate:
        return [Copy(), Copy(self.rng.randint(self.least_ns, self.most_ns), again=True)]


class Duplicated(Replayed):
    """A second copy follows within `within_ns`, with probability `rate`."""

    kind = "duplicate"

    def __init__(self, rate: float, within_ns: int = 0) -> None:
        super().__init__(rate, 0, whole("within_ns", within_ns, 0))


class Delayed(Occasional):
    """A copy takes between `least_ns` and `most_ns` longer, with probability `rate`."""

    kind = "delay"

    def __init__(self, least_ns: int, most_ns: int, rate: float = 1.0) -> None:
        self.least_ns = whole("least_ns", least_ns, 0)
        self.most_ns = whole("most_ns", most_ns, least_ns)
        if not 0.0 <= rate <= 1.0:
            raise ConfigError("rate", rate, "a number from 0 to 1")
        self.rate = rate

    def fate(self) -> Fate:
        return [Copy(self.rng.randint(self.least_ns, self.most_ns))]


class Reordered(Occasional):
    """A copy is held back for up to `within_ns`, with probability `rate`: later ones overtake it.

    On a `Mesh` too, where a merely `Delayed` copy holds up those behind it.
    """

    kind = "reorder"

    def __init__(self, rate: float, within_ns: int) -> None:
        super().__init__(rate)
        self.within_ns = whole("within_ns", within_ns, 1)

    def fate(self) -> Fate:
        return [Copy(self.rng.randint(1, self.within_ns), again=True)]


class Clogged(Link):
    """Whatever `src` sends to `dst` between `start` and `stop` arrives at `stop`, in order."""

    kind = "clog"
    episode = True

    def __init__(self, src: int, dst: int, start: int, stop: int) -> None:
        self.src = src
        self.dst = dst
        self.start = whole("start", start, 0)
        self.stop = whole("stop", stop, start)

    def carry(self, time: int, src: int, dst: int, pdu: Pdu, ref: int) -> Fate:
        if src != self.src or dst != self.dst or not self.start <= time < self.stop:
            return None
        return [Copy(self.stop - time)]


class Corrupted(Occasional):
    """One to three bits of a copy are flipped, with probability `rate`.

    Three, because a CRC-32 is certain to notice that many in a datagram of any size we send.
    """

    kind = "corrupt"

    def fate(self) -> Fate:
        bits = self.rng.randint(1, 3)
        return [Copy(damage=tuple((self.kind, self.rng.random()) for _ in range(bits)))]


class Truncated(Occasional):
    """The tail of a copy is cut off, with probability `rate`."""

    kind = "truncate"

    def fate(self) -> Fate:
        return [Copy(damage=((self.kind, self.rng.random()),))]


class Alien(Occasional):
    """A copy arrives in another version of the wire format, with probability `rate`.

    It is well-formed otherwise: only the check of the version can refuse it.
    """

    kind = "alien-version"

    def __init__(self, rate: float, version: int = 2) -> None:
        super().__init__(rate)
        self.version = whole("version", version, 0)

    def fate(self) -> Fate:
        return [Copy(damage=((self.kind, self.version),))]


class Targeted(Link):
    """The transmissions number `kth`…`kth + many - 1` of one kind are lost.

    `pdu` is the name of a PDU class, in the code's or the paper's spelling (`NewTl`, `NEW_TL`);
    `TRANSFER` means an ACK that passes the token on, `DT` the data PDU of any cluster protocol.
    With `dst` (or `src`) only copies to (or of) that site count.
    """

    def __init__(
        self, pdu: str, kth: int = 1, many: int = 1, dst: int | None = None, src: int | None = None
    ) -> None:
        self.name = plain_name(pdu)
        self.kind = f"target:{self.name}"
        self.kth = whole("kth", kth, 1)
        self.many = whole("many", many, 1)
        self.dst = dst
        self.src = src
        self.seen = 0  # matching transmissions so far
        self.last_ref = -1

    @property
    def spent(self) -> bool:
        """Nothing more will be lost."""
        return self.seen >= self.kth + self.many - 1

    def strikes(self, pdu: Pdu) -> bool:
        """Whether `pdu` is of the kind that is lost."""
        names = names_of(pdu.__class__)
        if self.name == "transfer":
            passes = getattr(pdu, "next", None) != getattr(pdu, "by", None)
            return passes and ("ack" in names or "ackrun" in names)
        return self.name in names

    def carry(self, time: int, src: int, dst: int, pdu: Pdu, ref: int) -> Fate:
        if self.dst not in (None, dst) or self.src not in (None, src):
            return None
        if not self.strikes(pdu):
            return None
        first = ref != self.last_ref
        if first:
            self.seen += 1
            self.last_ref = ref
        if not self.kth <= self.seen < self.kth + self.many:
            return None
        if first:
            self.count(self.kind)
        return "targeted"


class Partition(Link):
    """Copies from one site to another are lost where `blocked` says so.

    `on_ns` and `off_ns` make it flap: in force for the first, healed for the second, and so on.
    """

    episode = True

    def __init__(
        self,
        blocked: Iterable[tuple[int, int]],
        kind: str = "partition:symmetric",
        on_ns: int = 0,
        off_ns: int = 0,
    ) -> None:
        self.blocked = frozenset(blocked)
        self.kind = kind
        self.on_ns = whole("on_ns", on_ns, 0)
        self.off_ns = whole("off_ns", off_ns, 0)

    @classmethod
    def symmetric(cls, *sides: Sequence[int], on_ns: int = 0, off_ns: int = 0) -> Partition:
        """Sites of different sides do not hear each other; a site on no side hears everybody."""
        blocked = [
            (a, b) for x in sides for y in sides if x is not y for a in x for b in y if a != b
        ]
        return cls(blocked, "partition:flapping" if on_ns else "partition:symmetric", on_ns, off_ns)

    @classmethod
    def one_way(cls, deaf: Sequence[int], to: Sequence[int]) -> Partition:
        """The sites `deaf` do not hear the sites `to`, which hear them."""
        return cls([(a, b) for a in to for b in deaf if a != b], "partition:one-way")

    @classmethod
    def non_transitive(cls, a: int, b: int) -> Partition:
        """`a` and `b` do not hear each other, while everybody else hears both."""
        return cls([(a, b), (b, a)], "partition:non-transitive")

    def carry(self, time: int, src: int, dst: int, pdu: Pdu, ref: int) -> Fate:
        if (src, dst) not in self.blocked:
            return None
        if self.on_ns and time % (self.on_ns + self.off_ns) >= self.on_ns:
            return None
        return "partition"


# -- helpers ---------------------------------------------------------------------------------

VERSION_AT: Final = 1
"""Where the wire envelope has its version byte; its last four bytes are a CRC-32 of the rest."""


def damaged(data: bytes, damage: tuple[Damage, ...]) -> bytes:
    """`data` after all of `damage`."""
    raw = bytearray(data)
    flipped: set[int] = set()
    for kind, amount in damage:
        if kind == Corrupted.kind and raw:
            bit = int(amount * len(raw) * 8)
            while bit in flipped:  # a bit flipped back would be no damage
                bit = (bit + 1) % (len(raw) * 8)
            flipped.add(bit)
            raw[bit // 8] ^= 1 << bit % 8
        elif kind == Truncated.kind:
            del raw[int(amount * len(raw)) :]
        elif kind == Alien.kind and len(raw) > VERSION_AT + 4:
            raw[VERSION_AT] = int(amount)
            raw[-4:] = crc32(raw[:-4]).to_bytes(4, "big")
    return bytes(raw)


def plain_name(name: str) -> str:
    """`NEW_TL`, `NewTl` and `newtl` are the same PDU."""
    return name.replace("_", "").lower()


@cache
def names_of(kind: type[Pdu]) -> tuple[str, ...]:
    """The `plain_name` of a class of PDUs; a cluster's has its family name too.

    >>> from roundelay.core.cluster.pdu import SpoDt
    >>> names_of(SpoDt)
    ('spodt', 'dt')
    """
    own = plain_name(kind.__name__)
    for kinds in (TO_KINDS, SPO_KINDS):
        if kind in kinds:
            return own, plain_name(PO_KINDS[kinds.index(kind)].__name__)
    return (own,)
