"""A subnet behind a local broadcaster: the RESPONSE protocol (PROTOCOLS §7.6, HG-10 … HG-15).

Downwards a message is flooded: whoever gets it for the first time passes it on over all its other
links at once, and answers RESPONSE where it came from.  A link without a RESPONSE is tried again.
Upwards a message climbs from node to node; where two meet within T one of them is dropped, and its
origin repeats it until it sees it come down.

A node submits one message at a time, as a user of GRSB does, but nobody answers it: it is over when
it comes down (HG-14).

RESPONSE is only cited by the paper (Gopal, Gopal, Kutten); this is PROTOCOLS' reading of it.  In
the normal case a flood is everywhere after D·T, and over after (D+2)·T.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from msgspec import structs

from roundelay.core.engine import COMMITTED, NEVER, Pdu
from roundelay.core.grsb.base import Host
from roundelay.core.grsb.pdu import END, Message
from roundelay.core.grsb.stable import Handled
from roundelay.core.grsb.user import Submitter
from roundelay.core.notices import GapUnavailable, MemberSuspected, OwnPlaced
from roundelay.core.selection import Selection
from roundelay.core.wide.pdu import SUBNET, LsAck, LsAsk, LsData, LsDown, LsUp, Response
from roundelay.core.wide.topology import Atlas
from roundelay.core.wide.uplink import PartHost

SEEN_MAX: Final = 512
"""Floods a node remembers, besides what it knows by its position."""

FLOODS_MAX: Final = 64
"""Floods of which a node waits for the RESPONSE of one link; the oldest is given up."""

PATH_MAX: Final = 255
"""Nodes on the way of a message that climbs, or of a question."""

Take = Callable[[Message, int], None]
"""Called with each message in order, and the time."""
Skipped = Callable[[int, int], None]
"""Called with a stretch that will never come."""


class Flood:
    """A node of LS_i, or LB_i itself (`root`).

    `take` gets every message in the order of positions; `skipped` is told what will never come.
    """

    epoch = 0  # it hears of no reign

    def __init__(
        self, host: PartHost, atlas: Atlas, position: int, take: Take, skipped: Skipped, now: int
    ) -> None:
        self.host = host
        self.config = config = host.config
        network = atlas.network_of(host.me)
        assert network is not None
        self.net = network.net
        self.root = network.broadcaster == host.me
        self.feeder = network.recorders[0]
        self.links = atlas.links.get(host.me, ())
        self.link_ns = config.link_ns
        self.patience_ns = 2 * config.link_ns + 1  # a RESPONSE within 2T is in time
        self.round_ns = (atlas.diameters[self.net] + 2) * self.link_ns
        self.take = take
        self.skipped = skipped
        self.next = position
        self.held: dict[int, Message] = {}  # behind a gap
        self.seen: OrderedDict[int, None] = OrderedDict()  # floods passed on, above `next`
        self.kept: OrderedDict[int, Message] = OrderedDict()  # for neighbours that ask
        self.waiting: dict[tuple[int, int], list[int]] = {}  # (gseq, link) → due, tries
        self.sent: dict[int, LsDown] = {}  # what is waited for
        self.suspects: set[int] = set()
        self.parent = atlas.parents.get(host.me, -1)
        self.parent_at = -1  # the flood that showed it
        self.answer_due: int = -1  # root: the flood that the feeder waits for
        self.gap_due = NEVER
        self.ask_due = now + config.alive_ns if config.ls_repair and not self.root else NEVER
        self.asked = 0
        self.resend_due = NEVER

    # -- down ------------------------------------------------------------------------------

    def on_down(self, down: LsDown, source: int, now: int) -> bool:
        """HG-11: whether it was the first copy."""
        at = down.message.gseq
        if source in self.links:
            self.suspects.discard(source)
            self._answered(at, source)  # whoever sends it has it
        elif not (self.root and source == self.feeder):
            self.host.drop("not a link")
            return False
        first = at >= self.next and at not in self.seen
        if first:
            self.seen[at] = None
            if len(self.seen) > SEEN_MAX:
                self.seen.popitem(last=False)
            if at > self.parent_at and source in self.links:
                self.parent, self.parent_at = source, at
            for link in self.links:
                if link != source:
                    self._send(down, link, now)
            self._keep(down.message, now)
        if source == self.feeder and self.root:
            self.answer_due = at
            self._answer_feeder()
        else:
            self.host.send(source, Response(at, self.next), SUBNET)
        return first

    def _send(self, down: LsDown, link: int, now: int) -> None:
        if len(self.waiting) >= FLOODS_MAX * len(self.links):
            oldest = next(iter(self.waiting))
            del self.waiting[oldest]
            self._done(oldest[0])
        at = down.message.gseq
        due = now + self.patience_ns
        self.waiting[at, link] = [due, 0]
        self.sent[at] = down
        self.resend_due = min(self.resend_due, due)
        self.host.send(link, down, SUBNET)

    def on_response(self, response: Response, source: int) -> None:
        self.suspects.discard(source)
        self._answered(response.gseq, source)

    def _answered(self, at: int, link: int) -> None:
        if self.waiting.pop((at, link), None) is not None:
            self._done(at)

    def _done(self, at: int) -> None:
        if not any(gseq == at for gseq, _ in self.waiting):
            self.sent.pop(at, None)
            if self.answer_due == at:
                self._answer_feeder()

    def _answer_feeder(self) -> None:
        """HG-9: the recorder goes on when all our links have it, or are given up."""
        at = self.answer_due
        if at not in self.sent:
            self.answer_due = -1
            self.host.send(self.feeder, Response(at, max(self.next, 0)), SUBNET)

    def _resend(self, now: int) -> None:
        """HG-12: no RESPONSE within 2T: again, at most R times; then the neighbour is suspect.

        A suspect is tried once more per flood: nobody else waits long for who is gone.
        """
        self.resend_due = NEVER
        for (at, link), entry in list(self.waiting.items()):
            if entry[0] <= now:
                entry[1] += 1
                if entry[1] > (1 if link in self.suspects else self.config.attempts):
                    del self.waiting[at, link]
                    if link not in self.suspects:
                        self.suspects.add(link)
                        self.host.notify(MemberSuspected(link))
                    self._done(at)
                    continue
                entry[0] = now + self.patience_ns
                self.host.send(link, self.sent[at], SUBNET)
            self.resend_due = min(self.resend_due, entry[0])

    # -- in order --------------------------------------------------------------------------

    def _keep(self, message: Message, now: int) -> None:
        if self.root and message.gseq > self.next:
            self.next = message.gseq  # the recorder knows what was flooded, and nobody listens here
        if message.gseq < self.next:
            return
        self.held[message.gseq] = message
        self._advance(now)
        if len(self.held) > self.config.ls_held:
            if self.config.ls_repair:
                del self.held[max(self.held)]
            else:
                self._skip()
                self._advance(now)

    def _advance(self, now: int) -> None:
        before = self.next
        while self.held:
            message = self.held.pop(self.next, None)
            if message is None:
                break
            self.seen.pop(self.next, None)
            self.next = message.end
            self.kept[message.gseq] = message
            if len(self.kept) > self.config.ls_keep:
                self.kept.popitem(last=False)
            self.take(message, now)
        for at in [at for at in self.held if at < self.next]:
            del self.held[at]
        if not self.held:
            self.gap_due = NEVER
        elif self.config.ls_repair:
            self.ask_due = min(self.ask_due, now + 2 * self.link_ns)
        elif self.gap_due >= NEVER or self.next > before:
            # Neighbours try that long; after that it does not come any more.
            self.gap_due = now + 4 * self.link_ns * (self.config.attempts + 2)

    def _skip(self) -> None:
        """HG-15: without repair what was missed is missed."""
        after = min(self.held)
        self.skipped(self.next, after)
        self.next = after

    # -- repair ----------------------------------------------------------------------------

    def _ask(self, now: int) -> None:
        """HG-15: a neighbour, the parent first; now and then also without a gap."""
        self.ask_due = now + (4 * self.round_ns if self.held else self.config.alive_ns)
        others = [link for link in self.links if link != self.parent]
        order = [self.parent, *others] if self.parent in self.links else others
        link = order[self.asked % len(order)]
        self.asked += 1
        self.host.send(link, LsAsk(self.next, (self.host.me,)), SUBNET)

    def on_ask(self, ask: LsAsk, source: int) -> None:
        """HG-15: answer from what is kept, or ask on, up to the recorder."""
        path = ask.path
        if source not in self.links or not path or path[-1] != source or self.host.me in path:
            self.host.drop("not a link")
            return
        at = ask.since
        if self.next <= at and not self.root:
            return
        if at in self.kept:
            for _ in range(self.config.rec_burst):
                message = self.kept.get(at)
                if message is None:
                    return
                self.host.send(source, LsData(self.net, message, path[:-1]), SUBNET)
                at = message.end
        elif self.root:
            self.host.send(self.feeder, LsAsk(at, (*path, self.host.me)), SUBNET)
        elif len(path) < PATH_MAX:
            ways = [link for link in self.links if link not in path]
            if self.parent in ways and self.host.rng.random() < 0.7:
                ways = [self.parent]
            if ways:
                link = self.host.rng.choice(ways)
                self.host.send(link, LsAsk(at, (*path, self.host.me)), SUBNET)

    def on_data(self, data: LsData, source: int, now: int) -> None:
        """HG-15: what we asked for, or what somebody behind us did."""
        if source not in self.links and not (self.root and source == self.feeder):
            self.host.drop("not a link")
            return
        path = data.path
        if path:
            if path[-1] in self.links:
                self.host.send(path[-1], LsData(data.net, data.message, path[:-1]), SUBNET)
            return
        before = self.next
        if data.message.gseq >= self.next:
            self._keep(data.message, now)
        if self.next > before:
            self.asked = max(0, self.asked - 1)  # the same one again
            self.ask_due = min(self.ask_due, now + self.link_ns)

    # -- timers ----------------------------------------------------------------------------

    @property
    def deadline(self) -> int:
        return min(self.resend_due, self.gap_due, self.ask_due)

    def on_timer(self, now: int) -> None:
        if self.resend_due <= now:
            self._resend(now)
        if self.gap_due <= now:
            self.gap_due = NEVER
            if self.held:
                self._skip()
                self._advance(now)
        if self.ask_due <= now:
            self._ask(now)


class Climb:
    """The way up of a node, or of LB_i (HG-10, HG-13)."""

    def __init__(self, host: Host, flood: Flood, lcr: Callable[[], int]) -> None:
        self.host = host
        self.flood = flood
        self.lcr = lcr  # of the network: LB knows it
        self.slot: LsUp | None = None
        self.slot_due = NEVER
        self.dropped = 0

    def offer(self, up: LsUp, now: int) -> None:
        """HG-13: a candidate; of two within T the smaller (origin, number) goes on."""
        other = self.slot
        if other is None:
            self.slot = up
            self.slot_due = now + self.flood.link_ns
            return
        if (other.origin, other.inc, other.sseq) == (up.origin, up.inc, up.sseq):
            return
        self.dropped += 1
        if (up.origin, up.inc, up.sseq) < (other.origin, other.inc, other.sseq):
            self.slot = up

    def on_up(self, up: LsUp, source: int, now: int) -> None:
        """HG-10, HG-13: from a neighbour."""
        flood = self.flood
        if source not in flood.links or not up.path or up.path[-1] != source:
            self.host.drop("not a link")
        elif self.host.me not in up.path and len(up.path) < PATH_MAX:
            self.offer(up, now)

    def hold(self, now: int) -> None:
        """HG-11: what goes down goes first."""
        if self.slot is not None:
            self.slot_due = max(self.slot_due, now + self.flood.link_ns)

    def on_timer(self, now: int) -> None:
        if self.slot_due > now:
            return
        up, self.slot, self.slot_due = self.slot, None, NEVER
        assert up is not None
        flood, rng = self.flood, self.host.rng
        onward = structs.replace(up, path=(*up.path, self.host.me))
        if flood.root:
            self.host.send(self.lcr(), onward, SUBNET)
            return
        ways = [link for link in flood.links if link not in up.path]
        healthy = [link for link in ways if link not in flood.suspects]
        ways = healthy or ways
        if flood.parent in ways and not (up.attempt and rng.random() < 0.5):
            self.host.send(flood.parent, onward, SUBNET)
        elif ways:
            self.host.send(rng.choice(ways), onward, SUBNET)

    def on_ack(self, ack: LsAck) -> bool:
        """HG-14: passed back; True if it is for us."""
        if ack.origin == self.host.me:
            return True
        if ack.path and ack.path[-1] in self.flood.links:
            self.host.send(ack.path[-1], structs.replace(ack, path=ack.path[:-1]), SUBNET)
        return False


class WideNode(Submitter):
    """LB_i, or a node of the second kind with its application."""

    host: PartHost
    # As a user has them, which hears of more.
    up = True
    recorded = 0
    reader = None

    def __init__(
        self,
        host: PartHost,
        atlas: Atlas,
        lcr: Callable[[], int],
        now: int,
        inc: int,
        handled: Handled,
        selection: Selection,
    ) -> None:
        super().__init__(host, inc, handled, selection)
        begin = handled.resume if host.config.ls_repair else handled.upto
        # As a listener is to a user: what brings it the order.
        self.flood = self.listener = Flood(host, atlas, begin, self._take, self._skipped, now)
        host.user = self
        self.climb = Climb(host, self.flood, lcr)

    # -- submitting ------------------------------------------------------------------------

    def _submit(self, now: int) -> None:
        """HG-14: again after a random while, until it is seen to come down."""
        submission = self.under_way
        assert submission is not None
        up = LsUp(
            self.host.me, self.inc, self.sseq, submission.conference, submission.mtype,
            submission.gid, submission.kind, submission.bundle, min(self.tries, 255), (),
        )  # fmt: skip
        self.tries += 1
        self.submit_due = now + self.host.rng.randint(1, 8) * self.flood.round_ns
        self.climb.offer(up, now)

    def _placed(self, inc: int, sseq: int, gseq: int, now: int) -> None:
        """HG-14: phase two of a message of ours has come to its end."""
        submission = self.under_way
        if submission is None or (inc, sseq) != (self.inc, self.sseq):
            return
        self.host.notify(OwnPlaced(submission.first, submission.end, gseq))
        self.sseq += 1
        self._over(now)

    # -- listening -------------------------------------------------------------------------

    def _take(self, message: Message, now: int) -> None:
        """The next message in order."""
        if self.flood.root:
            return
        if message.sender == self.host.me and message.mtype <= END:
            self._placed(message.inc, message.sseq, message.gseq, now)
        self._handle(message, COMMITTED)
        self._handled(self.flood.next)

    def _skipped(self, lo: int, hi: int) -> None:
        """What was missed may have been part of what is open."""
        self.units.open.clear()
        self.host.notify(GapUnavailable(lo, hi))

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
                self._placed(pdu.inc, pdu.sseq, pdu.gseq, now)
        elif isinstance(pdu, LsAsk):
            self.flood.on_ask(pdu, source)
        elif isinstance(pdu, LsData):
            self.flood.on_data(pdu, source, now)
        else:
            self.host.drop("unknown pdu")

    @property
    def deadline(self) -> int:
        return min(self.flood.deadline, self.climb.slot_due, self.submit_due)

    def on_timer(self, now: int) -> None:
        if self.flood.deadline <= now:
            self.flood.on_timer(now)
        if self.climb.slot_due <= now:
            self.climb.on_timer(now)
        if self.submit_due <= now:
            self._submit(now)
