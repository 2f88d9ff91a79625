"""Workloads: who submits what, and when.

Every message is unique: its source and its number there, then padding.  A load submits one message
at a time and never gives up on its total: what a site refuses (it is down, its queue is full) is
not counted as submitted.

    Poisson     a Poisson stream of a total rate over all sources
    Saturating  every source always has messages waiting
    Isolated    one message at a time in the whole group
    RandomTimes messages at random times, whatever becomes of them

Where a service lets a message name its destinations, a load takes `to`: a function from the source
and the number of a message to those who get it.  `Destinations` is one that a checker can ask too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from random import Random
from struct import Struct
from typing import Any, Final

from roundelay.core.bundle import Bundle
from roundelay.core.engine import SECOND, STAMPED, Delivery
from roundelay.core.errors import ConfigError
from roundelay.core.limits import whole
from roundelay.sim.kernel.kernel import Kernel

HEADER: Final = Struct(">HQ")  # source, number
SIZE: Final = 64
"""Bytes of a message unless told otherwise: the size that small events have."""


def message(source: int, number: int, size: int = SIZE) -> bytes:
    """Message `number` of `source`.

    >>> identity(message(3, 7, size=16))
    (3, 7)
    """
    return HEADER.pack(source, number).ljust(size, b"\0")


def content(source: int, number: int, size: int) -> bytes:
    """The same, with `size` bytes behind it that are its own: it is unique in every part."""
    return HEADER.pack(source, number) + Random(f"{source}/{number}").randbytes(size)


def identity(data: bytes) -> tuple[int, int]:
    """(source, number) of a message."""
    source, number = HEADER.unpack_from(data)
    return source, number


To = Callable[[int, int], Collection[int]]
"""(source, number) → the members that message goes to."""


class Destinations:
    """Each message goes to `many` of `members`, chosen at random but the same whoever asks.

    With `many` < len(members) the source is not among them, so a message has exactly `many`
    receivers (SPO-T3); with `many` = len(members) it goes to everybody, the source included.
    With `many` = 0 a message goes to a random number of members, with or without the source.
    Members in `never` are never addressed.

    >>> to = Destinations(range(5), 2, seed=7)
    >>> to(3, 0), to(3, 1), to(3, 0)
    ((0, 1), (2, 4), (0, 1))
    """

    def __init__(
        self, members: Iterable[int], many: int, *, seed: int | str = 0, never: Collection[int] = ()
    ) -> None:
        group = tuple(members)
        self.pool = tuple(member for member in group if member not in never)
        most = len(self.pool) - 1
        if not (0 <= many <= most or many == len(group) == most + 1):
            allowed = f"0 to {most}" + ("" if never else f", or {len(group)} for everybody")
            raise ConfigError("destinations", many, f"a whole number from {allowed}")
        if not self.pool:
            raise ConfigError("never", tuple(never), "at least one member must be addressed")
        self.many = many
        self.everybody = many == len(group)
        self.seed = seed

    def __call__(self, source: int, number: int) -> tuple[int, ...]:
        if self.everybody:
            return self.pool
        rng = Random(f"{self.seed}/to/{source}/{number}")
        if not self.many:
            some = rng.sample(self.pool, rng.randint(1, len(self.pool)))
        else:
            some = rng.sample([member for member in self.pool if member != source], self.many)
        return tuple(sorted(some))

    def of(self, submission: Any) -> tuple[int, ...]:
        """The same, as checkers ask (`Checker(destinations=to.of)`), who know site and index."""
        return self(submission.site, submission.index)


class Load(ABC):
    """Base of all loads: counts what was accepted, per source and in total."""

    def __init__(
        self,
        messages: int,
        sources: Sequence[int] | None = None,
        size: int = SIZE,
        to: To | None = None,
    ) -> None:
        self.messages = whole("messages", messages, 0)
        self.sources: tuple[int, ...] = tuple(sources or ())
        self.size = whole("size", size, HEADER.size, where=" (bytes)")
        self.to = to
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
        bundle = Bundle.of(message(source, number, self.size))
        if self.world.submit(source, bundle, None if self.to is None else self.to(source, number)):
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

    def receivers(self, source: int, number: int) -> Collection[int]:
        """Who gets message `number` of `source`."""
        return self.world.group if self.to is None else self.to(source, number)


class Poisson(Load):
    """`rate` messages per second in total, each from a source chosen at random."""

    def __init__(self, messages: int, rate: float, **options: Any) -> None:
        super().__init__(messages, **options)
        if not rate > 0:
            raise ConfigError("rate", rate, "a number above 0 (messages per second)")
        self.rate = rate

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
    """Every source keeps `backlog` messages under way: a new one for each of its own delivered.

    A source that is not among the receivers of a message waits for the first of them.
    """

    def __init__(self, messages: int, *, backlog: int = 2, **options: Any) -> None:
        super().__init__(messages, **options)
        self.backlog = whole("backlog", backlog, 1)

    def begin(self) -> None:
        for source in self.sources:
            self._more(source, self.backlog)

    def _more(self, source: int, count: int) -> None:
        # Not from inside a delivery: a batch of effects is carried out to its end first.
        for _ in range(count):
            self.world.after(0, partial(self.submit, source))

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        source = delivery.source
        if delivery.stage == STAMPED or source not in self.sources:
            return
        if self.to is None:
            if site == source:
                self._more(source, len(delivery.bundle))
            return
        for data in delivery.bundle:
            there = self.to(*identity(data))
            if site == (source if source in there else min(there)):
                self._more(source, 1)

    def restarted(self, time: int, site: int, keeps: str) -> None:
        """What was under way may be gone: begin anew."""
        if site in self.sources:
            self._more(site, self.backlog)


class Isolated(Load):
    """The next message `gap_ns` after the last one was delivered at every receiver."""

    def __init__(self, messages: int, *, gap_ns: int, **options: Any) -> None:
        super().__init__(messages, **options)
        self.gap_ns = gap_ns
        self.missing: set[int] = set()  # sites that have not delivered the present message

    def begin(self) -> None:
        self.world.after(self.gap_ns, self._next)

    def _next(self) -> None:
        if self.done:
            return
        source = self.sources[int(self.rng.random() * len(self.sources))]
        self.missing = set(self.receivers(source, self.numbers.get(source, 0)))
        if not self.submit(source):
            self.world.after(self.gap_ns, self._next)

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        if site in self.missing and delivery.stage != STAMPED:
            self.missing.discard(site)
            if not self.missing:
                self.world.after(self.gap_ns, self._next)


class RandomTimes(Load):
    """Each message at a random time before `until_ns`; `send_one` says which and how."""

    def __init__(self, messages: int, *, until_ns: int, **options: Any) -> None:
        super().__init__(messages, **options)
        self.until_ns = until_ns

    def begin(self) -> None:
        for _ in range(self.messages):
            self.world.at(int(self.rng.random() * self.until_ns), self.send_one)

    @abstractmethod
    def send_one(self) -> None:
        """Send a message of anybody."""
