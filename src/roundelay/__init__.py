"""Roundelay: every member hears every message, in the same order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from roundelay.client.group import Group, Message, join
    from roundelay.core.errors import (
        ConnectionLost,
        FolderInUse,
        GroupClosed,
        GroupFailed,
        Indeterminate,
        LeftOut,
        MissingMessages,
        NameTaken,
        NoSuchPosition,
        Refused,
        RoundelayError,
        SettingsMismatch,
        SlowConsumer,
    )
    from roundelay.core.position import Position

__all__ = [
    "ConnectionLost", "FolderInUse", "Group", "GroupClosed", "GroupFailed", "Indeterminate",
    "LeftOut", "Message", "MissingMessages", "NameTaken", "NoSuchPosition", "Position", "Refused",
    "RoundelayError", "SettingsMismatch", "SlowConsumer", "join",
]  # fmt: skip

_HOMES = {
    "Group": "roundelay.client.group",
    "Message": "roundelay.client.group",
    "join": "roundelay.client.group",
    "ConnectionLost": "roundelay.core.errors",
    "FolderInUse": "roundelay.core.errors",
    "GroupClosed": "roundelay.core.errors",
    "GroupFailed": "roundelay.core.errors",
    "Indeterminate": "roundelay.core.errors",
    "LeftOut": "roundelay.core.errors",
    "NameTaken": "roundelay.core.errors",
    "MissingMessages": "roundelay.core.errors",
    "NoSuchPosition": "roundelay.core.errors",
    "Position": "roundelay.core.position",
    "Refused": "roundelay.core.errors",
    "RoundelayError": "roundelay.core.errors",
    "SettingsMismatch": "roundelay.core.errors",
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
