"""A member of a group without positions that the others took for dead, and went on without.

What it had accepted, and knows the others were given, its applications are given first.  It cannot
know what else there was, and there are no positions that would show it: so they are told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from roundelay.core.cluster.flush import Tail
from roundelay.core.cluster.repair import Repair
from roundelay.node.switchboard import Missed

if TYPE_CHECKING:
    from roundelay.node.seat import Seat


def part_with_epoch(seat: Seat, now: int, tails: Mapping[int, Tail] | None = None) -> None:
    """The epoch of `seat` ended elsewhere; `tails`: of the members who went on, if known."""
    data = seat.data
    engine = data.engine if data is not None else None
    if data is None or not isinstance(engine, Repair) or engine.ordered:
        return
    engine.hand_over_known(tails or {})
    data.flush(now)
    tell(seat, seat.epoch)


def tell(seat: Seat, epoch: int) -> None:
    """Messages of that epoch, and of later ones until `seat` is in again, may be missing.

    Nothing is to be told of a group that had not formed yet when it went on.
    """
    if seat.state == "forming" and not seat.told_before:
        return
    name = seat.spec.name
    seat.node.log("warning", "group.left_out", group=name, epoch=epoch)
    for one in list(seat.applications.values()):
        one.missed(Missed(name, -1, -1, seat.history_id, epoch=epoch))
