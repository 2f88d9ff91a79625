"""How far an exploration goes: the bounds that make the reachable states finite."""

from __future__ import annotations

from typing import ClassVar, Final, Self

from msgspec import Struct

from roundelay.core.cluster.config import ClusterConfig
from roundelay.core.engine import ACKNOWLEDGED
from roundelay.core.errors import ConfigError
from roundelay.core.families import CLUSTERS, PO
from roundelay.core.limits import one_of, whole
from roundelay.core.token.config import COLD, PREFORMED, TokenConfig
from roundelay.core.token.stamping import ROUNDS

MOST: Final = 100
"""The largest bound of any kind: costs are counted in seven bits each."""

KEEP_ALL: Final = 4096
"""A history that no explored run outgrows."""


class Bounds(Struct, frozen=True, kw_only=True):
    """Bounds of one exploration; those of each family follow."""

    LIMITS: ClassVar[dict[str, tuple[int, int]]]
    """The least and the most that some of them may be."""
    ALWAYS_NAMED: ClassVar[tuple[str, ...]]
    """Those that a command line names even if they are the usual ones."""
    MAX_STATES: ClassVar[int]
    """Beyond that a search gives up: about a gigabyte, for clusters."""

    def check(self) -> Self:
        """Raise ConfigError unless all bounds make sense."""
        for field, (least, most) in self.LIMITS.items():
            whole(field, getattr(self, field), least, most)
        return self

    def command(self, mutant: str = "") -> str:
        """Return the command line that explores this: the bounds that count most, and all others
        that are not the usual ones."""
        usual = type(self)()
        words = ["roundelay explore"]
        for field in self.__struct_fields__:
            value, option = getattr(self, field), "--" + field.replace("_", "-")
            if field in self.ALWAYS_NAMED or value != getattr(usual, field):
                words.append(option if value is True else f"{option} {value}")
        if mutant:
            words.append(f"--mutant {mutant}")
        return " ".join(words)


class Scope(Bounds, frozen=True, kw_only=True):
    """Bounds of one exploration of the token protocol.

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
    MAX_STATES: ClassVar[int] = 20_000_000

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
        super().check()
        one_of("boot", self.boot, (PREFORMED, COLD))
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


class ClusterScope(Bounds, frozen=True, kw_only=True):
    """Bounds of one exploration of a cluster protocol.

    >>> ClusterScope(protocol="spo", sites=3).command()
    'roundelay explore --protocol spo --sites 3 --messages 2 --losses 1'
    """

    LIMITS: ClassVar[dict[str, tuple[int, int]]] = {
        "sites": (2, 5),
        "messages": (0, 9),
        "losses": (0, 9),
        "early": (0, 9),
        "window": (1, 9),
        "fails": (0, 1),
    }
    ALWAYS_NAMED: ClassVar[tuple[str, ...]] = ("protocol", "sites", "messages", "losses")
    MAX_STATES: ClassVar[int] = 2_000_000

    protocol: str = PO
    sites: int = 2
    messages: int = 2
    """Messages submitted in total, by any member at any moment."""
    losses: int = 1
    """Copies lost in total."""
    early: int = 0
    """Times that a long timer passes while something is under way."""
    window: int = 1
    """W: a member's messages that may be under way at a time."""
    deliver_at: str = ACKNOWLEDGED
    """The stage at which messages are handed over."""
    fails: int = 0
    """1: in every state that is met, each member in turn stops for good."""

    def check(self) -> Self:
        one_of("protocol", self.protocol, CLUSTERS)
        return super().check()

    def config(self) -> ClusterConfig:
        """All timers are in the future, and t_wait is too short to hold a repetition back."""
        return ClusterConfig(
            ack_ns=1,
            wait_ns=1,
            stat_ns=1,
            reset_ns=1,
            attempts=2,
            window=self.window,
            deliver_at=self.deliver_at,
        )
