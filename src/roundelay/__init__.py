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
    "Position": "roundelay.core.position",
    "join": "roundelay.client.group",
}
"""Where what is no error comes from."""


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is: the simulator needs no sockets."""
    if name not in __all__:
        raise AttributeError(f"module 'roundelay' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES.get(name, "roundelay.core.errors")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
