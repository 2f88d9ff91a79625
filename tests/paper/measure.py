"""Simulated groups as CM84 §6.2 has them: constant delays far below T, independent losses."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from roundelay.core.engine import MS, SECOND, STAMPED, Delivery
from roundelay.core.positive_ack import PositiveAckConfig, PositiveAckSite
from roundelay.core.token.config import TokenConfig
from roundelay.core.token.site import TokenSite
from roundelay.sim.kernel.load import Isolated, Load, Poisson, Saturating
from roundelay.sim.kernel.world import World
from roundelay.sim.network.links import Lossy
from roundelay.sim.network.media import Bus

T = 50 * MS  # the period between token transfers: the unit of time


class Measured:
    """A finished run; PDUs are counted once each, however many sites hear them."""

    def __init__(self, world: World, messages: int, look: Look) -> None:
        self.world = world
        self.messages = messages
        self.logs = look.logs
        self.delays = look.delays  # from submission to each delivery
        self.waits = list(look.waits.values())  # from acknowledgement to the first commit
        self.engines: list[Any] = [member.engine for member in world.sites]
        self.kinds = Counter({kind.__name__: count for kind, count in world.sent_by_kind.items()})

    @property
    def per_message(self) -> float:
        """PDUs per broadcast."""
        return self.world.sent / self.messages

    @property
    def control(self) -> float:
        """Control messages per broadcast: all PDUs but the broadcasts themselves."""
        return (self.world.sent - self.kinds["B"]) / self.messages

    @property
    def storage(self) -> int:
        """The most messages any site had to keep for retransmission."""
        return max(int(engine.log.storage_max) for engine in self.engines)

    @property
    def same_order(self) -> bool:
        """Everybody has the same messages in the same order, as far as it has them.

        Without the beacon the last message may not be committed everywhere (§4.1).
        """
        longest = max(self.logs, key=len)
        return len(longest) == self.messages and all(
            log == longest[: len(log)] and len(log) > self.messages - 10 for log in self.logs
        )


class Look:
    """Sees what applications see, and when."""

    def __init__(self, sites: int) -> None:
        self.logs: list[list[Any]] = [[] for _ in range(sites)]
        self.began: dict[bytes, int] = {}
        self.stamped: dict[bytes, int] = {}
        self.waits: dict[bytes, int] = {}
        self.delays: list[int] = []

    def submitted(self, time: int, site: int, index: int, bundle: Any) -> None:
        for message in bundle:
            self.began[message] = time

    def delivered(self, time: int, site: int, delivery: Delivery) -> None:
        if delivery.stage == STAMPED:
            self.stamped.setdefault(delivery.bundle.data, time)
            return
        if delivery.bundle.data in self.stamped:
            self.waits.setdefault(delivery.bundle.data, time - self.stamped[delivery.bundle.data])
        for message in delivery.bundle:
            self.logs[site].append((delivery.source, message))
            self.delays.append(time - self.began[message])


def run(sites: int, make: Any, load: Load, loss: float, seed: int) -> Measured:
    look = Look(sites)
    world = World(sites, make, seed=seed, medium=Bus(T // 1000), links=Lossy(loss))
    world.observe(look)
    load.start(world)
    done = world.run_until(
        lambda: load.done and max(map(len, look.logs)) >= load.messages, 10**16, 20 * T
    )
    assert done
    return Measured(world, load.messages, look)


def token(
    sites: int,
    level: int = 1,
    *,
    tau: float = 0.0,
    load: Load | None = None,
    loss: float = 0.0,
    messages: int = 300,
    seed: int = 1984,
    **changes: Any,
) -> Measured:
    """The token protocol under a Poisson stream (`tau`) or another load."""
    config = TokenConfig.paper(T, resilience=level, **changes)
    group = tuple(range(sites))

    def make(site: int, stable: Any, boot: str, now: int, rng: Random) -> TokenSite:
        return TokenSite(site, group, config, rng, stable=stable, now=now)

    return run(sites, make, load or poisson(messages, tau), loss, seed)


def positive_ack(
    sites: int, *, tau: float = 1.0, loss: float = 0.0, messages: int = 300, seed: int = 1984
) -> Measured:
    config = PositiveAckConfig.paper(T // 10)
    group = tuple(range(sites))

    def make(site: int, stable: Any, boot: str, now: int, rng: Random) -> PositiveAckSite:
        return PositiveAckSite(site, group, config, rng, now=now, stable=stable)

    return run(sites, make, poisson(messages, tau), loss, seed)


def poisson(messages: int, tau: float) -> Load:
    """τ = λ·T: `tau` messages on average in the token's hold time (CM84 §6)."""
    return Poisson(messages, tau * SECOND / T)


def busy(messages: int = 300) -> Load:
    """There is always a message waiting to be acknowledged."""
    return Saturating(messages)


def idle(messages: int = 60) -> Load:
    """There never is: each message comes long after the last has settled."""
    return Isolated(messages, gap_ns=20 * T)
