"""A node behind the broadcaster: LB_i, or a node of the second kind with its application.

One submission is under way at a time, as at a user of GRSB, but nobody answers it: it is over when
it comes down (HG-14).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from roundelay.core.bundle import Bundle
from roundelay.core.engine import COMMITTED, NEVER, Pdu
from roundelay.core.errors import PayloadTooLarge, QueueFull, UsageError
from roundelay.core.grsb.base import GrsbDelivery, GrsbEffects, Host
from roundelay.core.grsb.config import EVERYTHING, Selection
from roundelay.core.grsb.pdu import END, LINE_A, MIDDLE, SINGLE, START, Message
from roundelay.core.grsb.stable import Handled
from roundelay.core.grsb.units import Units
from roundelay.core.grsb.user import Waiting, check
from roundelay.core.wide.config import WideConfig
from roundelay.core.wide.pdu import LsAck, LsAsk, LsData, LsDown, LsUp, Response
from roundelay.core.wide.subnet import Climb, Flood
from roundelay.core.wide.topology import Atlas


class NodeHost(Host):
    """Where a node's effects go."""

    def __init__(
        self, me: int, atlas: Atlas, config: WideConfig, rng: Random, loop: deque[tuple[Pdu, int]]
    ) -> None:
        super().__init__(me, atlas.local_roles[atlas.net_of(me)], config, rng, 0)
        self.loop = loop

    def send(self, dst: int, pdu: Pdu, line: int = LINE_A) -> None:
        if dst == self.me:
            self.loop.append((pdu, line))
        else:
            self.out.sends.append((dst, pdu, line))

    def take(self) -> GrsbEffects:
        self.batch += 1
        out, self.out = self.out, GrsbEffects()
        return out


