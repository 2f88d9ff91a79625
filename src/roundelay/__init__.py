"""Roundelay: every member hears every message, in the same order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from roundelay.client.group import Group, Message, join
    from roundelay.core.errors import (
        FolderInUse,
        Indeterminate,
        NameTaken,
        Refused,
        RoundelayError,
        SlowConsumer,
    )

__all__ = [
    "FolderInUse", "Group", "Indeterminate", "Message", "NameTaken", "Refused", "RoundelayError",
    "SlowConsumer", "join",
]  # fmt: skip

_HOMES = {
    "Group": "roundelay.client.group",
    "Message": "roundelay.client.group",
    "join": "roundelay.client.group",
    "FolderInUse": "roundelay.core.errors",
    "Indeterminate": "roundelay.core.errors",
    "NameTaken": "roundelay.core.errors",
    "Refused": "roundelay.core.errors",
    "RoundelayError": "roundelay.core.errors",
    "SlowConsumer": "roundelay.core.errors",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is: the simulator needs no sockets."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'roundelay' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
