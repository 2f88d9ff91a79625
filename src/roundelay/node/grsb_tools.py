"""Small parts of a `journal` group's place: what waits to be sent, and what its engine shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from roundelay.core.bundle import Bundle
from roundelay.core.grsb.acknowledger import Acknowledger
from roundelay.core.grsb.config import EVERYTHING, Selection
from roundelay.core.grsb.pdu import DUAL, SINGLE_LINE
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.user import CONFERENCES_MAX
from roundelay.node.catchup import CatchUp
from roundelay.node.outbox import Item, Outbox
from roundelay.node.switchboard import NO_TAG, Application

UNKNOWN: Final = -1
"""No retransmitter has said yet how many lines are used."""
NO_CONFERENCE: Final = 0xFFFFFFFF
"""What a node wants on behalf of nobody: a conference that is not used."""
RECORDED: Final = "recorded"
"""Behind the marks of an item whose receipt waits for a recorder."""
LINES: Final = {UNKNOWN: None, DUAL: "two", SINGLE_LINE: "one"}


class MarkedOutbox(Outbox):
    """A submission has one conference and kind: bundles are made of messages that share them.

    They stand where other services have destinations (`Item.to`), with `recorded` behind them if
    the receipt is to wait for a recorder.
    """

    def put(
        self,
        application: Application,
        bundle: Bundle,
        tag: int,
        to: tuple[str, ...] | None,
        due: int,
    ) -> None:
        super().put(application, bundle, tag, None, due)
        self.items.pop()
        parts = list(bundle.by_mark())
        for number, (conference, kind, part) in enumerate(parts, 1):
            mine = tag if number == len(parts) else NO_TAG
            marks = (str(conference), str(kind), *(to or ()))
            self.items.append(Item(part, application, mine, marks, due))


def wanted_by(applications: Iterable[Application]) -> Selection:
    """GR-16: what the stream must bring so that every application gets what it chose."""
    chosen: set[int] = set()
    for application in applications:
        one = application.application if isinstance(application, CatchUp) else application
        conferences = getattr(one, "conferences", None)
        if not conferences:
            return EVERYTHING
        chosen |= conferences
    if len(chosen) > CONFERENCES_MAX:
        return EVERYTHING
    return Selection(frozenset(chosen or {NO_CONFERENCE}))


def slowed_by(da: Acknowledger, names: tuple[str, ...]) -> list[str]:
    """The recorders that acknowledgements wait for, since there is room for few more (GR-11)."""
    if not da.polling:
        return []
    behind = [one for one, mark in da.marks.items() if mark <= da.safe < da.expected]
    return [names[one] for one in behind if one not in da.suspected]


def status_of(site: GrsbSite, names: tuple[str, ...], mode: int) -> dict[str, object]:
    """What the engine has to say, with names."""
    found: dict[str, object] = {
        "epoch": site.reign.epoch,
        "retransmitter": names[site.reign.cr],
        "acknowledger": names[site.reign.da],
        "lines": LINES[mode],
        "dropped": dict(site.drops),
        "buffers": site.usage(),
        "limits": {name: site.caps()[name] for name in site.usage()},
    }
    if site.user is not None:
        found["position"] = site.user.listener.next
        found["recorded"] = site.user.recorded
    cr, da = site.retransmitter, site.acknowledger
    if cr is not None:
        found["reigning"] = cr.reigning
        if cr.reigning:
            found["lines"] = LINES[cr.mode]
            found["top"], found["acked"] = cr.sequencer.next, cr.acked
            found["recorded"] = cr.recorded
    if da is not None and da.epoch >= 0:
        found["acknowledged"], found["safe"] = da.acked, da.safe
        found["ack_delay_ns"] = da.delay_ns
        found["recorders"] = {names[one]: mark for one, mark in da.marks.items()}
        found["slowed_by"] = slowed_by(da, names)
        found["suspected"] = [names[one] for one in sorted(da.suspected)]
    if site.council is not None:
        found["votes"] = site.council.voting
    return found
