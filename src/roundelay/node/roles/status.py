"""What a group whose roles stand in a file shows: its state, who is there, how far it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from roundelay.core.engine import NEVER
from roundelay.core.grsb.acknowledger import Acknowledger
from roundelay.core.grsb.config import SITES_MAX
from roundelay.core.grsb.pdu import DUAL, LINE_A, LINE_B, ONLY_B, WAITS_MAX
from roundelay.core.grsb.ways import Ways
from roundelay.node.node_api import View

if TYPE_CHECKING:
    from roundelay.node.roles.group import RoleGroup

LINE_NAMES: Final = {LINE_A: "a", LINE_B: "b"}
SITES_IN: Final = {
    "suspect": (0, 1),
    "reign": (1, 3),
    "waits": (0, WAITS_MAX),
    "broken": (1, SITES_MAX),
}
"""Where notices have numbers of members."""


class StatusView:
    """One group at one node, as applications and operators see it."""

    def __init__(self, group: RoleGroup) -> None:
        self.group = group
        self.member = group.member
        self.state = "looking for the group"
        self.up = True
        """Whether a retransmitter is heard."""
        self.present: tuple[str, ...] = ()
        self.changes = 0
        """Of the state, or of who is there."""

    # -- the state -------------------------------------------------------------------------

    def say(self, state: str) -> None:
        """Show this state from now on."""
        if state != self.state:
            self.state = state
            self.changes += 1
            self.show()

    def say_how(self, now: int) -> None:
        """The state, as this member sees it: a user by its notices, others by what they hear."""
        member = self.member
        if member.stuck:
            return
        site = member.shown
        if site.user is None:
            reigns = site.retransmitter is not None and site.retransmitter.reigning
            self.up = reigns or now - site.heard_at < self.group.config.alive_timeout_ns
        bootstrap, council = self.group.bootstrap, member.council
        if council is not None and not council.voting:
            mute = [site for site in council.host.roles.council if site not in council.answers]
            who = member.known_as(site for site in mute if site != member.me)
            waits = f"rejoining without its disk: waiting for an answer of {who}"
            self.say(f"{waits}{bootstrap.other_files}")
        elif self.up and not bootstrap.split:
            sites = self.awaited()
            self.say(f"blocked: waiting for {member.known_as(sites)}" if sites else "open")
        elif not self.state.startswith("broken"):
            who = member.known_as((site.reign.cr,))
            gone = member.gone(site.roles.council)
            lacks = f"; missing: {member.known_as(gone)}" if gone else ""
            heard = f"silent: no retransmitter is heard, the last was {who}"
            self.say(f"{heard}{lacks}{bootstrap.other_files}")

    def say_broken(self, reason: str, *mute: int) -> None:
        """The group cannot go on."""
        missing = f"; silent: {self.member.known_as(mute)}" if mute else ""
        self.say(f"broken: {reason}{missing}")

    def awaited(self) -> tuple[int, ...]:
        """Those without whom the group stands still, as far as that is said, or this member."""
        if self.member.engine is None:
            return ()
        waits, user = self.member.waits, self.member.user
        reader = None if user is None else user.reader
        if not waits and reader is not None and reader.unanswered:
            waits = reader.host.roles.recorders
        return self.member.awaited(waits)

    def look(self, now: int) -> None:
        """Others may have come or gone."""
        member = self.member
        blocked = self.state.startswith("blocked") or bool(self.awaited())
        if member.engine is not None and (member.user is None or blocked or not self.up):
            self.say_how(now)
        present = tuple(name for name in member.roster if member.node.alive(name))
        if present != self.present:
            self.present = present
            self.changes += 1
            self.show()

    # -- what is shown ---------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Of the reign; -1: not known."""
        return -1 if self.member.engine is None else self.member.shown.reign.epoch

    def view(self) -> View:
        group = self.group
        return View(
            group.spec.name,
            f"{max(0, self.epoch)}.{self.changes}",
            self.present or (self.member.node.name,),
            self.state,
            group.lineage,
            group.position,
        )

    def show(self) -> None:
        """Tell the applications."""
        view = self.view()
        for application in list(self.group.applications.values()):
            application.viewed(view)

    def trouble(self) -> str:
        """Why a broadcast has no answer yet."""
        state = self.state
        if state == "open" and self.member.engine is not None:
            state = f"{self.member.known_as((self.member.shown.reign.cr,))} has not answered"
        return f"no answer in time ({state}); it may still be delivered"

    def named(self, kind: str, info: tuple[object, ...]) -> list[object]:
        """What a notice says, with members by their names."""
        begin, end = SITES_IN.get(kind, (0, 0))
        names = [self.member.roster[site] for site in info[begin:end] if isinstance(site, int)]
        return [*info[:begin], *names, *info[end:]]

    def status(self) -> dict[str, object]:
        group, member, outbox = self.group, self.member, self.group.outbox
        line, driver = group.lines.second, group.driver
        status: dict[str, object] = {
            "group": group.spec.name, "service": group.spec.service,
            "protocol": group.spec.protocol, "state": self.state, "me": member.node.name,
            "roles": member.role_names, "roster": list(member.roster),
            "members": list(self.view().members), "config": str(member.file.path),
            "history": group.lineage or None, "line_b": None if line is None else line.where,
            "applications": len(group.applications), "delivered": group.delivered,
            "submitted": 0 if driver is None else driver.submitted, "waiting_bytes": outbox.bytes,
            "underway": len(outbox.underway), "pdus_sent": group.lines.sent,
            "pdus_received": 0 if driver is None else driver.received,
        }  # fmt: skip
        if member.engine is not None:
            shown = site_status(
                member.shown, member.engine, member.roster, member.waits, member.council
            )
            gone = () if self.up else member.gone(member.shown.roles.council)
            held = (*shown["slowed_by"], *member.file.names((*self.awaited(), *gone)))
            status |= shown | {"slowed_by": list(dict.fromkeys(held))}
        if group.journal is not None:
            status["journal"] = group.journal.journal_status()
        return status | member.status(group.persistence.journals)


