"""The shape of every measured run: a world, a load, a meter, and what came of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from roundelay.runs.measure import Meter
from roundelay.sim.kernel.load import Destinations, Isolated, Load, Poisson, Saturating
from roundelay.sim.kernel.world import World
from roundelay.sim.network.links import PLAIN, Lossy
from roundelay.trace.recorder import Recorder
from roundelay.trace.schema import kind_of
from roundelay.wire.codec import GroupCodec

if TYPE_CHECKING:
    from roundelay.runs.simulate import SimulateParams

PAPER: Final = "paper"
FAST: Final = "fast"
PROFILES: Final = (PAPER, FAST)

POISSON: Final = "poisson"
SATURATED: Final = "saturated"
ISOLATED: Final = "isolated"
LOADS: Final = (POISSON, SATURATED, ISOLATED)

SITES: Final = 5
"""Of a group, or of each network."""

Progress = Callable[[int, int], None]
"""Called now and then with (messages delivered everywhere, messages in total)."""


class MeasuredRun(ABC):
    """A run in the making; subclasses make the world and say when it is over."""

    world: World
    checker: Any
    """Has `violations`, and is shown how full buffers are."""
    load: Load
    sources: tuple[int, ...] | None = None
    """The sites that submit, if not all do."""
    to: Destinations | None = None
    """Who gets which message, if not everybody."""
    isolated: type[Isolated] = Isolated
    storage_max = 0
    """The most that one site kept at a time, by the protocol's own measure."""

    def __init__(
        self, params: SimulateParams, receivers: Callable[[int, int], int] | None = None
    ) -> None:
        self.params = params
        self.meter = Meter(params.sites, params.messages, receivers=receivers)
        self.pdus = 0
        self.pdus_by_kind: dict[str, int] = {}

    @staticmethod
    @abstractmethod
    def check_params(params: SimulateParams) -> None:
        """Raise ConfigError for what the protocol cannot do."""

    @staticmethod
    def sites_for(networks: int | None) -> int:
        """How many sites there are, unless somebody says so."""
        return SITES

    @staticmethod
    def users_of(params: SimulateParams) -> tuple[int, ...] | None:
        """The sites with an application, if not all have one."""
        return None

    def conditions(self, recorder: Recorder | None) -> dict[str, Any]:
        """What the world of any such run is made with."""
        params = self.params
        return {
            "seed": params.seed,
            "links": Lossy(params.loss) if params.loss else PLAIN,
            "codec": GroupCodec("simulate") if params.wire else None,
            "recorder": recorder,
        }

    @property
    @abstractmethod
    def gap_ns(self) -> int:
        """The time between messages that are to be isolated."""

    def make_load(self) -> Load:
        params = self.params
        given: dict[str, Any] = {"sources": self.sources, "size": params.size, "to": self.to}
        if params.load == SATURATED:
            return Saturating(params.messages, **given)
        if params.load == ISOLATED:
            return self.isolated(params.messages, gap_ns=self.gap_ns, **given)
        assert params.rate is not None
        return Poisson(params.messages, params.rate, **given)

    @abstractmethod
    def run(self, progress: Progress | None = None) -> bool:
        """Run to the end; False if it was given up."""

    def count(self, uncounted: int = 0) -> None:
        """What was sent up to here, but for so many PDUs, is what the run cost."""
        self.pdus = self.world.sent - uncounted
        self.pdus_by_kind = {
            kind_of(kind): count for kind, count in self.world.sent_by_kind.items()
        }

    def show_buffers(self) -> None:
        """Show the checker how full the buffers are (I6)."""
        for member in self.world.sites:
            engine = member.engine
            if engine is not None:
                self.checker.sampled(self.world.now, member.id, engine.usage(), engine.caps())

    def own_results(self) -> dict[str, Any]:
        """What only this protocol has to say."""
        return {}
