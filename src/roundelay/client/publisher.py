"""Sending with receipts, without asyncio: for programs that send much and then wait.

::

    with Publisher("127.0.0.1:6678", "token:orders", name="loader") as publisher:
        for seq in publisher.send([Parcel(bundle), …]):    # position of each parcel's last message
            ...

Parcels go out as long as `window` of them wait for their receipts; a node that has no room stops
reading, and then sending waits.  What went wrong is raised, and nothing is sent again by itself:
after `Indeterminate` or `ConnectionLost` nobody knows what became of the parcels that have no
receipt yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from roundelay.client.connection import TIMEOUT_S, Connection
from roundelay.core.bundle import Bundle
from roundelay.core.errors import Indeterminate, Refused
from roundelay.wire.frontend import (
    DEFAULT,
    INDETERMINATE,
    from_packet,
    head,
    read_failure,
    read_received,
)
from roundelay.wire.frontend_receipt import read_receipt
from roundelay.wire.frontend_replay import marked_packet, read_marked_received

WINDOW: Final = 64


class Parcel(Struct, frozen=True, gc=False):
    """Messages that are sent together."""

    bundle: Bundle
    conference: int = 0
    kind: int = 0
    recorders: int = 0
    """How many recorders must have synced before the receipt."""


class Publisher(Connection):
    """One connection to a node, for one group."""

    def __init__(
        self, where: str = DEFAULT, group: str = "", *, name: str = "", timeout_s: float = TIMEOUT_S
    ) -> None:
        super().__init__(where, group, name=name, timeout_s=timeout_s)
        self._next_tag = 0

    def names(self) -> list[str]:
        """Names of all applications at this node, this one among them."""
        frontends = self.ask("status").get("frontends") or ()
        return [one.get("name", "") for each in frontends for one in each.get("clients", ())]

    # -- sending ---------------------------------------------------------------------------

    def send(self, parcels: Iterable[Parcel], window: int = WINDOW) -> Iterator[int]:
        """Send all of them, in order; gives the position of the last message of each.

        Raises Refused when one is certainly not delivered, Indeterminate when nobody can say.
        """
        first = self._next_tag
        settled: dict[int, int] = {}
        given = 0
        for parcel in parcels:
            self._write(
                marked_packet(
                    self.group, parcel.bundle, tag=self._next_tag, conference=parcel.conference,
                    kind=parcel.kind, recorders=parcel.recorders,
                )
            )  # fmt: skip
            self._next_tag += 1
            while self._next_tag - first - given >= window:
                yield self._settled(settled, first + given)
                given += 1
        while first + given < self._next_tag:
            yield self._settled(settled, first + given)
            given += 1

    def _settled(self, settled: dict[int, int], tag: int) -> int:
        while tag not in settled:
            packet = self._await("RCPT", "FAIL")
            if packet.command == "FAIL":
                failure = read_failure(packet)
                kind = Indeterminate if failure.flags & INDETERMINATE else Refused
                raise kind(f"group {self.group}: {failure.reason}")
            fate = read_receipt(packet)
            settled[fate.tag] = fate.seq
        return settled.pop(tag)

    # -- what was said before --------------------------------------------------------------

    def history(self, since: int, until: int) -> Iterator[tuple[int, str, Bundle]]:
        """(position, sender, messages) from `since` up to `until`, as far as the node itself still
        has them; Refused if it no longer has the beginning."""
        self._write(from_packet(self.group, since))
        at = since
        while at < until:
            packet = self._await("RCVX", "RCVC", "FAIL")
            if packet.command == "FAIL":
                raise Refused(f"group {self.group}: {read_failure(packet).reason}")
            found = (
                read_received(packet) if packet.command == "RCVX" else read_marked_received(packet)
            )
            if found.seq > at:
                raise Refused(
                    f"group {self.group}: the node no longer has positions {at} to {found.seq - 1}"
                )
            bundle = found.bundle
            end = found.seq + len(bundle)
            if end > at:
                yield at, found.sender, bundle.part(at - found.seq, min(end, until) - found.seq)
                at = end
        self._write(head("LEAV", self.group))
