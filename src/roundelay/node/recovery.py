"""The way out of a group that does not come back: an operator says from which member to go on.

Where too many members have forgotten, or are gone for good, no list can be formed that is sure to
know what was committed last, and the group rightly waits.  `roundelay group recover GROUP
--from-here` ends that, as `--force-new-cluster` of etcd does: this member begins a new history with
all that it holds, alone, and takes in the others as they come.  The history says what it is made
of: `ID@PARENT:BASE`, the old one up to `BASE`.  It is *decreed*: whatever history another member
is in, it ends when the two meet, and who was given positions beyond `BASE` is told so.

A fixed roster says, from then on, who may be admitted; it is complete again when all are back.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

from roundelay.core.engine import MS
from roundelay.core.errors import UsageError
from roundelay.core.token.state import NORMAL
from roundelay.node import earlier
from roundelay.node.folders import put
from roundelay.node.reasons import listed
from roundelay.wire.info import GroupInfo, Start

if TYPE_CHECKING:
    from roundelay.node.assembly import Assembly

REQUEST: Final = "recover.json"
"""In the folder of a group: an operator wants it to be recovered here (`--dir`)."""
LOOK_NS: Final = 900 * MS


def plan(seat: Assembly) -> dict[str, object]:
    """What a recovery here would do, as JSON; UsageError where it must not be done."""
    ring = seat.ring
    name = seat.spec.name
    if ring is None or ring.token is None:
        raise UsageError(
            f"group {name} has no member here to go on from: {seat.state}. Recover it at a node "
            "that was in it and remembers"
        )
    engine = ring.token
    if engine.phase == NORMAL and engine.authorized:
        raise UsageError(f"group {name} works: there is nothing to recover")
    ahead = [
        ring.roster[site] for site, vote in engine.votes.items()
        if site != engine.me and (vote.tl, vote.nts) > (engine.tl, engine.nts)
    ]  # fmt: skip
    if ahead:
        raise UsageError(f"{listed(ahead)} has more of group {name} than this node: recover there")
    return {
        "group": name,
        "node": seat.node.name,
        "state": seat.view().state,
        "history": seat.history_id,
        "position": _position(seat),
        "members": list(seat.roster),
        "heard": [one for one in seat.roster if seat.node.alive(one)],
        "forgotten": bool(engine.wiped or engine.amnesia),
    }


def _position(seat: Assembly) -> int:
    """Behind everything that is here: in the member's log, and in a journal beside it."""
    data, ring = seat.data, seat.ring
    assert ring is not None
    assert ring.token is not None
    if ring is data:
        here = ring.base + ring.token.nseq
    else:
        here = max(0, data.position if data is not None else seat.base)
    recorded = seat.node.recorders.continuing(seat.spec.name)
    same = recorded is not None and recorded[0] == seat.history_id.partition("@")[0]
    return max(here, recorded[1]) if recorded is not None and same else here


def recover(seat: Assembly, now: int) -> dict[str, object]:
    """Begin a new history here, with everything that this member holds."""
    made = plan(seat)
    ring = seat.ring
    assert ring is not None
    assert ring.token is not None
    ring.held = True
    ring.token.conclude()
    ring.flush(now)  # what was stamped and is here becomes part of what is kept
    base = _position(seat)
    parent = seat.history_id.partition("@")[0]
    fresh = secrets.token_hex(8)
    history = f"{fresh}@{parent}:{base}" if parent else fresh
    seat.node.log(
        "warning", "group.recovered", group=seat.spec.name, history=history, position=base,
        was=seat.history_id, members=list(seat.roster),
    )  # fmt: skip
    seat._reach()
    if seat.data is not None:
        seat.told_before += seat.data.delivered
    for hosted in seat._engines():
        seat._drop(hosted)  # it has concluded: it must not vote for anything any more
    was = Start(seat.spec.name, seat.history_id, 0, seat.roster, (), 0, 0, settings=seat.settings)
    seat.left_alone = (seat.history_id, base)
    fixed = seat.preset
    seat.ring = seat.data = None
    seat.decreed = True
    start = Start(
        seat.spec.name, history, 0, (seat.node.name,), (seat.node.uuid,), base,
        seat._asked_level(), decreed=True, settings=seat.settings,
    )  # fmt: skip
    seat._enter(start, now)
    aside = _put_aside(seat)
    if fixed and aside is not None:
        earlier.keep(aside, was)  # a fixed roster has one file, from the first position on
    seat._wake_at(now)
    return made | {"history": history, "was": made["history"], "position": base}


def give_way(seat: Assembly, said: GroupInfo, by: str, now: int) -> None:
    """A history was decreed elsewhere: ours ends, and we ask to be admitted to that one."""
    _, _, origin = said.incarnation.partition("@")
    parent, _, base = origin.partition(":")
    kept = int(base) if base.isdecimal() and parent == seat.history_id.partition("@")[0] else 0
    position = seat.data.expected if seat.data is not None else -1
    beyond = max(0, position - kept)
    state = "looking for members"
    if beyond:
        reason = (
            f"group {seat.spec.name} was recovered by an operator at position {kept} ({by} says "
            f"so): the {beyond} positions beyond that were given here are no part of it any more"
        )
        seat.node.log("error", "group.recovered", group=seat.spec.name, reason=reason)
        state += f": {reason}"
        seat.outbox.abandon(reason)
    else:
        seat.node.log("warning", "group.recovered", group=seat.spec.name, history=said.incarnation)
        seat.outbox.send_again()
    seat.decreed = True
    seat._forget_roster()
    _put_aside(seat)
    seat.state, seat.since = state, now
    seat.show()
    seat._wake_at(now)


def _put_aside(seat: Assembly) -> Path | None:
    """The promises of a fixed roster are those of the history that is over; where they are now."""
    folder = seat._folder()
    if folder is None or not (folder / "token.log").exists():
        return None
    number = 1
    while (aside := folder / f"token.log.{number}").exists():
        number += 1
    (folder / "token.log").rename(aside)
    return aside


def decreed_start(folder: Path | None) -> bool:
    """Whether the roster that is kept there was decreed by an operator."""
    if folder is None:
        return False
    try:
        kept = json.loads((folder / "roster.json").read_bytes())
    except (OSError, ValueError):
        return False
    # As `wire.info.Start` is written: its tag, its fields in order.
    at = 1 + Start.__struct_fields__.index("decreed")
    return isinstance(kept, list) and len(kept) > at and kept[at] is True


def request(folder: Path) -> Path:
    """Ask the node whose folder of a group this is to recover it, now or at its next start."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / REQUEST
    put(path, b'{"from_here": true}\n')
    return path


def look_for_request(seat: Assembly, now: int) -> None:
    """Carry out what `request` asked for, once."""
    folder = seat._folder()
    if folder is None or seat.closed or seat.works() or seat.request_due > now:
        return
    seat.request_due = now + LOOK_NS
    if not (folder / REQUEST).exists():
        return
    ring = seat.ring
    if ring is None or ring.token is None or ring.token.blocked is None:
        return  # it may come back by itself
    (folder / REQUEST).unlink()
    try:
        recover(seat, now)
    except UsageError as error:
        seat.node.log("error", "group.not_recovered", group=seat.spec.name, reason=str(error))
