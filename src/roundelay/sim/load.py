"""Workloads: who submits what, and when.

Every message is unique: its source and its number there, then padding.  A load submits one message
at a time and never gives up on its total: what a site refuses (it is down, its queue is full) is
not counted as submitted.

    Poisson     a Poisson stream of a total rate over all sources
    Saturating  every source always has messages waiting
    Isolated    one message at a time in the whole group
    Script      exactly these messages at these times
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from random import Random
from struct import Struct
from typing import Final

from roundelay.core.bundle import Bundle
from roundelay.core.engine import MS, SECOND, STAMPED, Delivery
from roundelay.core.errors import ConfigError
from roundelay.sim.kernel import Kernel

HEADER: Final = Struct(">HQ")  # source, number
SIZE: Final = 64
"""Bytes of a message unless told otherwise: the size that small events have."""


def message(source: int, number: int, size: int = SIZE) -> bytes:
    """Message `number` of `source`.

    >>> identity(message(3, 7, size=16))
    (3, 7)
    """
    return HEADER.pack(source, number).ljust(size, b"\0")


def identity(data: bytes) -> tuple[int, int]:
    """(source, number) of a message."""
    source, number = HEADER.unpack_from(data)
    return source, number


class Load(ABC):
    """Base of all loads: counts what was accepted, per source and in total."""

    def __init__(
        self, messages: int, sources: Sequence[int] | None = None, size: int = SIZE
    ) -> None:
        if messages < 0:
            raise ConfigError("messages", messages, "a whole number from 0 up")
        if size < HEADER.size:
            raise ConfigError("size", size, f"a whole number from {HEADER.size} up (bytes)")
        self.messages = messages
        self.sources: tuple[int, ...] = tuple(sources or ())
        self.size = size
        self.submitted_total = 0
        self.numbers: dict[int, int] = {}  # next number per source
        self.world: Kernel
        self.rng: Random

    def start(self, world: Kernel) -> None:
        """Begin to submit into `world`; the load also observes it."""
        self.world = world
        self.rng = world.stream("load")
        self.sources = self.sources or world.group
        world.observe(self)
        self.begin()

    @abstractmethod
    def begin(self) -> None:
        """Schedule the first submissions."""

    @property
    def done(self) -> bool:
        """Whether all messages have been submitted."""
        return self.submitted_total >= self.messages

    def submit(self, source: int) -> bool:
        """One more message of `source`, unless the load is done or the site refuses."""
        if self.done:
            return False
        number = self.numbers.get(source, 0)
        # Numbered first: the site may deliver its own message before `submit` returns.
        self.numbers[source] = number + 1
        self.submitted_total += 1
        if self.world.submit(source, Bundle.of(message(source, number, self.size))):
            return True
        self.numbers[source] = number
        self.submitted_total -= 1
        return False

    def one_more(self, source: int) -> bool:
        """A message on top of the total, unless the site refuses."""
        self.messages += 1
        accepted = self.submit(source)
        if not accepted:
            self.messages -= 1
        return accepted


class Poisson(Load):
    """`rate` messages per second in total, each from a source chosen at random."""

    def __init__(
        self, messages: int, rate: float, sources: Sequence[int] | None = None, size: int = SIZE
    ) -> None:
        super().__init__(messages, sources, size)
        if not rate > 0:
            raise ConfigError("rate", rate, "a number above 0 (messages per second)")
        self.rate = rate

    @classmethod
    def of_tau(cls, messages: int, tau: float, hold_ns: int, size: int = SIZE) -> Poisson:
        """τ = λ·T: `tau` messages on average in the token's hold time (CM84 §6)."""
        if not tau > 0:
            raise ConfigError("tau", tau, "a number above 0 (messages per hold time)")
        return cls(messages, tau * SECOND / hold_ns, size=size)

    def begin(self) -> None:
        self.world.after(self._gap_ns(), self._next)

    def _gap_ns(self) -> int:
        return int(self.rng.expovariate(self.rate) * SECOND)

    def _next(self) -> None:
        if self.done:
            return
        self.submit(self.sources[int(self.rng.random() * len(self.sources))])
        self.world.after(self._gap_ns(), self._next)


class Saturating(Load):
    """Every source keeps `backlog` messages under way: a new one for each of its own delivered."""

    def __init__(
        self, messages: int, sources: Sequence[int] | None = None, size: int = SIZE,
        backlog: int = 2,
    ) -> None:  # fmt: skip
        super().__init__(messages, sources, size)
        if backlog < 1:
            raise ConfigError("backlog", backlog, "a whole number from 1 up")
        self.backlog = backlog

    def begin(self) -> None:
        for source in self.sources:
            self._more(source, self.backlog)

    def _more(self, source: int, count: int) -> None:
        # Not from inside a delivery: a batch of effects is carried out to its end first.
        for _ in range(count):
            self.world.after(0, partial(self.submit, source))

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        if site == delivery.source and site in self.sources and delivery.stage != STAMPED:
            self._more(site, len(delivery.bundle))

    def restarted(self, time: int, site: int, keeps: str) -> None:
        """What was under way may be gone: begin anew."""
        if site in self.sources:
            self._more(site, self.backlog)


class Isolated(Load):
    """The next message `gap_ns` after the last one was delivered at every site."""

    def __init__(
        self, messages: int, sources: Sequence[int] | None = None, size: int = SIZE,
        gap_ns: int = 500 * MS,
    ) -> None:  # fmt: skip
        super().__init__(messages, sources, size)
        self.gap_ns = gap_ns
        self.missing: set[int] = set()  # sites that have not delivered the present message

    def begin(self) -> None:
        self.world.after(self.gap_ns, self._next)

    def _next(self) -> None:
        if self.done:
            return
        self.missing = set(self.world.group)
        if not self.submit(self.sources[int(self.rng.random() * len(self.sources))]):
            self.world.after(self.gap_ns, self._next)

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        if site in self.missing and delivery.stage != STAMPED:
            self.missing.discard(site)
            if not self.missing:
                self.world.after(self.gap_ns, self._next)


class Script(Load):
    """`lines` of (time in ns, site): one message each, at exactly that time or never."""

    def __init__(self, lines: Iterable[tuple[int, int]], size: int = SIZE) -> None:
        self.lines = tuple(lines)
        super().__init__(len(self.lines), size=size)

    def begin(self) -> None:
        for time, source in self.lines:
            self.world.at(time, partial(self.submit, source))
