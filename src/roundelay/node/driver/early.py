"""Applications that want messages soon, before their place in the order is certain (`stage=`).

The engine hands over each message twice: early, without a place, and again when it is through.
What is through has its place; it goes to recorders and into the member's memory, settles receipts,
and moves the position of the group, as in a member that delivers late.  Applications are given the
early copy, and at the end those messages that never came early: when a cluster ends, what others
have accepted.  So each is given once, and a change of roster is none of their business.
"""

from __future__ import annotations

from roundelay.core.engine import Delivery


class Early:
    """What the applications of one member were given early, and is not through yet."""

    def __init__(self, stage: str, me: int, selective: bool) -> None:
        self.stage = stage
        self._me = me
        self._selective = selective
        self._given: set[tuple[int, int]] = set()  # bounded by what can be under way

    def give(self, delivery: Delivery) -> bool:
        """Whether an early copy is for the applications."""
        if self._selective and delivery.source == self._me:
            return False  # our own copy may not be for us: that is known when it is through
        self._given.add((delivery.source, delivery.number))
        return True

    def was_given(self, delivery: Delivery) -> bool:
        """Whether the applications have what is through now."""
        key = (delivery.source, delivery.number)
        if key in self._given:
            self._given.remove(key)
            return True
        return False
