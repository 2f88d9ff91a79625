"""Messages on their way from an application behind a socket to its node."""

from __future__ import annotations

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.node.node_api import NO_TAG


class Outgoing(Struct):
    """What one packet asked to be sent, or several that were gathered."""

    group: str
    bundle: Bundle
    tag: int = NO_TAG
    to: tuple[str, ...] | None = None
    someone: bool = False
    recorders: int = 0
    unit: bool = False
    gathered: bool = False
    """The bundle was made here, of messages that were sent one by one."""


def gathered(group: str, messages: list[bytes]) -> Outgoing:
    """Messages that arrived together, as one bundle."""
    return Outgoing(group, Bundle.of(*messages), gathered=len(messages) > 1)


def singly(item: Outgoing) -> list[Outgoing]:
    """Its messages one by one; backwards, as `extendleft` wants them."""
    return [Outgoing(item.group, Bundle.of(message)) for message in reversed(list(item.bundle))]
