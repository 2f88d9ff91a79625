"""The kinds of trouble that both commands make; each plan says what its own do."""

from __future__ import annotations

from typing import Any, Final

KILL: Final = "kill"
WIPE: Final = "wipe"
PAUSE: Final = "pause"
PARTITION: Final = "partition"
ONE_WAY: Final = "one-way"
SPLIT: Final = "split"
FLAP: Final = "flap"
CLOG: Final = "clog"
TWIN: Final = "twin"
CLOCK: Final = "clock"
SOME: Final = "some"
LATE_LINK: Final = "late-link"


def listed(text: str) -> tuple[str, ...]:
    """The words of `text`, as a table of kinds has them."""
    return tuple(text.split())


def rules(kind: str, names: list[str], rest: list[str], lasts_s: float) -> list[dict[str, Any]]:
    """What a network is told that keeps `names` apart, from each other or from the `rest`."""
    if kind == ONE_WAY:
        return [{"cut": names}]
    if kind == SPLIT:
        return [{"split": names}]
    if kind == CLOG:
        return [{"clog": {"from": names[0], "to": to, "ms": lasts_s * 1000}} for to in rest]
    flapping = {"on_ms": 300, "off_ms": 200} if kind == FLAP else {}
    return [{"partition": [names, rest], **flapping}]
