"""How a group ends for its application, and when it works."""

from __future__ import annotations

from roundelay.core.errors import (
    ConnectionLost,
    GroupClosed,
    GroupFailed,
    Indeterminate,
    Refused,
    SettingsMismatch,
)
from roundelay.node.node_api import Refusal, View

Over = GroupClosed | ConnectionLost | GroupFailed | Refused | SettingsMismatch
"""Why a group is over for its application."""


def why_out(group: str, reason: str) -> GroupFailed | Refused | SettingsMismatch:
    """What is raised to an application whose node says why it is not in the group."""
    failed = reason.removeprefix("failed: ")
    mismatch = SettingsMismatch.told(reason)
    if mismatch is not None:
        return mismatch
    return Refused(f"group {group}: {reason}") if failed == reason else GroupFailed(group, failed)


def why_not_sent(group: str, refusal: Refusal) -> Indeterminate | Refused | SettingsMismatch:
    """What is raised to the sender of a message that was refused."""
    about = f"group {group}: "  # a daemon may have said it already
    text = about + refusal.reason.removeprefix(about)
    if refusal.indeterminate:
        return Indeterminate(text)
    return SettingsMismatch.told(refusal.reason) or Refused(text)


def is_open(view: View) -> bool:
    """Whether broadcasts are confirmed: the group works, and has as many members as it wants."""
    return view.state.startswith("open") and not view.state.startswith("open: waiting")