def slowed_by(da: Acknowledger) -> list[int]:
    """The recorders that acknowledgements wait for: since there is room for few more (GR-11), or
    since they asked for mercy (GR-12).

    When there is no room at all, those that were given up are among them if nobody else has the
    rest.
    """
    recorders = sorted(da.pleas)
    if da.full_since < NEVER:
        recorders += da.lacking()
    elif da.polling:
        behind = [recorder for recorder, mark in da.marks.items() if mark <= da.safe < da.expected]
        recorders += [recorder for recorder in behind if recorder not in da.suspected]
    return recorders


def silent_line(ways: Ways) -> int | None:
    """Of two lines, the one that is out of order, for all or for this member (GR-24)."""
    if not ways.two:
        return None
    if ways.mode != DUAL:
        return LINE_A if ways.mode == ONLY_B else LINE_B
    silent = [line for line in LINE_NAMES if ways.silent(line)]
    return silent[0] if len(silent) == 1 else None


def site_status(
    site: Any, engine: Any, names: tuple[str, ...], waits: tuple[int, ...], council: Any
) -> dict[str, Any]:
    """What a site that `engine` drives has to say, with names."""
    silent = silent_line(site.ways)
    status: dict[str, Any] = {
        "epoch": site.reign.epoch,
        "retransmitter": names[site.reign.cr],
        "acknowledger": names[site.reign.da],
        "lines": "two" if site.ways.two and silent is None else "one",
        "silent_line": None if silent is None else LINE_NAMES[silent],
        "dropped": dict(engine.drops),
        "buffers": engine.usage(),
        "limits": engine.caps(),
    }
    if site.user is not None:
        status["position"] = site.user.listener.next
        status["recorded"] = site.user.recorded
    cr, da = site.retransmitter, site.acknowledger
    held: list[int] = []
    if cr is not None:
        status["reigning"] = cr.reigning
        if cr.reigning:
            status["top"], status["acked"] = cr.sequencer.next, cr.acked
            status["recorded"] = cr.recorded
    if da is not None and da.epoch >= 0:
        status["acknowledged"], status["safe"] = da.acked, da.safe
        status["ack_delay_ns"] = da.delay_ns
        status["recorders"] = {names[recorder]: mark for recorder, mark in da.marks.items()}
        held = slowed_by(da)
        status["suspected"] = [names[recorder] for recorder in sorted(da.suspected)]
    status["slowed_by"] = [names[recorder] for recorder in dict.fromkeys((*held, *waits))]
    if council is not None:
        status["votes"] = council.voting
    return status
