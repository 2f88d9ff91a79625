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

from pathlib import Path
from typing import Final

from roundelay.core.engine import MS
from roundelay.core.errors import UsageError
from roundelay.core.position import lineage
from roundelay.core.token.phases import NORMAL
from roundelay.durable import numbered, put
from roundelay.node.membership import earlier
from roundelay.node.membership.epoch import EpochRunner
from roundelay.node.membership.histories import new_history
from roundelay.node.membership.reasons import listed
from roundelay.node.membership.state import GroupState
from roundelay.wire.control import GroupInfo, Start

REQUEST: Final = "recover.json"
"""In the folder of a group: an operator wants it to be recovered here (`--dir`)."""
LOOK_NS: Final = 900 * MS


class HistoryRecovery:
    """Begins a history where an operator says so, and gives way to one that began elsewhere."""

    def __init__(self, state: GroupState, epochs: EpochRunner) -> None:
        self.state = state
        self.epochs = epochs
        self._request_due = 0

    def plan(self) -> dict[str, object]:
        """What a recovery here would do, as JSON; UsageError where it must not be done."""
        state = self.state
        ring, name = state.ring, state.name
        if ring is None or ring.token is None:
            raise UsageError(
                f"group {name} has no member here to go on from: {state.condition}. Recover it at "
                "a node that was in it and remembers"
            )
        engine = ring.token
        if engine.phase == NORMAL and engine.token_list.authorized:
            raise UsageError(f"group {name} works: there is nothing to recover")
        ahead = [
            ring.roster[site]
            for site, vote in engine.reformation.votes.items()
            if site != engine.me and (vote.tl, vote.nts) > (engine.tl, engine.nts)
        ]
        if ahead:
            raise UsageError(
                f"{listed(ahead)} has more of group {name} than this node: recover there"
            )
        return {
            "group": name,
            "node": state.node.name,
            "state": state.view().state,
            "history": state.history_id,
            "position": self._position(),
            "members": list(state.roster),
            "heard": [member for member in state.roster if state.node.alive(member)],
            "forgotten": bool(engine.reformation.wiped or engine.reformation.amnesia),
        }

    def _position(self) -> int:
        """Behind everything that is here: in the member's log, and in a journal beside it."""
        state, data, ring = self.state, self.state.data, self.state.ring
        assert ring is not None
        assert ring.token is not None
        if ring is data:
            here = ring.base + ring.token.log.nseq
        else:
            here = max(0, data.position if data is not None else state.base)
        recorded = state.node.recorders.continuing(state.name)
        same = recorded is not None and recorded[0] == state.history_id.partition("@")[0]
        return max(here, recorded[1]) if recorded is not None and same else here

    def recover(self, now: int) -> dict[str, object]:
        """Begin a new history here, with everything that this member holds."""
        state, epochs, node = self.state, self.epochs, self.state.node
        planned = self.plan()
        ring = state.ring
        assert ring is not None
        assert ring.token is not None
        ring.held = True
        ring.token.conclude()
        ring.carry_out(now)  # what was stamped and is here becomes part of what is kept
        base, before = self._position(), state.history_id
        history = new_history(before, base)
        node.log(
            "warning",
            "group.recovered",
            group=state.name,
            history=history,
            position=base,
            was=before,
            members=list(state.roster),
        )
        was = Start(state.name, before, 0, state.roster, (), 0, 0, settings=state.settings)
        epochs.note_position()
        epochs.drop_all()  # it has concluded: it must not vote for anything any more
        epochs.left_alone = (before, base)
        fixed = state.preset
        state.decreed = True
        epochs.enter(state.founding(history, base, decreed=True), now)
        aside = self._put_aside()
        if fixed and aside is not None:
            earlier.keep(aside, was)  # a fixed roster has one file, from the first position on
        state.wake_at(now)
        return planned | {"history": history, "was": planned["history"], "position": base}

    def give_way(self, theirs: GroupInfo, by: str, now: int) -> None:
        """A history was decreed elsewhere: ours ends, and we ask to be admitted to that one."""
        state, log = self.state, self.state.node.log
        ours = state.history_id.partition("@")[0]
        kept = dict(lineage(theirs.incarnation)[1:]).get(ours, 0)
        position = state.data.expected if state.data is not None else -1
        beyond = max(0, position - kept)
        reason = ""
        if beyond:
            reason = (
                f"group {state.name} was recovered by an operator at position {kept} ({by} says "
                f"so): the {beyond} positions beyond that were given here are no part of it any "
                "more"
            )
            log("error", "group.recovered", group=state.name, reason=reason)
        else:
            log("warning", "group.recovered", group=state.name, history=theirs.incarnation)
        state.decreed = True
        self.epochs.give_up(reason, now)
        self._put_aside()

    def _put_aside(self) -> Path | None:
        """The promises of a fixed roster are those of the history that is over; where they are
        now."""
        folder = self.state.folder
        if folder is None or not (folder / "token.log").exists():
            return None
        aside = numbered(folder / "token.log")
        (folder / "token.log").rename(aside)
        return aside

    def look_for_request(self, now: int) -> None:
        """Carry out what `request` asked for, once."""
        state, folder = self.state, self.state.folder
        if folder is None or state.closed or state.works() or self._request_due > now:
            return
        self._request_due = now + LOOK_NS
        if not (folder / REQUEST).exists():
            return
        ring = state.ring
        if ring is None or ring.token is None or ring.token.reformation.blocked is None:
            return  # it may come back by itself
        (folder / REQUEST).unlink()
        try:
            self.recover(now)
        except UsageError as error:
            state.node.log("error", "group.not_recovered", group=state.name, reason=str(error))


def request(folder: Path) -> Path:
    """Ask the node whose folder of a group this is to recover it, now or at its next start."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / REQUEST
    put(path, b'{"from_here": true}\n')
    return path
