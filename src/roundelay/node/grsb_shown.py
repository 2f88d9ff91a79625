"""What the place of a `journal` group shows of itself: its state, who is there, how far it is."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from roundelay.core.engine import SECOND
from roundelay.core.grsb.config import SITES_MAX, GrsbConfig
from roundelay.core.grsb.pdu import LINE_A, WAITS_MAX
from roundelay.core.grsb.site import GrsbSite
from roundelay.node.groups import GroupSpec
from roundelay.node.grsb_birth import Birth
from roundelay.node.grsb_journal import SeatJournal
from roundelay.node.grsb_tools import MarkedOutbox, silent_line, status_of
from roundelay.node.switchboard import Application, View

if TYPE_CHECKING:
    from roundelay.node.node import Node


THERE_NS: Final = 3 * SECOND
"""Who has said who it is so short ago is there."""
NAMED_MAX: Final = 8
"""Members that a state names."""


SITES_IN: Final = {
    "suspect": (0, 1), "reign": (1, 3), "waits": (0, WAITS_MAX), "broken": (1, SITES_MAX),
}  # fmt: skip
"""Where notices have numbers of members."""


class ShownSeat(Birth):
    """The part of a group's place that is asked how it is."""

    config: GrsbConfig
    outbox: MarkedOutbox

    def __init__(self, node: Node, spec: GroupSpec, now: int) -> None:
        super().__init__(node, spec, now)
        self.applications: dict[int, Application] = {}
        self.site: GrsbSite | None = None
        self.journal: SeatJournal | None = None
        self.state = "looking for the group"
        self.up = True
        self.submitted = self.delivered = self.received = self.sent = 0
        self.present: tuple[str, ...] = ()
        self.views = 0

    def say_state(self, state: str) -> None:
        if state != self.state:
            self.state = state
            self.views += 1
            self.show()

    def say_how(self, now: int) -> None:
        """The state, as this member sees it: a user by its notices, others by what they hear."""
        site = self.site
        assert site is not None
        if site.user is None:
            reigns = site.retransmitter is not None and site.retransmitter.reigning
            self.up = reigns or now - site.heard_at < self.config.alive_timeout_ns
        council = site.council
        if council is not None and not council.voting:
            mute = [one for one in council.host.roles.council if one not in council.answers]
            who = self.known_as(one for one in mute if one != self.me)
            waits = f"rejoining without its disk: waiting for an answer of {who}"
            self.say_state(f"{waits}{self.other_files}")
        elif self.up and not self.split:
            sites = self.awaited()
            self.say_state(f"blocked: waiting for {self.known_as(sites)}" if sites else "open")
        elif not self.state.startswith("broken"):
            who = self.known_as((site.reign.cr,))
            gone = self.gone(self.council)
            lacks = f"; missing: {self.known_as(gone)}" if gone else ""
            heard = f"silent: no retransmitter is heard, the last was {who}"
            self.say_state(f"{heard}{lacks}{self.other_files}")

    @property
    def council(self) -> tuple[int, ...]:
        """Those who decide who reigns over this member."""
        return self.roles.council

    def awaited(self) -> tuple[int, ...]:
        """Those without whom the group stands still, as far as that is said, or this member."""
        site = self.site
        if site is None or site.waits:
            return () if site is None else site.waits
        reader = getattr(site.user, "reader", None)  # not behind a broadcaster
        if reader is None or not reader.unanswered:
            return ()
        recorders: tuple[int, ...] = reader.host.roles.recorders
        return recorders

    def gone(self, sites: Iterable[int]) -> tuple[int, ...]:
        """Those of them whose nodes are not heard of, on any line."""
        return tuple(one for one in sites if not self._there(self.roster[one]))

    def _there(self, name: str) -> bool:
        known = self.node.directory.by_name.get(name)
        said = known is not None and time.monotonic_ns() - known.seen < THERE_NS
        return said or self.node.alive(name)

    def known_as(self, sites: Iterable[int]) -> str:
        """Members by name, with their roles."""
        shown = [f"{self.roster[one]} ({', '.join(self.file.roles_of(one))})" for one in sites]
        return ", ".join(shown[:NAMED_MAX]) + (" …" if len(shown) > NAMED_MAX else "")

    @property
    def silent_line(self) -> int | None:
        """Of two lines, the one that is out of order."""
        return None if self.site is None else silent_line(self.site)

    def stand_in(self, now: int) -> None:
        """GR-24: while line A may be out of order the node itself is heard on line B, too.

        Also when nothing is heard on either, or not yet: whoever has just started is not known
        there, and gets no answer before it is.
        """
        stand_ins, name, line = self.node.stand_ins, self.spec.name, self.line
        ways = None if self.site is None else self.site.ways
        if line is not None and self.roles.lines == 2 and (
            ways is None
            or self.silent_line == LINE_A
            or ways.heard[LINE_A] + ways.silence_ns < now
        ):  # fmt: skip
            stand_ins[name] = line.line
        else:
            stand_ins.pop(name, None)

    def named(self, kind: str, info: tuple[object, ...]) -> list[object]:
        """What a notice says, with members by their names."""
        begin, end = SITES_IN.get(kind, (0, 0))
        named = [self.roster[one] for one in info[begin:end] if isinstance(one, int)]
        return [*info[:begin], *named, *info[end:]]

    @property
    def position(self) -> int:
        """The next position to be delivered; -1: not known."""
        user = self.site.user if self.site is not None else None
        return -1 if user is None else user.listener.next

    def view(self) -> View:
        epoch = self.site.reign.epoch if self.site is not None else 0
        members = self.present or (self.node.name,)
        return View(
            self.spec.name, f"{max(0, epoch)}.{self.views}", members, self.state,
            self.history_name, self.position,
        )  # fmt: skip

    def show(self) -> None:
        view = self.view()
        for application in list(self.applications.values()):
            application.viewed(view)

    def works(self) -> bool:
        return self.site is not None and self.up

    def trouble(self) -> str:
        state = self.state
        if state == "open" and self.site is not None:
            state = f"{self.known_as((self.site.reign.cr,))} has not answered"
        return f"no answer in time ({state}); it may still be delivered"

    def open_units(self) -> set[tuple[str, int]]:
        """Sender and conference of the units that the member has the beginning of."""
        user = self.site.user if self.site is not None else None
        found = user.units.open if user is not None else ()
        return {(self.roster[sender], conference) for sender, conference in found}

    def members(self) -> dict[str, object]:
        view = self.view()
        members = [
            {
                "name": name, "alive": self.node.alive(name), "in_view": name in view.members,
                "roles": self.file.roles_of(site),
            }
            for site, name in enumerate(self.roster)
        ]  # fmt: skip
        about = {"group": view.group, "version": view.version, "state": view.state}
        return about | {"members": members}

    def status(self) -> dict[str, object]:
        found: dict[str, object] = {
            "group": self.spec.name, "service": self.spec.service, "protocol": self.spec.protocol,
            "state": self.state, "me": self.node.name, "roles": self.role_names,
            "roster": list(self.roster), "members": list(self.view().members),
            "config": str(self.file.path), "history": self.history_name or None,
            "line_b": self.line.where if self.line is not None else None,
            "applications": len(self.applications), "delivered": self.delivered,
            "submitted": self.submitted, "waiting_bytes": self.outbox.bytes,
            "underway": len(self.outbox.underway), "pdus_sent": self.sent,
            "pdus_received": self.received,
        }  # fmt: skip
        if self.site is not None:
            shown = status_of(self.site, self.roster)
            gone = () if self.up else self.gone(self.council)
            held = (*shown["slowed_by"], *self.file.names((*self.awaited(), *gone)))
            found |= shown | {"slowed_by": list(dict.fromkeys(held))}
        if self.journal is not None:
            found["journal"] = self.journal.status()
        return found
