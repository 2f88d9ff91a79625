"""Which members of a roster are there: by their heartbeats, their engine and the ring's list."""

from __future__ import annotations

from roundelay.core.cluster.exchange import Exchange
from roundelay.node.membership.state import GroupState


class Presence:
    """Answers who can be expected to say something, and for how long others have not."""

    def __init__(self, state: GroupState) -> None:
        self.state = state
        self.dead_since: dict[str, int] = {}

    def present(self, name: str) -> bool:
        """Whether the member is there: its node is alive, takes part in the group, and answers
        the polls of its engine.
        """
        state = self.state
        if name == state.node.name:
            return True
        engine = state.data.engine if state.data is not None else None
        if isinstance(engine, Exchange) and state.roster.index(name) in engine.given_up():
            return False
        return state.said_by(name) is not None and state.node.alive(name)

    def in_ring(self, name: str) -> bool:
        """Whether the ring has the member in its list: else it can say nothing there, and is not
        waited for.  Who dies while an epoch ends is noticed by the ring alone."""
        ring = self.state.ring
        listed = ring.members if ring is not None and self.state.works() else ()
        return not listed or self.state.roster.index(name) in listed

    def able(self) -> list[str]:
        """The members that can say something in the ring."""
        return [name for name in self.state.roster if self.present(name) and self.in_ring(name)]

    def dead_for(self, now: int) -> dict[str, int]:
        """The members that are not there, and for how long (ns)."""
        missing = [name for name in self.state.roster if not self.present(name)]
        self.dead_since = {name: self.dead_since.get(name, now) for name in missing}
        return {name: now - since for name, since in self.dead_since.items()}
