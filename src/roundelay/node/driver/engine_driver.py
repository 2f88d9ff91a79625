"""One engine, driven in real time: what it wants is carried out, in the order that it asks for.

Every live group has one: those whose members find each other (`node.driver.roster_member`), those
whose roles stand in a file (`node.roles.group`), and the groups of AutoRM together (`node.autorm`).
The node hands over datagrams and wakes a group when its deadline has passed; after each batch it
has the group carry out what the engine wants: persist, send, deliver, notify.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from roundelay.core.engine import (
    EMPTY,
    MS,
    ONLY_LINE,
    UNKNOWN_LIFE,
    Delivery,
    Effects,
    Engine,
    Notice,
    Pdu,
)
from roundelay.core.events import DELIVER, NO_REF, NOBODY, NOTICE, RECEIVE, SEND, SUBMIT

if TYPE_CHECKING:
    from roundelay.trace.live import LiveTrace

TRACE_ROWS: Final = 1024
"""Rows of a trace that may wait for the engine's next effects."""
NEAR_NS: Final = MS // 2
"""A deadline nearer than this is looked at again after each batch; and a timer is not moved to a
later time before it is that near, for it may have to be moved once more until then."""


class EngineLink(Protocol):
    """How PDUs leave, and which of those that arrive are for the engine."""

    chan_seq: int
    """The number of the last one."""

    def admits(self, sender: int, chan_seq: int, life: int) -> bool:
        """Whether a PDU is of another member and in order; if not, it is counted as dropped."""

    def transmit(self, destination: int, pdu: Pdu, line: int, now: int) -> None: ...


class EngineHost(Protocol):
    """The group that an engine is driven for."""

    closed: bool

    def feed(self, now: int) -> None:
        """Give the engine what applications have sent, as far as it takes it."""

    def hand_over(self, effects: Effects, now: int) -> None:
        """Tell applications what is delivered and noticed."""

    def traced(self, deliveries: list[Delivery]) -> Iterable[Delivery | Notice]:
        """What a trace has of them."""


@dataclass(eq=False)
class EngineDriver:
    """Member `me` of one group."""

    engine: Engine
    me: int
    host: EngineHost
    link: EngineLink
    keep: Callable[[Effects], None] | None = None
    """Writes what must not be forgotten; nothing of the batch is sent before that is done."""
    trace: LiveTrace | None = None
    received: int = 0
    """PDUs."""
    submitted: int = 0
    """Messages."""

    def receive(
        self,
        pdu: Pdu,
        sender: int,
        chan_seq: int,
        now: int,
        line: int = ONLY_LINE,
        life: int = UNKNOWN_LIFE,
    ) -> None:
        """A PDU of this group arrived, decoded; `life` is the sender's."""
        if not self.link.admits(sender, chan_seq, life):
            return
        self.received += 1
        if self.trace is not None:
            ref = sender << 48 | chan_seq
            self.trace.rows.append((now, self.me, RECEIVE, ref, sender, None))
        self.engine.receive(pdu, sender, now, line, life)

    def record_submission(self, trace: LiveTrace, shown: Any, now: int) -> None:
        """Messages are about to be submitted; `shown` is what the trace has of them."""
        trace.rows.append((now, self.me, SUBMIT, self.submitted, NOBODY, shown))

    def carry_out(self, now: int) -> None:
        """Feed the engine, then carry out what it wants, until it wants nothing more."""
        engine, host, trace, transmit = self.engine, self.host, self.trace, self.link.transmit
        while not host.closed:
            host.feed(now)
            if engine.deadline <= now:
                # An eager token site decides once per batch, by a timer that is due at once.
                engine.on_timer(now)
            effects = engine.take()
            if effects is EMPTY:
                break
            if self.keep is not None:
                self.keep(effects)
            if trace is not None:
                self._record(trace, effects, now)
            for destination, pdu, line in effects.sends:
                transmit(destination, pdu, line, now)
            if effects.deliveries or effects.notices:
                host.hand_over(effects, now)
        if trace is not None and len(trace.rows) >= TRACE_ROWS:
            trace.flush()  # arrivals that led to nothing

    def _record(self, trace: LiveTrace, effects: Effects, now: int) -> None:
        """Write what this batch does, after its persists and before anybody else can know of it.

        `roundelay.trace.live` says why.
        """
        me, add, chan_seq = self.me, trace.rows.append, self.link.chan_seq
        for i, (destination, pdu, _) in enumerate(effects.sends, 1):
            ref = me << 48 | (chan_seq + i) & 0xFFFFFFFF
            add((now, me, SEND, ref, destination, pdu))
        for event in (*self.host.traced(effects.deliveries), *effects.notices):
            if isinstance(event, Notice):
                add((now, me, NOTICE, NO_REF, NOBODY, event))
            else:
                add((now, me, DELIVER, event.seq, event.source, event))
        trace.flush()