class Node:
    """`position`: how far the application has come; `resume`: where its open units began."""

    def __init__(
        self, host: NodeHost, atlas: Atlas, config: WideConfig, lcr: Callable[[], int], now: int,
        *, inc: int, position: int, resume: int, wanted: Selection = EVERYTHING,
    ) -> None:  # fmt: skip
        self.host = host
        self.config = config
        self.inc = inc
        self.wanted = check(wanted)
        self.units = Units(config.unit_bytes)
        self.upto = position
        begin = min(position, resume) if config.ls_repair else position
        self.flood = Flood(host, atlas, config, begin, self._take, self._skipped, now)
        self.climb = Climb(host, self.flood, lcr)
        self.done = self.persisted = (position, resume)
        self.done_at = -1
        # Submissions.
        self.count = 0
        self.gid = 0
        self.sseq = 0
        self.attempt = 0
        self.queue: deque[Waiting] = deque()
        self.under_way: Waiting | None = None
        self.repeat_due = NEVER

    # -- submitting ------------------------------------------------------------------------

    def submit(
        self, bundle: Bundle, now: int, conference: int = 0, kind: int = 0, ticket: bytes = b""
    ) -> int:
        """Broadcast the messages of `bundle`; returns the number of the first."""
        self._may(1, len(bundle.data))
        if not bundle.sizes:
            raise UsageError("an empty bundle: submit one message or more")
        first = self.count
        self.count += len(bundle.sizes)
        self.queue.append(Waiting(first, bundle, conference, kind, SINGLE, 0, b""))
        self._next(now)
        return first

    def submit_unit(
        self, parts: Sequence[bytes], now: int, conference: int = 0, kind: int = 0,
        ticket: bytes = b"",
    ) -> int:  # fmt: skip
        """Broadcast `parts` so that they take effect together (GR-19)."""
        if len(parts) < 2:
            return self.submit(Bundle.of(*parts), now, conference, kind)
        self._may(len(parts), max(map(len, parts)))
        if sum(map(len, parts)) > self.config.unit_bytes:
            raise PayloadTooLarge(
                f"{sum(map(len, parts))} bytes are above unit_bytes = {self.config.unit_bytes}: "
                "send several units"
            )
        first = self.count
        self.gid += 1
        for i, part in enumerate(parts):
            mtype = START if i == 0 else END if i == len(parts) - 1 else MIDDLE
            one = Waiting(self.count, Bundle.of(part), conference, kind, mtype, self.gid, b"")
            self.queue.append(one)
            self.count += 1
        self._next(now)
        return first

    def _may(self, many: int, size: int) -> None:
        if size > self.config.max_payload:
            raise PayloadTooLarge(
                f"{size} bytes are above max_payload = {self.config.max_payload}: "
                "send them as a unit of several messages"
            )
        if len(self.queue) + many > self.config.own_limit:
            raise QueueFull(
                f"{len(self.queue)} submissions wait (own_limit = {self.config.own_limit}): "
                "submit again when some are stable"
            )

    def _next(self, now: int) -> None:
        if self.under_way is None and self.queue:
            self.under_way = self.queue.popleft()
            self.attempt = 0
            self._send_up(now)

    def _send_up(self, now: int) -> None:
        """HG-14: again after a random while, until it is seen to come down."""
        one = self.under_way
        assert one is not None
        up = LsUp(
            self.host.me, self.inc, self.sseq, one.conference, one.mtype, one.gid, one.kind,
            one.bundle, min(self.attempt, 255), (),
        )  # fmt: skip
        self.attempt += 1
        self.repeat_due = now + self.host.rng.randint(1, 8) * self.flood.round_ns
        self.climb.offer(up, now)

    def _over(self, inc: int, sseq: int, gseq: int, now: int) -> None:
        """HG-14: phase two of a message of ours has come to its end."""
        one = self.under_way
        if one is None or (inc, sseq) != (self.inc, self.sseq):
            return
        self.host.notice("stable", one.first, one.first + len(one.bundle.sizes), gseq)
        self.sseq += 1
        self.under_way = None
        self.repeat_due = NEVER
        self._next(now)

    # -- listening -------------------------------------------------------------------------

    def select(self, wanted: Selection) -> None:
        """From the next message on, only what `wanted` takes is delivered."""
        self.wanted = check(wanted)

    def _take(self, message: Message, now: int) -> None:
        """The next message in order."""
        if self.flood.root:
            return
        if message.sender == self.host.me and message.mtype <= END:
            self._over(message.inc, message.sseq, message.gseq, now)
        if self.wanted.takes(message) or message.mtype > END:
            bundle = self.units.take(message)
            if bundle is not None and message.gseq >= self.upto:
                self.host.out.deliveries.append(
                    GrsbDelivery(
                        message.gseq, message.sender, message.number, bundle, COMMITTED,
                        message.conference, message.kind, message.time, message.end, -1,
                    )
                )  # fmt: skip
        self._persist()

    def _skipped(self, lo: int, hi: int) -> None:
        """What was missed may have been part of what is open."""
        self.units.open.clear()
        self.host.notice("gap_unavailable", lo, hi)

    def _persist(self) -> None:
        """What the batches before this one have delivered: this one may still be cut short."""
        at = self.flood.next
        self.upto = max(self.upto, at)
        done = (self.upto, self.units.resume(at))
        if done != self.done:
            if self.done != self.persisted and self.done_at != self.host.batch:
                self.persisted = self.done
                self.host.persist(Handled(*self.done))
            self.done = done
            self.done_at = self.host.batch

    # -- what comes in ---------------------------------------------------------------------

    def receive(self, pdu: Pdu, source: int, now: int) -> None:
        if isinstance(pdu, LsDown):
            if self.flood.on_down(pdu, source, now):
                self.climb.hold(now)
        elif isinstance(pdu, Response):
            self.flood.on_response(pdu, source)
        elif isinstance(pdu, LsUp):
            self.climb.on_up(pdu, source, now)
        elif isinstance(pdu, LsAck):
            if self.climb.on_ack(pdu):
                self._over(pdu.inc, pdu.sseq, pdu.gseq, now)
        elif isinstance(pdu, LsAsk):
            self.flood.on_ask(pdu, source, now)
        elif isinstance(pdu, LsData):
            self.flood.on_data(pdu, source, now)
        else:
            self.host.drop("unknown pdu")

    @property
    def deadline(self) -> int:
        return min(self.flood.deadline, self.climb.slot_due, self.repeat_due)

    def on_timer(self, now: int) -> None:
        if self.flood.deadline <= now:
            self.flood.on_timer(now)
        if self.climb.slot_due <= now:
            self.climb.on_timer(now)
        if self.repeat_due <= now:
            self._send_up(now)
