"""What engines with one line have sent."""

from __future__ import annotations

from typing import Any

from roundelay.core.engine import ONLY_LINE, Effects


def sends_of(effects: Effects) -> list[tuple[int, Any]]:
    """(destination, pdu) of each send of a batch."""
    assert all(line == ONLY_LINE for _, _, line in effects.sends)
    return [(destination, pdu) for destination, pdu, _ in effects.sends]


def packets_of(effects: Effects) -> list[Any]:
    """The PDUs alone."""
    return [pdu for _, pdu in sends_of(effects)]
