"""The event loop: uvloop where it is installed, asyncio's own where it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the loop of a node; None stands for asyncio's own."""
    try:
        uvloop = import_module("uvloop")
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
