"""Small parts of a `journal` group's place: what waits to be sent, and what its engine shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from msgspec import Struct

from roundelay.core.bundle import Bundle
from roundelay.core.engine import NEVER
from roundelay.core.errors import ConfigError, PayloadTooLarge, UsageError
from roundelay.core.grsb.acknowledger import Acknowledger
from roundelay.core.grsb.base import GrsbDelivery, GrsbEffects
from roundelay.core.grsb.config import EVERYTHING, GrsbConfig, Selection
from roundelay.core.grsb.party import CONFERENCES_MAX
from roundelay.core.grsb.pdu import DUAL, LINE_A, LINE_B, ONLY_B
from roundelay.core.grsb.site import GrsbSite
from roundelay.core.grsb.stable import Handled
from roundelay.node.catchup import CatchUp
from roundelay.node.outbox import Item, Outbox
from roundelay.node.switchboard import NO_TAG, UNIT, Application, Missed

NO_CONFERENCE: Final = 0xFFFFFFFF
"""What a node wants on behalf of nobody: a conference that is not used."""
LINE_NAMES: Final = {LINE_A: "a", LINE_B: "b"}


class UnitItem(Item):
    """The parts of a unit: they leave together, and with nothing else."""

    __slots__ = ()

    def take(self, room: int, places: int, alone: bool) -> Bundle | None:
        self.start = len(self.bundle.sizes)
        return self.bundle


class MarkedOutbox(Outbox):
    """A submission has one conference and kind: bundles are made of messages that share them.

    They stand where other services have destinations (`Item.to`), with the number of the unit if
    it is one, and `recorded` behind them if the receipt is to wait for a recorder.
    """

    units = 0
    """Units so far."""

    def put(
        self, application: Application, bundle: Bundle, tag: int, to: tuple[str, ...] | None,
        due: int, unit: bool = False,
    ) -> None:  # fmt: skip
        """`unit`: the messages, which have one mark, are to take effect together."""
        super().put(application, bundle, tag, None, due)
        self.items.pop()
        parts = list(bundle.by_mark())
        for number, (conference, kind, part) in enumerate(parts, 1):
            mine = tag if number == len(parts) else NO_TAG
            self.units += unit
            which = (f"{UNIT} {self.units}",) if unit else ()
            marks = (str(conference), str(kind), *which, *(to or ()))
            kept = UnitItem if unit else Item
            self.items.append(kept(part, application, mine, marks, due))


def is_unit(marks: tuple[str, ...]) -> bool:
    """Whether what `MarkedOutbox.gather` gave is one."""
    return len(marks) > 2 and marks[2].startswith(UNIT)


def check_unit(bundle: Bundle, config: GrsbConfig, group: str) -> None:
    """Raise what keeps the messages of `bundle` from being one unit of that group."""
    if len(bundle.runs()) > 1:
        raise UsageError("a unit is of one conference and kind: send several")
    if len(bundle) > config.own_limit:
        raise ConfigError("parts", len(bundle), f"at most {config.own_limit} in one unit")
    if len(bundle.data) > config.unit_bytes:
        raise PayloadTooLarge(
            f"a unit of {len(bundle.data)} bytes: {group} takes up to "
            f"{config.unit_bytes}; send several, or give its file a larger unit_bytes"
        )


def as_one(bundle: Bundle) -> Bundle:
    """All of a unit as one message: so a trace has it, where it has its one position."""
    return Bundle((len(bundle.data),), bundle.data)


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


def how_far(record: Struct) -> bool:
    """Whether a record, of whatever level, says how far a user is."""
    return type(getattr(record, "record", record)) is Handled


def slowed_by(da: Acknowledger) -> list[int]:
    """The recorders that acknowledgements wait for: since there is room for few more (GR-11), or
    since they asked for mercy (GR-12).

    When there is no room at all, those that were given up are among them if nobody else has the
    rest.
    """
    found = sorted(da.pleas)
    if da.full_since < NEVER:
        found += da.lacking()
    elif da.polling:
        behind = [one for one, mark in da.marks.items() if mark <= da.safe < da.expected]
        found += [one for one in behind if one not in da.suspected]
    return found


def silent_line(site: GrsbSite) -> int | None:
    """Of two lines, the one that is out of order, for all or for this member (GR-24)."""
    ways = site.ways
    if not ways.two:
        return None
    if ways.mode != DUAL:
        return LINE_A if ways.mode == ONLY_B else LINE_B
    silent = [line for line in LINE_NAMES if ways.silent(line)]
    return silent[0] if len(silent) == 1 else None


def status_of(site: GrsbSite, names: tuple[str, ...]) -> dict[str, Any]:
    """What the engine has to say, with names."""
    silent = silent_line(site)
    found: dict[str, Any] = {
        "epoch": site.reign.epoch,
        "retransmitter": names[site.reign.cr],
        "acknowledger": names[site.reign.da],
        "lines": "two" if site.ways.two and silent is None else "one",
        "silent_line": None if silent is None else LINE_NAMES[silent],
        "dropped": dict(site.drops),
        "buffers": site.usage(),
        "limits": {name: site.caps()[name] for name in site.usage()},
    }
    if site.user is not None:
        found["position"] = site.user.listener.next
        found["recorded"] = site.user.recorded
    cr, da = site.retransmitter, site.acknowledger
    held: list[int] = []
    if cr is not None:
        found["reigning"] = cr.reigning
        if cr.reigning:
            found["top"], found["acked"] = cr.sequencer.next, cr.acked
            found["recorded"] = cr.recorded
    if da is not None and da.epoch >= 0:
        found["acknowledged"], found["safe"] = da.acked, da.safe
        found["ack_delay_ns"] = da.delay_ns
        found["recorders"] = {names[one]: mark for one, mark in da.marks.items()}
        held = slowed_by(da)
        found["suspected"] = [names[one] for one in sorted(da.suspected)]
    found["slowed_by"] = [names[one] for one in dict.fromkeys((*held, *site.waits))]
    if site.council is not None:
        found["votes"] = site.council.voting
    return found


Gap = tuple[int, int]


def around_gaps(effects: GrsbEffects) -> Iterator[tuple[list[GrsbDelivery], Gap | None]]:
    """The deliveries of a batch, each part with the gap that comes behind it."""
    rest = effects.deliveries
    for notice in effects.notices:
        if notice.kind == "missed":
            lo, hi = notice.info
            assert isinstance(lo, int)
            assert isinstance(hi, int)
            before = [one for one in rest if one.seq < lo]
            yield before, (lo, hi)
            rest = rest[len(before) :]
    yield rest, None


def tell_missed(applications: Iterable[Application], missed: Missed) -> None:
    """What no recorder has and never will: who is catching up comes to it in its own time."""
    for application in list(applications):
        if not isinstance(application, CatchUp) or application.live:
            application.missed(missed)
