"""How far the explorer looks: the bounds that make the reachable states finite."""

from __future__ import annotations

from typing import Final, Self

from msgspec import Struct

from roundelay.core.errors import ConfigError
from roundelay.core.token.config import COLD, PREFORMED, TokenConfig
from roundelay.core.token.stamping import ROUNDS

MOST: Final = 100
"""The largest bound of any kind: costs are counted in seven bits each."""

_ALWAYS: Final = ("sites", "resilience", "timestamps", "crashes")
"""Bounds that a command line always names."""

KEEP_ALL: Final = 4096
"""A history that no explored run outgrows."""


class Scope(Struct, frozen=True, kw_only=True):
    """Bounds of one exploration."""

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
        for field, least in (
            ("sites", 2), ("timestamps", 1), ("crashes", 0), ("attempts", 0), ("messages", 0),
            ("wipes", 0), ("restarts", 0), ("history", 0),
        ):  # fmt: skip
            most = KEEP_ALL if field == "history" else MOST
            value = getattr(self, field)
            if not least <= value <= most:
                raise ConfigError(field, value, f"a whole number from {least} to {most}")
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

    def command(self, mutant: str = "") -> str:
        """The command line that explores this: the four bounds that count most, and all others
        that are not the usual ones.

        >>> Scope(resilience=0, messages=1).command("no-majority")
        'roundelay explore --sites 3 --resilience 0 --timestamps 3 --crashes 1 --messages 1 \
--mutant no-majority'
        """
        usual = Scope()
        words = ["roundelay explore"]
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if field == "to_source":
                words += ["--to-source"] if value else []
            elif field in _ALWAYS or value != getattr(usual, field):
                words.append(f"--{field} {value}")
        if mutant:
            words.append(f"--mutant {mutant}")
        return " ".join(words)
