"""How far the token protocol is explored."""

from __future__ import annotations

from typing import ClassVar, Final, Self

from roundelay.core.errors import ConfigError
from roundelay.core.token.config import COLD, PREFORMED, TokenConfig
from roundelay.core.token.stamping import ROUNDS
from roundelay.sim.explore.scope import Bounds

MOST: Final = 100
"""The largest bound of any kind: costs are counted in seven bits each."""

KEEP_ALL: Final = 4096
"""A history that no explored run outgrows."""


class Scope(Bounds, frozen=True, kw_only=True):
    """Bounds of one exploration.

    >>> Scope(resilience=0, messages=1).command("no-majority")
    'roundelay explore --sites 3 --resilience 0 --timestamps 3 --crashes 1 --messages 1 \
--mutant no-majority'
    """

    LIMITS: ClassVar[dict[str, tuple[int, int]]] = {
        "sites": (2, MOST),
        "timestamps": (1, MOST),
        **dict.fromkeys(("crashes", "attempts", "messages", "wipes", "restarts"), (0, MOST)),
        "history": (0, KEEP_ALL),
    }
    ALWAYS_NAMED: ClassVar[tuple[str, ...]] = ("sites", "resilience", "timestamps", "crashes")

    sites: int = 3
    """N."""
    resilience: int = 1
    """L."""
    timestamps: int = 3
    """K: no acknowledgement with a timestamp of K or above is issued."""
    crashes: int = 1
    """Crashes in total, at any site and any moment; the disk stays, the site restarts or not."""
    attempts: int = 2
    """Reformations started in total, by any site at any moment."""
    messages: int = 2
    """Messages submitted in total, by any site at any moment."""
    wipes: int = 0
    """Crashes in total that take the disk with them, on top of `crashes`."""
    restarts: int = 0
    """Crashes in total of which it is known that the disk has everything, on top of `crashes`."""
    kr: int = 1
    """K_r: token transfers per message."""
    boot: str = PREFORMED
    """How the group begins: `preformed` or `cold`."""
    history: int = KEEP_ALL
    """Entries kept for sites that were away."""
    to_source: bool = False
    """Whether the source of a message gets the token, as in the `fast` profile."""

    def check(self) -> Self:
        """Raise ConfigError unless all bounds make sense."""
        super().check()
        if self.boot not in (PREFORMED, COLD):
            raise ConfigError("boot", self.boot, f"{PREFORMED} or {COLD}")
        if self.to_source:
            if not self.config().free_heirs(self.sites):
                allowed = "off unless L = 1 and there are 4 sites or fewer"
                raise ConfigError("to_source", True, allowed)
            # With more stamps who gets the token depends on what each site is known to have,
            # which the explorer compares only where it decides what is forgotten.
            most = ROUNDS * (self.sites // 2 + 1)
            if self.timestamps > most:
                allowed = f"{most} at most with to_source and {self.sites} sites"
                raise ConfigError("timestamps", self.timestamps, allowed)
        self.config().check(self.sites)
        return self

    def config(self, boot: str | None = None) -> TokenConfig:
        """The engines' configuration.

        No attempt is repeated (R = 0): a timer that fires means at once what R silent attempts
        mean.  Repetitions are not needed, since the network forgets nothing it was given.
        """
        return TokenConfig(
            resilience=self.resilience,
            attempts=0,
            attempts_hard=0,
            request_delay_ns=0,
            bundle=False,
            kr=self.kr,
            history=self.history,
            eager=self.to_source,
            to_source=self.to_source,
            forks=False,  # marks would only say again what is in the log
            boot=boot or self.boot,
        )
