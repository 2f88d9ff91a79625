"""What a node learns by listening to the lines: a recorder and a user alike (GR-9, GR-14).

A message that was heard may still vanish with the retransmitter: it is *stable* once the
acknowledger has it.  So a listener keeps what it heard until it knows that; when a new epoch
begins, what was not known to be stable is dropped and, if it survived, fetched from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from roundelay.core.grsb.pdu import Message


class Listener:
    """From position `next` on."""

    def __init__(self, epoch: int, next_position: int, limit: int) -> None:
        self.epoch = epoch
        self.next = next_position
        self.stable = next_position  # everything below is known to be stable
        self.top = next_position  # everything below is known to have been broadcast
        self.limit = limit
        self.heard: dict[int, Message] = {}

    def enter(self, epoch: int) -> None:
        """GR-27, a new epoch: nothing heard in an older one becomes stable by what is heard now."""
        if epoch > self.epoch:
            self.epoch = epoch
            self.heard = {at: m for at, m in self.heard.items() if at < self.stable}
            self.top = self.stable

    def hear(self, message: Message, acked: int) -> None:
        """A broadcast of the present epoch, on whatever line; twice is once (GR-23)."""
        self.mark(acked, message.end)
        if message.gseq >= self.next and message.gseq not in self.heard:
            self._keep(message)

    def _keep(self, message: Message) -> bool:
        """Behind a gap those are kept that are needed first; whether this one is."""
        at, heard = message.gseq, self.heard
        if at not in heard and at != self.next and len(heard) >= self.limit:
            worst = max(heard)
            if at > worst:
                return False
            del heard[worst]
        heard[at] = message
        return True

    def mark(self, acked: int, top: int) -> None:
        """Everything below `acked` is stable, below `top` broadcast."""
        if acked > self.stable:
            self.stable = acked
        if top > self.top or acked > self.top:
            self.top = max(top, acked)

    def repaired(self, message: Message) -> bool:
        """A stable message came from elsewhere; whether it was wanted."""
        at = message.gseq
        if at < self.next:
            return False
        self.mark(message.end, message.end)
        new = at not in self.heard or self.heard[at].epoch != message.epoch
        return self._keep(message) and new

    def ready(self, fast: bool = False) -> Iterator[Message]:
        """The next messages in order that are stable (or, if `fast`, that are there)."""
        heard = self.heard
        while heard:
            message = heard.get(self.next)
            if message is None or not (fast or message.end <= self.stable):
                return
            del heard[self.next]
            self.next = message.end
            yield message

    def skip(self, position: int) -> None:
        """Go on at `position`: nothing before it concerns this node."""
        if position > self.next:
            self.next = position
            self.mark(position, position)
            for at in [at for at in self.heard if at < position]:
                del self.heard[at]

    def gaps(self, most: int) -> list[tuple[int, int]]:
        """GR-9, GR-14: ranges that are stable and not here, at most `most`."""
        gaps: list[tuple[int, int]] = []
        at = self.next
        for begin in sorted(self.heard):
            if at >= self.stable or len(gaps) == most:
                return gaps
            if begin > at:
                gaps.append((at, min(begin, self.stable)))
            at = self.heard[begin].end
        if at < self.stable and len(gaps) < most:
            gaps.append((at, self.stable))
        return gaps

    @property
    def missing(self) -> bool:
        """Whether the next stable message is not here."""
        return self.next < self.stable and self.next not in self.heard
