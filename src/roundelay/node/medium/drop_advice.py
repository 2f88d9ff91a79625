"""What to do about datagrams that a node cannot use: said once for each reason, in the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

NAME_TAKEN: Final = "another node with our name"
NO_KEY: Final = "sealed, and we have no key"

PATIENCE: Final = 20
"""Datagrams; somebody else's node sends so many in about five seconds."""


class Hint(Struct, frozen=True):
    """What to say when datagrams were dropped for one reason."""

    event: str
    text: str
    patient: bool = False
    """Only after PATIENCE datagrams, and if no other node is known by then: strangers may well
    share a medium with us."""

    @property
    def after(self) -> int:
        """How many datagrams have to be dropped before it is said."""
        return PATIENCE if self.patient else 1


HINTS: Final[dict[str, Hint]] = {
    NAME_TAKEN: Hint(
        "node.name_taken",
        "two nodes on this medium have the same name: start one of them with another --name",
    ),
    "format version": Hint(
        "node.cannot_read",
        "nodes of another version are on this medium: run one version everywhere, "
        "or give each a --multicast address of its own",
    ),
    NO_KEY: Hint(
        "node.cannot_read",
        "other nodes on this medium seal what they send: start this one with their key, "
        "and without --insecure",
        patient=True,
    ),
    "not sealed": Hint(
        "node.cannot_read",
        "somebody on this medium sends in the clear: start all nodes with one key, "
        "or all of them with --insecure",
        patient=True,
    ),
    "seal": Hint(
        "node.cannot_read",
        "other nodes on this medium have another key: give all the same key file, "
        "or those who are to stay apart another --multicast address",
        patient=True,
    ),
}
"""By reason."""


class DropCounter:
    """Counts what a node drops, by reason, and says in the log what to do about it."""

    def __init__(self, log: Callable[..., None], is_alone: Callable[[], bool]) -> None:
        self.by_reason: dict[str, int] = {}
        self._log = log
        self._is_alone = is_alone

    def count(self, reason: str) -> None:
        number = self.by_reason[reason] = self.by_reason.get(reason, 0) + 1
        hint = HINTS.get(reason)
        if hint is not None and number == hint.after and (not hint.patient or self._is_alone()):
            self._log("warning", hint.event, reason=reason, hint=hint.text)
