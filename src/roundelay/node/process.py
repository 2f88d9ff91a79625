"""The process that a node runs in: its event loop, and children that were forked from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module

from roundelay.core.errors import UsageError


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the loop of a node: uvloop where it is installed; None: asyncio's own."""
    try:
        uvloop = import_module("uvloop")
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def of_the_parent() -> UsageError:
    """What a forked child gets that uses its copy of a node."""
    return UsageError(
        "the node belongs to the process that this one was forked from: join again here, "
        "with another name, or start this one afresh (multiprocessing: method spawn)"
    )
